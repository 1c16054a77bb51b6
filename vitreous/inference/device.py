"""Choose device and dtype, and place a model there without changing the caller's."""

import copy
from typing import Any, TypeVar

import torch
from torch import nn

from vitreous.common.checks import BadValue, fail

M = TypeVar("M", bound=nn.Module)


def choose_device(device: str | torch.device | None, current: torch.device | None = None) -> torch.device:
    """Resolve a device: "auto" is CUDA, else Apple's MPS, else the CPU.

    None keeps the `current` device if it is an accelerator, and is otherwise "auto".

    >>> choose_device("cpu")
    device(type='cpu')
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
