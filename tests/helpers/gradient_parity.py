"""Compares an operation in 16 bits, and its gradients, with a reference in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter cannot multiply bfloat16 matrices

TOLERANCE = 2e-2 if torch.bfloat16 == HALF else 5e-3  # of relative errors


def random(*shape: int, dtype: torch.dtype = HALF, scale: float = 1.0) -> Tensor:
    return (torch.randn(shape, device=DEVICE) * scale).to(dtype).requires_grad_()


def relative_error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm().clamp(min=1e-12))


def check_parity(fused: Callable[..., Any], plain: Callable[..., Any], tensors: Sequence[Tensor | None]) -> None:
    """Check the outputs and all gradients for random gradients of the outputs."""
    exact = [None if t is None else t.detach().double().requires_grad_(t.requires_grad) for t in tensors]
    found, expected = fused(*tensors), plain(*exact)
    found, expected = ((out,) if isinstance(out, Tensor) else tuple(out) for out in (found, expected))
    grads = [torch.randn_like(out) for out in found]
    torch.autograd.backward(found, grads)
    torch.autograd.backward(expected, [grad.double() for grad in grads])
    pairs = [*zip(found, expected, strict=True)]
    pairs += [(t.grad, e.grad) for t, e in zip(tensors, exact, strict=True) if t is not None and t.requires_grad]
    for mine, reference in pairs:
        assert mine.shape == reference.shape
        assert relative_error(mine, reference) < TOLERANCE
