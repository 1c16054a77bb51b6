"""Compares an operation in 16 bits, and its gradients, with a reference in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitreous.kernels import parity

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter cannot multiply bfloat16 matrices
TOLERANCE = parity.TOLERANCE[HALF]


def random(*shape: int, dtype: torch.dtype = HALF, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype).requires_grad_()


def check_parity(fused: Callable[..., Any], plain: Callable[..., Any], tensors: Sequence[Tensor | None]) -> None:
    """Check the outputs and all gradients for random gradients of the outputs."""
    assert all(error < TOLERANCE for error in parity.errors(fused, plain, tensors))
