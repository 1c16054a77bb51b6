"""Residual connection and layer norm in one pass over the tokens.

The branch and the norm are in 16 bits. The tokens, which are the sum of all branches, are in 16 or 32 bits.

b: batch; t: tokens; d: width.
"""

from typing import Any, NamedTuple, no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from vitreous.kernels.fp8 import FP8, quantise
from vitreous.kernels.launch import column_sums, divided, empty_result, multiprocessors, on_device_of

ROWS, SCALED_ROWS = 8, 4  # of a tile in the backward pass; LayerScale needs more registers per row
PROGRAMS = 4  # per multiprocessor in the backward pass


class Branch(NamedTuple):
    """A residual branch: (values + bias) * scale * factor, each of which can be None except the values."""

    values: Float[Tensor, "b t d"]
    bias: Float[Tensor, " d"] | None = None  # of the linear layer that computed the values
    scale: Float[Tensor, " d"] | None = None  # LayerScale
    factor: Float[Tensor, " b"] | None = None  # stochastic depth


def plain_add(tokens: Float[Tensor, "b t d"], branch: Branch) -> Float[Tensor, "b t d"]:
    """Add a residual branch to the tokens."""
    values = branch.values if branch.bias is None else branch.values + branch.bias.to(branch.values.dtype)
    if branch.scale is not None:
        values = values * branch.scale.to(values.dtype)
    if branch.factor is not None:
        values = values * branch.factor[:, None, None].to(values.dtype)
    return tokens + values


def plain_add_norm(
    tokens: Float[Tensor, "b t d"],
    branch: Branch,
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    eps: float,
    fp8_scale: Float[Tensor, ""] | None = None,
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b t d"]]:
    """The operation of `add_norm` in plain PyTorch."""
    tokens = plain_add(tokens, branch)
    return tokens, plain_layer_norm(tokens, weight, bias, eps, branch.values.dtype, fp8_scale)


def plain_layer_norm(
    tokens: Float[Tensor, "b t d"],
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    eps: float,
    dtype: torch.dtype,
    fp8_scale: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "b t d"]:
    """The operation of `layer_norm` in plain PyTorch."""
    normed = F.layer_norm(tokens, tokens.shape[-1:], weight.to(tokens.dtype), bias.to(tokens.dtype), eps)
    return normed.to(dtype) if fp8_scale is None else quantise(normed, fp8_scale)


def add_norm(
    tokens: Float[Tensor, "b t d"],
    branch: Branch,
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    eps: float,
    fp8_scale: Float[Tensor, ""] | None = None,
) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "b t d"]]:
    """Return tokens + branch in the dtype of the tokens, and its layer norm in that of the branch or in 8 bits."""
    branch = branch._replace(values=branch.values.contiguous())
    return torch.ops.vitreous.add_norm(tokens.contiguous(), *branch, weight, bias, eps, fp8_scale)


def layer_norm(
    tokens: Float[Tensor, "b t d"],
    weight: Float[Tensor, " d"],
    bias: Float[Tensor, " d"],
    eps: float,
    dtype: torch.dtype,
    fp8_scale: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "b t d"]:
    """Layer norm with float32 statistics, in 8 bits or in `dtype`, which reads and writes the tokens once."""
    return torch.ops.vitreous.layer_norm(tokens.contiguous(), weight, bias, eps, dtype, fp8_scale)


