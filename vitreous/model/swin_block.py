"""Blocks of a Swin Transformer, which attend in windows, and the merging of patches between its stages.

b: batch; n = gh x gw: patches; m: merged patches; t: tokens in a window; d, e: widths.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitreous.common.checks import Size
from vitreous.kernels import missing
from vitreous.model.attention import AttentionTerms, SelfAttention
from vitreous.model.block import GeluMlp, StochasticDepth
from vitreous.model.fused_encoder import compute_dtype, has_hooks, is_linear
from vitreous.model.window_position import BiasMlp, BiasTable
from vitreous.model.windows import WindowTerms, join, pad, split

MASKED = -100.0  # added to the logits of separated tokens, as in the original code


def _to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast to the dtype of autocast before large copies, which then move half the bytes."""
    return x.to(compute_dtype(x)) if x.dtype == torch.float32 else x


class WindowSelfAttention(SelfAttention):
    """Self-attention in windows [windows, t, d], with a bias for each offset."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        position: BiasTable | BiasMlp,
        qkv_bias: bool = True,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ):
        super().__init__(
            width,
            num_heads,
            qkv_bias=qkv_bias,
            attention_dropout=attention_dropout,
            output_dropout=output_dropout,
        )
        self.position = position

    def bias(self, terms: WindowTerms) -> Float[Tensor, "heads t t"]:
        return self.position(terms.windows.size)[terms.offsets].permute(2, 0, 1)

    def fused(self, tokens: Float[Tensor, "b n d"], terms: WindowTerms) -> Float[Tensor, "b n d"] | None:
        """Compute the output for tokens on the grid with a fused kernel, or return None if that is not possible."""
        dtype = compute_dtype(tokens)
        if terms.indices is None or self.kernel_obstacle(tokens.device, dtype) or not tokens.shape[0]:
            return None
        from vitreous.kernels.window_attention import supports, window_attention

        if not supports(terms.indices.shape[1], self.head_dim):
            return None
        bias = self.packed_bias()
        qkv = F.linear(tokens.to(dtype), self.packed_weight().to(dtype), None if bias is None else bias.to(dtype))
        gathered = window_attention(qkv, terms.indices, self.bias(terms), terms.separated, self.scale)
        return self.output_dropout(self.output(gathered))

    def kernel_obstacle(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return the reason why `fused` cannot be used, or None."""
        if type(self) is not WindowSelfAttention:
            return "cosine attention"
        if (self.training and self.dropout) or has_hooks(self) or not all(map(is_linear, (self.q, self.k, self.v))):
            return "dropout of attention weights, hooks, or other linear layers"
        return missing(device, dtype)

    def logit_scales(self) -> Float[Tensor, "heads 1"]:
        """Return the factor of each head by which products of queries and keys are multiplied."""
        return torch.full_like(self.q.weight[: self.num_heads, :1], self.scale)

    def terms(self, terms: WindowTerms, batch: int) -> AttentionTerms:
        """Compute the bias of all windows of a batch. It is the same in all windows, except those with a mask."""
        bias = self.bias(terms)
        if terms.separated is None:
            return AttentionTerms(bias=bias)
        masked = torch.where(terms.separated[:, None], bias + MASKED, bias)
        return AttentionTerms(bias=_to_autocast_dtype(masked).repeat(batch, 1, 1, 1))


