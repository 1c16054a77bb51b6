"""Attention in the windows of a Swin Transformer without copying the tokens into windows and back.

A program handles one window and one head of several images, so it reads the bias of the window only once, and sums the
gradient of the bias over its images.

b: batch; n: tokens on the grid; w: windows; t: tokens in a window; h: heads; e: head_dim.
"""

from typing import Any, no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.kernels.launch import column_sums, multiprocessors, on_device_of, width_block

MAX_TOKENS, MAX_HEAD_DIM = 64, 64
MASKED = -100.0  # added to the scores of separated tokens, as in the original code
PROGRAMS = 16  # per multiprocessor


def plain_window_attention(
    qkv: Float[Tensor, "b n three_h_e"],
    indices: Int[Tensor, "w t"],
    bias: Float[Tensor, "h t t"],
    separated: Bool[Tensor, "w t t"] | None,
    scale: float,
) -> Float[Tensor, "b n h_e"]:
    """The operation of `window_attention` in plain PyTorch."""
    q, k, v = qkv[:, indices].view(qkv.shape[0], *indices.shape, 3, bias.shape[0], -1).permute(3, 0, 1, 4, 2, 5)
    bias = bias.to(qkv.dtype)
    bias = bias if separated is None else torch.where(separated[:, None], bias + MASKED, bias)
    found = F.scaled_dot_product_attention(q, k, v, bias.expand(*q.shape[:3], -1, -1), scale=scale)
    back = indices.flatten().argsort()
    return found.transpose(2, 3).flatten(3).flatten(1, 2)[:, back]


def window_attention(
    qkv: Float[Tensor, "b n three_h_e"],
    indices: Int[Tensor, "w t"],
    bias: Float[Tensor, "h t t"],
    separated: Bool[Tensor, "w t t"] | None,
    scale: float,
) -> Float[Tensor, "b n h_e"]:
    """Return the concatenated heads of attention in windows, in the order of the grid.

    Args:
        qkv: All queries, then all keys, then all values of a token, each head by head.
        indices: The tokens of each window. Each token must be in exactly one window.
        separated: Pairs of tokens that do not attend to each other.
    """
    return torch.ops.vitreous.window_attention(qkv.contiguous(), indices, bias.contiguous(), separated, scale)


def supports(tokens: int, head_dim: int) -> bool:
    """Return True if `window_attention` can handle this size."""
    return tokens <= MAX_TOKENS and head_dim <= MAX_HEAD_DIM


@triton.jit
@no_type_check
def _scores_bias(bias, separated, head, window, row, tokens, SEPARATED: tl.constexpr, MASKED: tl.constexpr):
    """Load the bias of a head in a window, in units of exp2. Keys beyond the window get -inf."""
    valid = (row[:, None] < tokens) & (row[None] < tokens)
    place = row[:, None] * tokens + row[None]
    found = tl.load(bias + head * tokens * tokens + place, mask=valid, other=0.0).to(tl.float32)
    if SEPARATED:
        apart = tl.load(separated + window * tokens * tokens + place, mask=valid, other=0)
        found += tl.where(apart != 0, MASKED, 0.0)
    return tl.where(row[None] < tokens, found * 1.4426950408889634, float("-inf"))


@triton.jit
@no_type_check
def _weights(q, k, shift, scale):
    """Return the attention weights. `shift` is the bias."""
    scores = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634) + shift
    scores = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return scores / tl.sum(scores, 1)[:, None]