@triton.jit
@no_type_check
def _forward(
    tokens, values, value_bias, scale, factor, weight, bias, fp8_scale, summed, normed, count, width, eps,
    ADD: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr, FACTOR: tl.constexpr, FP8: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    valid = column < width
    place = row.to(tl.int64) * width + column
    x = tl.load(tokens + place, mask=valid, other=0.0).to(tl.float32)
    if ADD:
        branch = tl.load(values + place, mask=valid, other=0.0).to(tl.float32)
        if BIAS:
            branch += tl.load(value_bias + column, mask=valid, other=0.0).to(tl.float32)
        if SCALE:
            branch *= tl.load(scale + column, mask=valid, other=0.0).to(tl.float32)
        if FACTOR:
            branch *= tl.load(factor + row // count).to(tl.float32)
        x += branch
        tl.store(summed + place, x, mask=valid)
        x = x.to(summed.dtype.element_ty).to(tl.float32)  # normalise what the backward pass will read
    mean = tl.sum(x, 0) / width
    centred = tl.where(valid, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    w = tl.load(weight + column, mask=valid, other=0.0).to(tl.float32)
    b = tl.load(bias + column, mask=valid, other=0.0).to(tl.float32)
    found = centred * rstd * w + b
    if FP8:
        found = divided(found, fp8_scale)
    tl.store(normed + place, found, mask=valid)


@triton.jit
@no_type_check
def _backward(
    grad_summed, grad_normed, summed, values, value_bias, scale, factor, weight, grad_tokens, grad_values, partial,
    rows, count, width, eps, rows_per_program,
    ADD: tl.constexpr, BIAS: tl.constexpr, SCALE: tl.constexpr, FACTOR: tl.constexpr, APART: tl.constexpr,
    SUMS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)[None]
    if SCALE:
        s = tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)[None]
        vb = tl.load(value_bias + column, mask=inside & BIAS, other=0.0).to(tl.float32)[None]
    sum_weight = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)
    sum_value_bias = tl.zeros((BLOCK,), tl.float32)
    sum_scale = tl.zeros((BLOCK,), tl.float32)
    first = program * rows_per_program
    start = first.to(tl.int64) * width + column[None]  # offsets within a program fit into 32 bits
    last = tl.minimum(first + rows_per_program, rows)
    for number in range(0, rows_per_program, ROWS):
        row = number + tl.arange(0, ROWS)
        valid = (first + row[:, None] < last) & inside[None]
        place = start + row[:, None] * width
        x = tl.load(summed + place, mask=valid, other=0.0).to(tl.float32)
        g = tl.load(grad_normed + place, mask=valid, other=0.0).to(tl.float32)
        mean = tl.sum(x, 1) / width
        centred = tl.where(valid, x - mean[:, None], 0.0)
        rstd = tl.rsqrt(tl.sum(centred * centred, 1) / width + eps)
        standard = centred * rstd[:, None]
        sum_weight += tl.sum(g * standard, 0)
        sum_bias += tl.sum(g, 0)
        scaled = g * w
        along = tl.sum(scaled * standard, 1) / width
        grad = (scaled - (tl.sum(scaled, 1) / width)[:, None] - standard * along[:, None]) * rstd[:, None]
        if ADD:
            grad += tl.load(grad_summed + place, mask=valid, other=0.0).to(tl.float32)
            grad = tl.where(valid, grad, 0.0)
            branch = grad
            if FACTOR:
                drawn = tl.load(factor + (first + row) // count, mask=first + row < last, other=0.0)
                branch *= drawn.to(tl.float32)[:, None]
            if SCALE:
                value = tl.load(values + place, mask=valid, other=0.0).to(tl.float32) + vb
                sum_scale += tl.sum(branch * value, 0)
                branch *= s
            if BIAS:
                sum_value_bias += tl.sum(branch, 0)
            if APART:
                tl.store(grad_values + place, branch, mask=valid)
        tl.store(grad_tokens + place, grad, mask=valid)
    out = partial + program * SUMS * width + column
    tl.store(out, sum_weight, mask=inside)
    tl.store(out + width, sum_bias, mask=inside)
    if BIAS:
        tl.store(out + 2 * width, sum_value_bias, mask=inside)
    if SCALE:
        tl.store(out + (SUMS - 1) * width, sum_scale, mask=inside)


def _warps(block: int) -> int:
    return min(max(block // 256, 1), 16)


@torch.library.custom_op("vitreous::add_norm", mutates_args=())
def _add_norm(
    tokens: Tensor,
    values: Tensor,
    value_bias: Tensor | None,
    scale: Tensor | None,
    factor: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    fp8_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    summed, normed = torch.empty_like(tokens), empty_result(values, fp8_scale)
    _launch_forward(tokens, (values, value_bias, scale, factor), weight, bias, fp8_scale, summed, normed, eps)
    return summed, normed


@torch.library.custom_op("vitreous::layer_norm", mutates_args=())
def _layer_norm(
    tokens: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, fp8_scale: Tensor | None = None
) -> Tensor:
    normed = torch.empty_like(tokens, dtype=dtype if fp8_scale is None else FP8)
    _launch_forward(tokens, (None, None, None, None), weight, bias, fp8_scale, None, normed, eps)
    return normed


def _launch_forward(
    tokens: Tensor,
    branch: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    weight: Tensor,
    bias: Tensor,
    fp8_scale: Tensor | None,
    summed: Tensor | None,
    normed: Tensor,
    eps: float,
) -> None:
    rows, width = tokens.shape[:-1].numel(), tokens.shape[-1]
    block = triton.next_power_of_2(width)
    given = [tensor is not None for tensor in (*branch, fp8_scale)]
    with on_device_of(tokens):
        _forward[(rows,)](
            tokens, *branch, weight, bias, fp8_scale, summed, normed, tokens.shape[-2], width, eps, *given, block,
            num_warps=_warps(block),
        )  # fmt: skip


@torch.library.custom_op("vitreous::add_norm_backward", mutates_args=())
def _add_norm_backward(
    grad_summed: Tensor | None,
    grad_normed: Tensor,
    summed: Tensor,
    values: Tensor | None,
    value_bias: Tensor | None,
    scale: Tensor | None,
    factor: Tensor | None,
    weight: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the tokens, of the values (empty if the same), and of weight, bias, value_bias, scale.

    The values have the dtype of `grad_normed`.
    """
    rows, width = summed.shape[:-1].numel(), summed.shape[-1]
    block = triton.next_power_of_2(width)
    per_program = triton.cdiv(rows, PROGRAMS * multiprocessors(summed.device))
    programs = triton.cdiv(rows, per_program)
    sums = 2 + (value_bias is not None) + (scale is not None)
    partial = torch.empty(programs, sums, width, dtype=torch.float32, device=summed.device)
    grad_tokens = torch.empty_like(summed)
    grad_values = _new_grad_values(grad_summed, grad_normed, scale, factor)
    given = [tensor is not None for tensor in (grad_summed, value_bias, scale, factor)]
    with on_device_of(summed):
        _backward[(programs,)](
            grad_summed, grad_normed, summed, values, weight if value_bias is None else value_bias, scale, factor,
            weight, grad_tokens, grad_values, partial, rows, summed.shape[-2], width, eps, per_program,
            *given, grad_values.numel() > 0, sums, ROWS if scale is None else SCALED_ROWS, block,
            num_warps=_warps(block),
        )  # fmt: skip
    return grad_tokens, grad_values, column_sums(partial)


def _new_grad_values(
    grad_summed: Tensor | None, grad_normed: Tensor, scale: Tensor | None, factor: Tensor | None
) -> Tensor:
    """Return a tensor for the gradient of the values, empty if it is that of the tokens, or if there are no values."""
    apart = scale is not None or factor is not None
    if grad_summed is not None and (apart or grad_summed.dtype != grad_normed.dtype):
        return torch.empty_like(grad_normed)
    return grad_normed.new_empty(0)


@_add_norm.register_fake
def _(
    tokens: Tensor,
    values: Tensor,
    value_bias: Tensor | None,
    scale: Tensor | None,
    factor: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    fp8_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(tokens), empty_result(values, fp8_scale)


@_layer_norm.register_fake
def _(
    tokens: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype, fp8_scale: Tensor | None = None
) -> Tensor:
    return torch.empty_like(tokens, dtype=dtype if fp8_scale is None else FP8)


@_add_norm_backward.register_fake
def _(
    grad_summed: Tensor | None,
    grad_normed: Tensor,
    summed: Tensor,
    values: Tensor | None,
    value_bias: Tensor | None,
    scale: Tensor | None,
    factor: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = 2 + (value_bias is not None) + (scale is not None)
    other = _new_grad_values(grad_summed, grad_normed, scale, factor)
    return torch.empty_like(summed), other, summed.new_empty(sums, summed.shape[-1], dtype=torch.float32)


def _save_add_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, values, value_bias, scale, factor, weight, bias, ctx.eps, _ = inputs
    ctx.bias_dtype = bias.dtype
    kept = values if scale is not None else None
    ctx.save_for_backward(output[0], kept, value_bias, scale, factor, weight)


def _add_norm_gradients(ctx: Any, grad_summed: Tensor, grad_normed: Tensor) -> tuple[Tensor | None, ...]:
    summed, values, value_bias, scale, factor, weight = ctx.saved_tensors
    tokens, branch, sums = torch.ops.vitreous.add_norm_backward(
        grad_summed.contiguous(), grad_normed.contiguous(), summed, values, value_bias, scale, factor, weight, ctx.eps
    )
    rows = list(sums)
    return (
        tokens,
        branch if branch.numel() else tokens,
        None if value_bias is None else rows[2].to(value_bias.dtype),
        None if scale is None else rows[-1].to(scale.dtype),
        None,
        rows[0].to(weight.dtype),
        rows[1].to(ctx.bias_dtype),
        None,
        None,
    )


def _save_layer_norm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tokens, weight, bias, ctx.eps, _, _ = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(tokens, weight)


def _layer_norm_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    tokens, weight = ctx.saved_tensors
    none = (None, None, None, None)
    found, _, sums = torch.ops.vitreous.add_norm_backward(None, grad.contiguous(), tokens, *none, weight, ctx.eps)
    return found, sums[0].to(weight.dtype), sums[1].to(ctx.bias_dtype), None, None, None


_add_norm.register_autograd(_add_norm_gradients, setup_context=_save_add_norm)
_layer_norm.register_autograd(_layer_norm_gradients, setup_context=_save_layer_norm)
