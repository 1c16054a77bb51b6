"""Bias and GELU in one pass, with the bias gradient computed in the backward pass.

n: tokens; m: MLP width.
"""

from typing import Any, Literal, no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from vitreous.kernels.fp8 import quantise
from vitreous.kernels.launch import column_sums, divided, empty_result, multiprocessors, on_device_of

Gelu = Literal["erf", "tanh", "quick"]

ROWS, COLUMNS, WARPS = 4, 512, 4  # of a tile
PROGRAMS = 16  # per multiprocessor in the backward pass


def plain_bias_gelu(
    x: Float[Tensor, "*b m"], bias: Float[Tensor, " m"], kind: Gelu, fp8_scale: Float[Tensor, ""] | None = None
) -> Float[Tensor, "*b m"]:
    """The operation of `bias_gelu` in plain PyTorch."""
    x = x + bias.to(x.dtype)
    approximation = "none" if kind == "erf" else "tanh"
    x = x * torch.sigmoid(1.702 * x) if kind == "quick" else F.gelu(x, approximate=approximation)
    return x if fp8_scale is None else quantise(x, fp8_scale)


def bias_gelu(
    x: Float[Tensor, "*b m"], bias: Float[Tensor, " m"], kind: Gelu, fp8_scale: Float[Tensor, ""] | None = None
) -> Float[Tensor, "*b m"]:
    """Return GELU(x + bias), in 8 bits if there is a scale for it."""
    return torch.ops.vitreous.bias_gelu(x.contiguous(), bias, kind, fp8_scale)


@triton.jit
@no_type_check
def _factor(x, KIND: tl.constexpr):
    """Return the factor of x in GELU(x). The approximation by tanh is x * sigmoid(2u)."""
    if KIND == "erf":
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    if KIND == "tanh":
        return tl.sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    return tl.sigmoid(1.702 * x)


@triton.jit
@no_type_check
def _slope(x, KIND: tl.constexpr):
    """Return the derivative of GELU at x."""
    factor = _factor(x, KIND)
    if KIND == "erf":
        return factor + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    if KIND == "tanh":
        return factor + x * factor * (1.0 - factor) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    return factor + 1.702 * x * factor * (1.0 - factor)


@triton.jit
@no_type_check
def _forward(
    x, bias, out, fp8_scale, rows, width,
    KIND: tl.constexpr, FP8: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    valid = (row[:, None] < rows) & (column[None] < width)
    place = row[:, None].to(tl.int64) * width + column[None]
    value = tl.load(x + place, mask=valid, other=0.0).to(tl.float32)
    value += tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None]
    value *= _factor(value, KIND)
    if FP8:
        value = divided(value, fp8_scale)
    tl.store(out + place, value, mask=valid)


@triton.jit
@no_type_check
def _backward(
    grad, x, bias, out, partial, rows, width, rows_per_program,
    KIND: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    first = tl.program_id(1) * rows_per_program
    last = tl.minimum(first + rows_per_program, rows)
    for start in range(first, last, ROWS):
        row = start + tl.arange(0, ROWS)
        valid = (row[:, None] < last) & (column[None] < width)
        place = row[:, None].to(tl.int64) * width + column[None]
        value = tl.load(x + place, mask=valid, other=0.0).to(tl.float32) + b
        found = tl.load(grad + place, mask=valid, other=0.0).to(tl.float32) * _slope(value, KIND)
        tl.store(out + place, found, mask=valid)
        total += found
    tl.store(partial + tl.program_id(1) * width + column, tl.sum(total, 0), mask=column < width)


@torch.library.custom_op("vitreous::bias_gelu", mutates_args=())
def _bias_gelu(x: Tensor, bias: Tensor, kind: str, fp8_scale: Tensor | None = None) -> Tensor:
    rows, width = x.shape[:-1].numel(), x.shape[-1]
    out = empty_result(x, fp8_scale)
    grid = (triton.cdiv(rows, ROWS), triton.cdiv(width, COLUMNS))
    with on_device_of(x):
        _forward[grid](
            x, bias, out, fp8_scale, rows, width, kind, fp8_scale is not None, ROWS, COLUMNS, num_warps=WARPS
        )
    return out


@torch.library.custom_op("vitreous::bias_gelu_backward", mutates_args=())
def _bias_gelu_backward(grad: Tensor, x: Tensor, bias: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and of the bias."""
    rows, width = x.shape[:-1].numel(), x.shape[-1]
    across = triton.cdiv(width, COLUMNS)
    down = max(PROGRAMS * multiprocessors(x.device) // across, 1)
    per_program = triton.cdiv(triton.cdiv(rows, down), ROWS) * ROWS
    down = triton.cdiv(rows, per_program)
    out, partial = torch.empty_like(x), torch.empty(down, width, dtype=torch.float32, device=x.device)
    with on_device_of(x):
        _backward[(across, down)](
            grad, x, bias, out, partial, rows, width, per_program, kind, ROWS, COLUMNS, num_warps=WARPS
        )
    return out, column_sums(partial)


@_bias_gelu.register_fake
def _(x: Tensor, bias: Tensor, kind: str, fp8_scale: Tensor | None = None) -> Tensor:
    return empty_result(x, fp8_scale)


@_bias_gelu_backward.register_fake
def _(grad: Tensor, x: Tensor, bias: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[-1], dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, bias, ctx.kind, _ = inputs
    ctx.save_for_backward(x, bias)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, bias = ctx.saved_tensors
    found, total = torch.ops.vitreous.bias_gelu_backward(grad.contiguous(), x, bias, ctx.kind)
    return found, total.to(bias.dtype), None, None


_bias_gelu.register_autograd(_gradients, setup_context=_save)