@triton.jit
@no_type_check
def _forward(
    qkv, indices, bias, separated, out, batch, grid_tokens, tokens, windows, heads, head_dim, scale, images,
    SEPARATED: tl.constexpr, MASKED: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, window, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width = heads * head_dim
    row, column = tl.arange(0, TOKENS), tl.arange(0, BLOCK)
    valid = (row[:, None] < tokens) & (column[None] < head_dim)
    place = tl.load(indices + window * tokens + row, mask=row < tokens, other=0)[:, None]
    shift = _scores_bias(bias, separated, head, window, row, tokens, SEPARATED, MASKED)
    inside = place * 3 * width + head * head_dim + column[None]
    outside = place * width + head * head_dim + column[None]
    first = chunk * images
    for image in range(first, tl.minimum(first + images, batch)):
        start = qkv + tl.cast(grid_tokens, tl.int64) * 3 * width * image + inside
        q = tl.load(start, mask=valid, other=0.0)
        k = tl.load(start + width, mask=valid, other=0.0)
        v = tl.load(start + 2 * width, mask=valid, other=0.0)
        found = tl.dot(_weights(q, k, shift, scale).to(v.dtype), v)
        tl.store(out + tl.cast(grid_tokens, tl.int64) * width * image + outside, found, mask=valid)


@triton.jit
@no_type_check
def _backward(
    grad, qkv, indices, bias, separated, grad_qkv, partial, batch, grid_tokens, tokens, windows, heads, head_dim,
    scale, images,
    SEPARATED: tl.constexpr, MASKED: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, window, chunk = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    width = heads * head_dim
    row, column = tl.arange(0, TOKENS), tl.arange(0, BLOCK)
    valid = (row[:, None] < tokens) & (column[None] < head_dim)
    place = tl.load(indices + window * tokens + row, mask=row < tokens, other=0)[:, None]
    shift = _scores_bias(bias, separated, head, window, row, tokens, SEPARATED, MASKED)
    inside = place * 3 * width + head * head_dim + column[None]
    outside = place * width + head * head_dim + column[None]
    total = tl.zeros((TOKENS, TOKENS), tl.float32)
    first = chunk * images
    for image in range(first, tl.minimum(first + images, batch)):
        offset = tl.cast(grid_tokens, tl.int64) * 3 * width * image
        start = qkv + offset + inside
        q = tl.load(start, mask=valid, other=0.0)
        k = tl.load(start + width, mask=valid, other=0.0)
        v = tl.load(start + 2 * width, mask=valid, other=0.0)
        g = tl.load(grad + tl.cast(grid_tokens, tl.int64) * width * image + outside, mask=valid, other=0.0)
        weights = _weights(q, k, shift, scale)
        dv = tl.dot(tl.trans(weights.to(g.dtype)), g)
        slope = tl.dot(g, tl.trans(v))
        slope = weights * (slope - tl.sum(weights * slope, 1)[:, None])  # 0 for rows beyond the window, whose g is 0
        total += slope
        slope = (slope * scale).to(q.dtype)
        start = grad_qkv + offset + inside
        tl.store(start, tl.dot(slope, k), mask=valid)
        tl.store(start + width, tl.dot(tl.trans(slope), q), mask=valid)
        tl.store(start + 2 * width, dv, mask=valid)
    out = partial + ((chunk * windows + window) * heads + head).to(tl.int64) * tokens * tokens
    tl.store(out + row[:, None] * tokens + row[None], total, mask=(row[:, None] < tokens) & (row[None] < tokens))


def _division(qkv: Tensor, windows: int, heads: int) -> tuple[tuple[int, int, int], int]:
    """Return the grid of programs, and the number of images per program."""
    wanted = max(PROGRAMS * multiprocessors(qkv.device) // (windows * heads), 1)
    images = triton.cdiv(qkv.shape[0], wanted)
    return (heads, windows, triton.cdiv(qkv.shape[0], images)), images


@torch.library.custom_op("vitreous::window_attention", mutates_args=())
def _window_attention(qkv: Tensor, indices: Tensor, bias: Tensor, separated: Tensor | None, scale: float) -> Tensor:
    (b, n, width), (windows, t), heads = qkv.shape, indices.shape, bias.shape[0]
    grid, images = _division(qkv, windows, heads)
    out = qkv.new_empty(b, n, width // 3)
    head_dim = width // 3 // heads
    with on_device_of(qkv):
        _forward[grid](
            qkv, indices, bias, bias if separated is None else separated, out, b, n, t, windows, heads, head_dim, scale,
            images, separated is not None, MASKED, width_block(t), width_block(head_dim),
            num_warps=4,
        )  # fmt: skip
    return out


@torch.library.custom_op("vitreous::window_attention_backward", mutates_args=())
def _window_attention_backward(
    grad: Tensor, qkv: Tensor, indices: Tensor, bias: Tensor, separated: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of qkv and of the bias."""
    (b, n, width), (windows, t), heads = qkv.shape, indices.shape, bias.shape[0]
    grid, images = _division(qkv, windows, heads)
    grad_qkv, head_dim = torch.empty_like(qkv), width // 3 // heads
    partial = torch.empty(grid[2] * windows, heads, t, t, dtype=torch.float32, device=qkv.device)
    with on_device_of(qkv):
        _backward[grid](
            grad, qkv, indices, bias, bias if separated is None else separated, grad_qkv, partial, b, n, t, windows,
            heads, head_dim, scale, images, separated is not None, MASKED, width_block(t), width_block(head_dim),
            num_warps=4,
        )  # fmt: skip
    return grad_qkv, column_sums(partial)


@_window_attention.register_fake
def _(qkv: Tensor, *_: Any) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


@_window_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, indices: Tensor, bias: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), torch.empty_like(bias, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    qkv, indices, bias, separated = ctx.saved_tensors
    found, total = torch.ops.vitreous.window_attention_backward(
        grad.contiguous(), qkv, indices, bias, separated, ctx.scale
    )
    return found, None, total.to(bias.dtype), None, None


_window_attention.register_autograd(_gradients, setup_context=_save)
