"""Fused GPU kernels in Triton, each beside the plain PyTorch operation that it must equal.

`model/fused_encoder.py` uses them for the blocks of a ViT in 16-bit precision on an NVIDIA GPU, and
`model/swin_block.py` for attention in windows. `parity` compares them with PyTorch before they are used. Set
VITREOUS_KERNELS=off to use plain PyTorch everywhere.
"""

import functools
import importlib.util
import os

import torch
from torch.utils._python_dispatch import _disable_current_modes

from vitreous.common.compiler import is_exporting, traced_as_constant
from vitreous.common.text import single_spaced

MIN_CAPABILITY = (8, 0)  # Ampere, the first GPUs with bfloat16


def missing(device: torch.device, dtype: torch.dtype) -> str | None:
    """Return the reason why the kernels cannot compute in `dtype` on a device, or None."""
    if os.environ.get("VITREOUS_KERNELS", "on") == "off":
        return "VITREOUS_KERNELS=off"
    if device.type != "cuda":
        return "no NVIDIA GPU"
    if is_exporting():
        return "exported models use only operations of PyTorch"
    if not torch.compiler.is_compiling() and torch._C._get_tracing_state() is not None:
        return "traced models use only operations of PyTorch"
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return "not available inside torch.func"
    if dtype not in (torch.bfloat16, torch.float16):
        return f"precision {str(dtype).removeprefix('torch.')}"
    return _unsuitable(device.index, dtype, torch.is_grad_enabled())


@traced_as_constant
def _unsuitable(index: int | None, dtype: torch.dtype, gradients: bool) -> str | None:
    return _reason(torch.cuda.current_device() if index is None else index, dtype, gradients)


@functools.cache
def _reason(index: int, dtype: torch.dtype, gradients: bool) -> str | None:
    if torch.version.cuda is None:
        return "no NVIDIA GPU"
    if torch.cuda.get_device_capability(index) < MIN_CAPABILITY:
        return "a GPU older than Ampere"
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    try:  # triton needs a C compiler, Python's header files and a cache folder that it can write
        from vitreous.kernels.parity import wrong_kernel

        with _disable_current_modes():
            wrong = wrong_kernel(torch.device("cuda", index), dtype, gradients)
    except Exception as error:
        return f"triton does not work: {single_spaced(str(error) or type(error).__name__, 100)}"
    return f"the kernel {wrong} on this GPU" if wrong else None
