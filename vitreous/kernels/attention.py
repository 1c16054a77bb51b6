"""Softmax attention of short sequences, which reads queries, keys and values from one packed tensor.

General kernels use tiles of 128 queries and keys, which do not fit 197 tokens, and write the three gradients to separate
tensors. Here, the backward pass handles all keys of a head at once, so it computes the scores only once.

b: batch; t: tokens; h: heads; e: head_dim.
"""

from typing import Any, no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from vitreous.kernels.launch import column_sums, width_block

MAX_TOKENS, MAX_HEAD_DIM = 256, 64


def plain_attention(
    qkv: Float[Tensor, "b t three_h_e"], bias: Float[Tensor, " three_h_e"] | None, heads: int, scale: float
) -> Float[Tensor, "b t h_e"]:
    """The operation of `attention` in plain PyTorch, for any number of tokens."""
    qkv = qkv if bias is None else qkv + (bias - bias.detach()).to(qkv.dtype)
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(2)


def attention(
    qkv: Float[Tensor, "b t three_h_e"], bias: Float[Tensor, " three_h_e"] | None, heads: int, scale: float
) -> Float[Tensor, "b t h_e"]:
    """Return the concatenated heads of softmax(q k^T * scale) v.

    Args:
        qkv: All queries, then all keys, then all values of a token, each head by head, including the bias.
        bias: The bias that `qkv` includes. It only gets its gradient here, as the sum over all tokens.
    """
    return torch.ops.vitreous.attention(qkv, bias, heads, scale)[0]


def supports(tokens: int, head_dim: int) -> bool:
    """Return True if `attention` can handle this size."""
    return tokens <= MAX_TOKENS and head_dim <= MAX_HEAD_DIM


@triton.jit
@no_type_check
def _load(qkv, part, row, column, rows, width, head_dim):
    """Load a tile of queries, keys or values. `qkv` points to the first element of the head."""
    valid = (row[:, None] < rows) & (column[None] < head_dim)
    return tl.load(qkv + row[:, None] * 3 * width + part * width + column[None], mask=valid, other=0.0)


