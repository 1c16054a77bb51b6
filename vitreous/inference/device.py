"""Choose device and dtype, place a model there without changing the caller's, and check that it fits the memory."""

import copy
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn

from vitreous.common.checks import BadValue, fail
from vitreous.model.base_config import ModelConfig

if TYPE_CHECKING:
    from vitreous.model.cost import Cost

M = TypeVar("M", bound=nn.Module)


def choose_device(device: str | torch.device | None, current: torch.device | None = None) -> torch.device:
    """Resolve a device: "auto" is CUDA, else Apple's MPS, else the CPU.

    None keeps the `current` device if it is an accelerator, and is otherwise "auto".
    """
    if device is None and current is not None and current.type != "cpu":
        return current
    if device is None or device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(device)
    except RuntimeError:
        fail("device", device, "auto, cpu, cuda, mps, or with a number, such as cuda:1")
    try:
        return torch.empty(0, device=device).device  # with its index, as tensors report it
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadValue(f"device is {str(device)!r}, which this machine does not have: {reason}") from error


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """bfloat16 for "bf16", and for "auto" on a GPU that supports it; float32 otherwise."""
    supported = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and supported) else torch.float32


def placed(model: M, device: torch.device, dtype: torch.dtype) -> M:
    """The model itself if it has this device and dtype already; otherwise a copy, made directly there."""
    tensors = [*model.parameters(), *model.buffers()]
    there = {
        id(tensor): tensor.detach().to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for tensor in tensors
    }
    if all(there[id(tensor)].data_ptr() == tensor.data_ptr() for tensor in tensors):
        return model
    # deepcopy treats the memo as already copied, and so copies everything except the tensors.
    memo: dict[int, Any] = {
        id(tensor): nn.Parameter(there[id(tensor)], False) if isinstance(tensor, nn.Parameter) else there[id(tensor)]
        for tensor in tensors
    }
    return copy.deepcopy(model, memo)


# ---- Memory ----------------------------------------------------------------------------------------------------------
# Models that need more memory than this machine has are rejected before they run.

SMALL_PIXELS, SMALL_TOKENS = 2**22, 2**12  # any machine runs these; the estimate takes a second or two
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of containers: cgroup v2, v1


def check_memory(config: ModelConfig, device: torch.device) -> None:
    """Raise ValueError if a forward pass of one image needs more memory than the device has."""
    if spent := large_cost(config):
        check_bytes(spent.inference_bytes, device, f"{takes(config)} one", "use a smaller image_size")


def check_bytes(needed: int, device: torch.device, subject: str, advice: str) -> None:
    """Raise ValueError if `subject` needs more memory than the device has."""
    memory = total_memory(device)
    if needed > memory:
        raise ValueError(
            f"{subject} needs about {needed / 1e9:.1f} GB, but this machine has {memory / 1e9:.1f} GB: {advice}"
        )


def takes(config: ModelConfig, name: str = "the model") -> str:
    height, width = config.image_size
    return f"{name} takes images of {width} x {height} pixels:"


def large_cost(config: ModelConfig) -> "Cost | None":
    """The cost of one image; None for models that any machine runs."""
    if math.prod(config.image_size) <= SMALL_PIXELS and config.backbone.num_tokens <= SMALL_TOKENS:
        return None
    from vitreous.model.cost import cost  # loads torch's fake tensors

    return cost(config)


def total_memory(device: torch.device) -> int:
    """Bytes of memory of the GPU, or of the machine or container that this process runs in."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    limits = [int(text) for file in LIMITS if (text := _content(Path(file))).isdigit()]  # or "max"
    if hasattr(os, "sysconf"):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=sys.maxsize)


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