class CosineSelfAttention(WindowSelfAttention):
    """Swin V2: the logits are cosines of queries and keys, times a learned factor per head of at most 100."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        position: BiasTable | BiasMlp,
        qkv_bias: bool = True,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ):
        super().__init__(width, num_heads, position, qkv_bias, attention_dropout, output_dropout)
        self.k = nn.Linear(width, width, bias=False)
        self.scale = 1.0
        self.logit_scale = nn.Parameter(torch.full((num_heads,), math.log(10)))

    def queries_keys_values(self, tokens: Tensor, terms: AttentionTerms) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().queries_keys_values(tokens, terms)
        factor = self.logit_scales()[..., None]
        # Keys of padding are 0, and the default eps is 0 in float16.
        q, k = (F.normalize(x, dim=-1, eps=1e-6) for x in (q, k))
        return (q * factor).to(v.dtype), k.to(v.dtype), v

    def logit_scales(self) -> Float[Tensor, "heads 1"]:
        return self.logit_scale.clamp(max=math.log(100)).exp()[:, None]


class SwinBlock(nn.Module):
    """Attention in windows and an MLP, each with a residual connection and a norm: before it (V1) or after it (V2)."""

    def __init__(
        self,
        attention: WindowSelfAttention,
        mlp: GeluMlp,
        width: int,
        norm_eps: float,
        post_norm: bool,
        stochastic_depth: float = 0.0,
    ):
        super().__init__()
        self.post_norm = post_norm
        self.attention_norm, self.attention = nn.LayerNorm(width, norm_eps), attention
        self.mlp_norm, self.mlp = nn.LayerNorm(width, norm_eps), mlp
        self.stochastic_depth = StochasticDepth(stochastic_depth)
        if post_norm:  # blocks start as the identity
            nn.init.zeros_(self.attention_norm.weight)
            nn.init.zeros_(self.mlp_norm.weight)

    def forward(self, tokens: Float[Tensor, "b n d"], terms: WindowTerms) -> Float[Tensor, "b n d"]:
        inputs = self._inputs(tokens)
        attended = self.attention.fused(inputs, terms)
        if attended is None:
            bias = self.attention.terms(terms, tokens.shape[0])
            attended = join(self.attention(split(_to_autocast_dtype(inputs), terms.windows), bias), terms.windows)
        return self._add(tokens, attended)

    def with_weights(
        self, tokens: Float[Tensor, "b n d"], weights: Float[Tensor, "b windows heads t t"], terms: WindowTerms
    ) -> Float[Tensor, "b n d"]:
        """Compute the output of `forward` from given attention weights."""
        inputs, bias = self._windows(tokens, terms)
        return self._add(tokens, join(self.attention.gather(inputs, weights.flatten(0, 1), bias), terms.windows))

    def attention_weights(
        self, tokens: Float[Tensor, "b n d"], terms: WindowTerms
    ) -> Float[Tensor, "b windows heads t t"]:
        """Return the attention weights that `forward` uses for these tokens."""
        weights = self.attention.weights(*self._windows(tokens, terms))
        return weights.reshape(tokens.shape[0], -1, *weights.shape[1:])

    def _windows(self, tokens: Tensor, terms: WindowTerms) -> tuple[Tensor, AttentionTerms]:
        inputs = _to_autocast_dtype(self._inputs(tokens))
        return split(inputs, terms.windows), self.attention.terms(terms, tokens.shape[0])

    def _inputs(self, tokens: Tensor) -> Tensor:
        return tokens if self.post_norm else self.attention_norm(tokens)

    def _add(self, tokens: Tensor, attended: Tensor) -> Tensor:
        """Add the output of the attention and the MLP to the tokens."""
        if self.post_norm:
            tokens = tokens + self.stochastic_depth(self.attention_norm(attended))
            return tokens + self.stochastic_depth(self.mlp_norm(self.mlp(tokens)))
        tokens = tokens + self.stochastic_depth(attended)
        return tokens + self.stochastic_depth(self.mlp(self.mlp_norm(tokens)))


def squares(tokens: Float[Tensor, "b n d"], grid: Size) -> Float[Tensor, "b m 4 d"]:
    """Group each 2 x 2 patches, column by column, with zeros beyond the edge."""
    (b, _, d), (gh, gw) = tokens.shape, grid
    rows, columns = -(-gh // 2), -(-gw // 2)
    x = pad(tokens.reshape(b, gh, gw, d), (gh % 2, gw % 2))
    return x.reshape(b, rows, 2, columns, 2, d).permute(0, 1, 3, 4, 2, 5).reshape(b, rows * columns, 4, d)


class PatchMerging(nn.Module):
    """Concatenates the tokens of each 2 x 2 patches and projects them to twice the width. V2 normalises after it."""

    def __init__(self, width: int, norm_eps: float, post_norm: bool):
        super().__init__()
        self.post_norm = post_norm
        self.norm = nn.LayerNorm(2 * width if post_norm else 4 * width, norm_eps)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, tokens: Float[Tensor, "b n d"], grid: Size) -> tuple[Float[Tensor, "b m e"], Size]:
        x = squares(tokens, grid).flatten(2)
        x = self.norm(self.reduction(x)) if self.post_norm else self.reduction(self.norm(x))
        return x, (-(-grid[0] // 2), -(-grid[1] // 2))

    def parts(self, tokens: Float[Tensor, "b n d"], grid: Size) -> Float[Tensor, "b m 4 e"]:
        """Return what each of the four patches adds to the output. The sum of the parts is the output."""
        x = squares(tokens, grid)
        x = x if self.post_norm else self.norm(x.flatten(2)).view_as(x)
        parts = torch.einsum("bmpd,epd->bmpe", x, self.reduction.weight.view(self.reduction.out_features, 4, -1))
        if not self.post_norm:
            return parts
        # The norm of V2 is linear once the standard deviation of the sum is known.
        std = (parts.sum(dim=2, keepdim=True).var(dim=-1, keepdim=True, correction=0) + self.norm.eps).sqrt()
        return (parts - parts.mean(dim=-1, keepdim=True)) / std * self.norm.weight + self.norm.bias / 4

    def token_tensors(self, tokens: Float[Tensor, "b n d"], grid: Size, index: Int[Tensor, "1"]) -> dict[str, Tensor]:
        """Return the tokens that are merged into one, and its value between the norm and the projection."""
        x = squares(tokens, grid).index_select(1, index)
        between = self.reduction(x.flatten(2)) if self.post_norm else self.norm(x.flatten(2))
        return {"merge_tokens": x[0, 0], "merge_between": between[0, 0]}
