"""Softmax attention of short sequences, which reads queries, keys and values from one packed tensor.

General kernels use tiles of 128 queries and keys, which do not fit 197 tokens, and write three separate gradients.
Here, the backward pass handles all keys of a head at once, so it computes the scores only once.

b: batch; t: tokens; h: heads; e: head_dim.
"""

from typing import Any, no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from vitreous.kernels.fp8 import FP8, quantise
from vitreous.kernels.launch import column_sums, divided, on_device_of, shared_memory

MAX_TOKENS, HEAD_DIM = 256, 64
FEW_TOKENS = 128  # the limit on GPUs with little shared memory, such as the GeForce series
SHARED_BYTES = 139_520  # of the backward pass for MAX_TOKENS keys (Ampere, the largest)


def plain_attention(
    qkv: Float[Tensor, "b t three_h_e"],
    bias: Float[Tensor, " three_h_e"] | None,
    heads: int,
    scale: float,
    fp8_scale: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "b t h_e"]:
    """The operation of `attention` in plain PyTorch, for any number of tokens."""
    qkv = qkv if bias is None else qkv + (bias - bias.detach()).to(qkv.dtype)
    q, k, v = qkv.view(*qkv.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
    found = F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(2)
    return found if fp8_scale is None else quantise(found, fp8_scale)


def attention(
    qkv: Float[Tensor, "b t three_h_e"],
    bias: Float[Tensor, " three_h_e"] | None,
    heads: int,
    scale: float,
    fp8_scale: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "b t h_e"]:
    """Return the concatenated heads of softmax(q k^T * scale) v.

    Args:
        qkv: All queries, then all keys, then all values of a token, each head by head, including the bias.
        bias: The bias that `qkv` includes. It only gets its gradient here, as the sum over all tokens.
        fp8_scale: The scale of the output, if it is in 8 bits.
    """
    return torch.ops.vitreous.attention(qkv.contiguous(), bias, heads, scale, fp8_scale)[0]


def supports(tokens: int, head_dim: int, device: torch.device) -> bool:
    """Return True if `attention` can handle this size."""
    most = MAX_TOKENS if shared_memory(device) >= SHARED_BYTES else FEW_TOKENS
    return tokens <= most and head_dim == HEAD_DIM


@triton.jit
@no_type_check
def _load(start, row, rows, stride, D: tl.constexpr):
    return tl.load(start + row[:, None] * stride + tl.arange(0, D)[None], mask=row[:, None] < rows, other=0.0)


@triton.jit
@no_type_check
def _forward(
    qkv, out, lse, fp8_scale, tokens, heads, scale,
    FP8: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(tokens, QUERIES)  # one dimension of programs, because the others have at most 65,535
    pair, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    image, head, width = pair // heads, pair % heads, heads * D
    qkv += image.to(tl.int64) * tokens * 3 * width + head * D
    out += image.to(tl.int64) * tokens * width + head * D
    query, column = block * QUERIES + tl.arange(0, QUERIES), tl.arange(0, D)
    q = _load(qkv, query, tokens, 3 * width, D)
    high = tl.full((QUERIES,), float("-inf"), tl.float32)  # largest score so far
    total = tl.zeros((QUERIES,), tl.float32)
    result = tl.zeros((QUERIES, D), tl.float32)
    for start in range(0, tokens, KEYS):
        key = start + tl.arange(0, KEYS)
        k = _load(qkv + width, key, tokens, 3 * width, D)
        v = _load(qkv + 2 * width, key, tokens, 3 * width, D)
        scores = tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634)  # in units of exp2
        scores = tl.where(key[None] < tokens, scores, float("-inf"))
        higher = tl.maximum(high, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(high - higher)
        total = total * shrink + tl.sum(weights, 1)
        result = tl.dot(weights.to(v.dtype), v, result * shrink[:, None])
        high = higher
    result /= total[:, None]
    if FP8:
        result = divided(result, fp8_scale)
    tl.store(out + query[:, None] * width + column[None], result, mask=query[:, None] < tokens)
    tl.store(lse + pair.to(tl.int64) * tokens + query, high + tl.log2(total), mask=query < tokens)


@triton.jit
@no_type_check
def _backward(
    grad, qkv, out, lse, grad_qkv, tokens, heads, scale, D: tl.constexpr, KEYS: tl.constexpr, QUERIES: tl.constexpr
):  # fmt: skip
    image, head, width = tl.program_id(0) // heads, tl.program_id(0) % heads, heads * D
    first = image.to(tl.int64) * tokens * 3 * width + head * D
    qkv += first
    grad_qkv += first
    outer = image.to(tl.int64) * tokens * width + head * D
    grad += outer
    out += outer
    lse += tl.program_id(0).to(tl.int64) * tokens
    key, column = tl.arange(0, KEYS), tl.arange(0, D)
    k = _load(qkv + width, key, tokens, 3 * width, D)
    v = _load(qkv + 2 * width, key, tokens, 3 * width, D)
    dk = tl.zeros((KEYS, D), tl.float32)
    dv = tl.zeros((KEYS, D), tl.float32)
    # Scores are transposed, because the accumulators of keys and values need their rows in the registers of one warp.
    for start in range(0, tokens, QUERIES):
        query = start + tl.arange(0, QUERIES)
        q = _load(qkv, query, tokens, 3 * width, D)
        g = _load(grad, query, tokens, width, D)
        o = _load(out, query, tokens, width, D)
        delta = tl.sum(g.to(tl.float32) * o.to(tl.float32), 1)
        level = tl.load(lse + query, mask=query < tokens, other=float("inf"))  # the weights of no query are 0
        weights = tl.exp2(tl.dot(k, tl.trans(q)) * (scale * 1.4426950408889634) - level[None])
        weights = tl.where(key[:, None] < tokens, weights, 0.0)
        dv = tl.dot(weights.to(g.dtype), g, dv)
        slope = (weights * (tl.dot(v, tl.trans(g)) - delta[None]) * scale).to(q.dtype)
        dk = tl.dot(slope, q, dk)
        dq = tl.dot(tl.trans(k), slope)
        tl.store(grad_qkv + query[None] * 3 * width + column[:, None], dq, mask=query[None] < tokens)
    place = grad_qkv + key[:, None] * 3 * width + column[None]
    tl.store(place + width, dk, mask=key[:, None] < tokens)
    tl.store(place + 2 * width, dv, mask=key[:, None] < tokens)


@torch.library.custom_op("vitreous::attention", mutates_args=())
def _attention(
    qkv: Tensor, bias: Tensor | None, heads: int, scale: float, fp8_scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the output and the logarithm (base 2) of each query's sum."""
    b, t, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = qkv.new_empty(b, t, width, dtype=qkv.dtype if fp8_scale is None else FP8)
    lse = torch.empty(b, heads, t, dtype=torch.float32, device=qkv.device)
    queries, keys = 64, 32
    with on_device_of(qkv):
        _forward[(b * heads * triton.cdiv(t, queries),)](
            qkv, out, lse, fp8_scale, t, heads, scale, fp8_scale is not None, HEAD_DIM, queries, keys,
            num_warps=4, num_stages=3,
        )  # fmt: skip
    return out, lse


@torch.library.custom_op("vitreous::attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor, qkv: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of qkv and, if there is one, of the bias."""
    b, t, _ = out.shape
    grad_qkv = torch.empty_like(qkv)
    keys, warps = (FEW_TOKENS, 4) if t <= FEW_TOKENS else (MAX_TOKENS, 8)
    with on_device_of(qkv):
        _backward[(b * heads,)](
            grad, qkv, out, lse, grad_qkv, t, heads, scale, HEAD_DIM, keys, 32, num_warps=warps, num_stages=3
        )
    none = torch.empty(0, dtype=torch.float32, device=qkv.device)
    return grad_qkv, none if bias is None else column_sums(grad_qkv.flatten(0, 1))


@_attention.register_fake
def _(
    qkv: Tensor, bias: Tensor | None, heads: int, scale: float, fp8_scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    b, t, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = qkv.new_empty(b, t, width, dtype=qkv.dtype if fp8_scale is None else FP8)
    return out, qkv.new_empty(b, heads, t, dtype=torch.float32)


@_attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, bias: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), qkv.new_empty(qkv.shape[-1] if bias is not None else 0, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, bias, ctx.heads, ctx.scale, _ = inputs
    ctx.save_for_backward(qkv, bias, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    qkv, bias, out, lse = ctx.saved_tensors
    found, total = torch.ops.vitreous.attention_backward(grad.contiguous(), qkv, bias, out, lse, ctx.heads, ctx.scale)
    return found, None if bias is None else total.to(bias.dtype), None, None, None


_attention.register_autograd(_gradients, setup_context=_save)