@triton.jit
@no_type_check
def _forward(
    qkv, out, lse, tokens, heads, head_dim, scale,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    image, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    width = heads * head_dim
    qkv += image.to(tl.int64) * tokens * 3 * width + head * head_dim
    query, column = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES), tl.arange(0, BLOCK)
    q = _load(qkv, 0, query, column, tokens, width, head_dim)
    high = tl.full((QUERIES,), float("-inf"), tl.float32)  # largest score so far
    total = tl.zeros((QUERIES,), tl.float32)
    result = tl.zeros((QUERIES, BLOCK), tl.float32)
    for start in range(0, tokens, KEYS):
        key = start + tl.arange(0, KEYS)
        k = _load(qkv, 1, key, column, tokens, width, head_dim)
        v = _load(qkv, 2, key, column, tokens, width, head_dim)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(key[None] < tokens, scores, float("-inf"))
        higher = tl.maximum(high, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(high - higher)
        total = total * shrink + tl.sum(weights, 1)
        result = tl.dot(weights.to(v.dtype), v, result * shrink[:, None])
        high = higher
    place = (image.to(tl.int64) * tokens + query[:, None]) * width + head * head_dim + column[None]
    valid = (query[:, None] < tokens) & (column[None] < head_dim)
    tl.store(out + place, result / total[:, None], mask=valid)
    tl.store(lse + tl.program_id(1).to(tl.int64) * tokens + query, high + tl.log2(total), mask=query < tokens)


@triton.jit
@no_type_check
def _backward(
    grad, qkv, out, lse, grad_qkv, partial, tokens, heads, head_dim, scale,
    BIAS: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    image, head = program // heads, program % heads
    width = heads * head_dim
    first = image.to(tl.int64) * tokens * 3 * width + head * head_dim
    qkv += first
    grad_qkv += first
    outer = image.to(tl.int64) * tokens * width + head * head_dim
    lse += program.to(tl.int64) * tokens
    key, column = tl.arange(0, KEYS), tl.arange(0, BLOCK)
    k = _load(qkv, 1, key, column, tokens, width, head_dim)
    v = _load(qkv, 2, key, column, tokens, width, head_dim)
    dk = tl.zeros((KEYS, BLOCK), tl.float32)
    dv = tl.zeros((KEYS, BLOCK), tl.float32)
    sum_q = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, tokens, QUERIES):
        query = start + tl.arange(0, QUERIES)
        valid = (query[:, None] < tokens) & (column[None] < head_dim)
        q = _load(qkv, 0, query, column, tokens, width, head_dim)
        place = outer + query[:, None] * width + column[None]
        g = tl.load(grad + place, mask=valid, other=0.0)
        o = tl.load(out + place, mask=valid, other=0.0)
        delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
        level = tl.load(lse + query, mask=query < tokens, other=float("inf"))  # weights of no query are 0
        weights = tl.exp2(tl.dot(k, tl.trans(q)) * (scale * 1.4426950408889634) - level[None])  # [KEYS, QUERIES]
        weights = tl.where(key[:, None] < tokens, weights, 0.0)
        dv = tl.dot(weights.to(g.dtype), g, dv)
        slope = weights * (tl.dot(v, tl.trans(g)) - delta[None]) * scale
        slope = slope.to(q.dtype)
        dk = tl.dot(slope, q, dk)
        dq = tl.dot(tl.trans(slope), k)
        if BIAS:
            sum_q += tl.sum(dq, 0)
        tl.store(grad_qkv + query[:, None] * 3 * width + column[None], dq, mask=valid)
    valid = (key[:, None] < tokens) & (column[None] < head_dim)
    place = grad_qkv + key[:, None] * 3 * width + column[None]
    tl.store(place + width, dk, mask=valid)
    tl.store(place + 2 * width, dv, mask=valid)
    if BIAS:
        place = partial + image * 3 * width + head * head_dim + column
        tl.store(place, sum_q, mask=column < head_dim)
        tl.store(place + width, tl.sum(dk, 0), mask=column < head_dim)
        tl.store(place + 2 * width, tl.sum(dv, 0), mask=column < head_dim)


@torch.library.custom_op("vitreous::attention", mutates_args=())
def _attention(qkv: Tensor, bias: Tensor | None, heads: int, scale: float) -> tuple[Tensor, Tensor]:
    """Return the output and the logarithm (base 2) of each query's sum."""
    b, t, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = qkv.new_empty(b, t, width)
    lse = torch.empty(b, heads, t, dtype=torch.float32, device=qkv.device)
    queries, keys = 64, 32
    _forward[(triton.cdiv(t, queries), b * heads)](
        qkv, out, lse, t, heads, width // heads, scale * 1.4426950408889634,
        queries, keys, width_block(width // heads),
        num_warps=4, num_stages=3,
    )  # fmt: skip
    return out, lse


@torch.library.custom_op("vitreous::attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor, qkv: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of qkv and, if there is one, of the bias."""
    b, t, width = out.shape
    grad_qkv = torch.empty_like(qkv)
    partial = torch.empty(b, 3 * width if bias is not None else 0, dtype=torch.float32, device=qkv.device)
    keys, queries, warps = (128, 64, 4) if t <= 128 else (256, 64, 8)
    _backward[(b * heads,)](
        grad, qkv, out, lse, grad_qkv, partial, t, heads, width // heads, scale,
        bias is not None, keys, queries, width_block(width // heads),
        num_warps=warps, num_stages=2,
    )  # fmt: skip
    return grad_qkv, column_sums(partial) if bias is not None else partial.new_empty(0)


@_attention.register_fake
def _(qkv: Tensor, bias: Tensor | None, heads: int, scale: float) -> tuple[Tensor, Tensor]:
    b, t, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    return qkv.new_empty(b, t, width), qkv.new_empty(b, heads, t, dtype=torch.float32)


@_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, bias: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), qkv.new_empty(qkv.shape[-1] if bias is not None else 0, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, bias, ctx.heads, ctx.scale = inputs
    ctx.save_for_backward(qkv, bias, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    qkv, bias, out, lse = ctx.saved_tensors
    found, total = torch.ops.vitreous.attention_backward(grad.contiguous(), qkv, bias, out, lse, ctx.heads, ctx.scale)
    return found, None if bias is None else total.to(bias.dtype), None, None


_attention.register_autograd(_gradients, setup_context=_save)
