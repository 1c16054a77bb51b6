"""Where a model runs, and in which type, without touching the caller's own."""

import copy
from typing import Any, TypeVar

import torch
from torch import nn

from vitreous.common.checks import BadValue, fail

M = TypeVar("M", bound=nn.Module)


def choose_device(device: str | torch.device | None, current: torch.device | None = None) -> torch.device:
    """The device that is meant: "auto" is CUDA, else Apple's MPS, else the CPU.

    None stays on the `current` one if that is an accelerator, and is otherwise "auto".

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
        return torch.empty(0, device=device).device  # with its number, as tensors on it name it
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise BadValue(f"device is {str(device)!r}, which this machine does not have: {reason}") from error


def choose_dtype(precision: str, device: torch.device) -> torch.dtype:
    """bfloat16 for "bf16", and for "auto" on a GPU that computes in it; float32 otherwise."""
    able = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.bfloat16 if precision == "bf16" or (precision == "auto" and able) else torch.float32


def placed(model: M, device: torch.device, dtype: torch.dtype) -> M:
    """The model itself if it is there already, in that type; otherwise a copy, made once, straight to its place."""
    tensors = [*model.parameters(), *model.buffers()]
    there = {
        id(tensor): tensor.detach().to(device, dtype if tensor.is_floating_point() else tensor.dtype)
        for tensor in tensors
    }
    if all(there[id(tensor)].data_ptr() == tensor.data_ptr() for tensor in tensors):
        return model
    # deepcopy takes what it is handed as copied already, and so copies everything but the tensors.
    memo: dict[int, Any] = {
        id(tensor): nn.Parameter(there[id(tensor)], False) if isinstance(tensor, nn.Parameter) else there[id(tensor)]
        for tensor in tensors
    }
    return copy.deepcopy(model, memo)
