"""Device and dtype selection, placement of models, and device memory."""

import copy
import os
import re
import sys
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from vitreous.common.checks import BadValue, fail

M = TypeVar("M", bound=nn.Module)


def choose_device(device: str | torch.device | None, current: torch.device | None = None) -> torch.device:
    """Resolve a device. "auto" prefers CUDA, then MPS, then the CPU.

    None means the `current` device if that is an accelerator, otherwise "auto".
    """
    if device is None and current is not None and current.type != "cpu":
        return current
    if device is None or device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(device)
    except RuntimeError:
        fail("device", device, "auto, cpu, cuda, mps, or an indexed device such as cuda:1")
    try:
        return torch.empty(0, device=device).device  # adds the index, e.g. cuda:0
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadValue(f"device {str(device)!r} is not available: {reason}") from error


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Return bfloat16 for "bf16", and for "auto" on GPUs that support bfloat16. Otherwise return float32."""
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and supported) else torch.float32


def placed(model: M, device: torch.device, dtype: torch.dtype) -> M:
    """Return the model itself if it already has `dtype` and is on `device`, otherwise a converted copy."""
    tensors = [*model.parameters(), *model.buffers()]
    there = {
        id(tensor): tensor.detach().to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for tensor in tensors
    }
    if all(there[id(tensor)].data_ptr() == tensor.data_ptr() for tensor in tensors):
        return model
    # deepcopy skips objects in the memo, so it copies everything except the tensors.
    memo: dict[int, Any] = {
        id(tensor): nn.Parameter(there[id(tensor)], False) if isinstance(tensor, nn.Parameter) else there[id(tensor)]
        for tensor in tensors
    }
    return copy.deepcopy(model, memo)


# ---- Memory ----------------------------------------------------------------------------------------------------------

MEMINFO = "/proc/meminfo"
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # cgroup v2 and v1


def check_bytes(needed: int, device: torch.device, subject: str, advice: str) -> None:
    """Raise ValueError if `needed` bytes exceed the device's memory. The error names `subject` and gives `advice`."""
    memory = total_memory(device)
    if needed > memory:
        raise ValueError(
            f"{subject} needs about {needed / 1e9:.1f} GB of memory, but the device has {memory / 1e9:.1f} GB; {advice}"
        )


def total_memory(device: torch.device) -> int:
    """Return the total memory in bytes of the GPU or, for other devices, of the machine or container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    limits = [int(text) for file in LIMITS if (text := _content(Path(file))).isdigit()]  # not "max"
    if hasattr(os, "sysconf"):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=sys.maxsize)


def free_memory(device: str) -> int:
    """Return the free memory, in bytes, that this process can use on the device."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if found := re.search(r"^MemAvailable: *(\d+) kB$", _content(Path(MEMINFO)), re.MULTILINE):
        free = int(found[1]) << 10  # unlike the number of free pages, this includes caches
    elif "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:  # macOS and Windows do not report it
        free = total_memory(torch.device("cpu")) // 2
    return min(free, total_memory(torch.device("cpu"))) // processes


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
