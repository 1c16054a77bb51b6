"""Multi-head self-attention (ViT paper, appendix A, equations 5 to 8) and attention pooling.

b: batch; t, s: tokens; q: queries; d: width, equal to heads x head_dim by default.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.model.init import small_, xavier_


class AttentionTerms(NamedTuple):
    """Position inputs of attention: a rotation for each token or a bias for each pair of tokens."""

    rotation: tuple[Tensor, Tensor] | None = None  # cosine and sine, [..., t, head_dim / 2]
    bias: Tensor | None = None  # [..., heads, t, t]
    per_layer: bool = False  # the first dimension of the rotation is the layer


def terms_of_layer(terms: AttentionTerms, layer: int) -> AttentionTerms:
    if terms.rotation is None or not terms.per_layer:
        return terms
    cos, sin = terms.rotation
    return AttentionTerms((cos[layer], sin[layer]), terms.bias)


class SelfAttention(nn.Module):
    """Multi-head self-attention. `forward` uses PyTorch's fused kernel; `weights` returns the attention matrix."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        head_dim: int | None = None,
        qkv_bias: bool = True,
        key_bias: bool = True,
        qk_norm_eps: float | None = None,
        qk_scale: float | None = None,
        output_norm_eps: float | None = None,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ):
        super().__init__()
        head_dim = head_dim or width // num_heads
        inner_width = num_heads * head_dim
        self.num_heads, self.head_dim, self.dropout = num_heads, head_dim, attention_dropout
        self.scale = head_dim**-0.5 if qk_scale is None else qk_scale
        # U_qkv of equation 5 as three layers; other libraries store these weights separately or packed.
        biases = (qkv_bias, qkv_bias and key_bias, qkv_bias)
        self.q, self.k, self.v = (nn.Linear(width, inner_width, bias=bias) for bias in biases)
        for part in (self.q, self.k, self.v):
            xavier_(part)
        self.q_norm = nn.Identity() if qk_norm_eps is None else nn.LayerNorm(head_dim, qk_norm_eps)
        self.k_norm = nn.Identity() if qk_norm_eps is None else nn.LayerNorm(head_dim, qk_norm_eps)
        self.output_norm: nn.Module = nn.Identity()
        if output_norm_eps is not None:
            self.output_norm = nn.LayerNorm(inner_width, output_norm_eps)
        self.output = xavier_(nn.Linear(inner_width, width))
        self.output_dropout = nn.Dropout(output_dropout)

    def forward(
        self, tokens: Float[Tensor, "b t d"], terms: AttentionTerms, queries: slice = slice(None)
    ) -> Float[Tensor, "b q d"]:
        q, k, v = self.queries_keys_values(tokens, terms)
        dropout = self.dropout if self.training else 0.0
        bias = None if terms.bias is None else terms.bias[..., queries, :]
        gathered = F.scaled_dot_product_attention(q[:, :, queries], k, v, bias, dropout, scale=self.scale)
        return self.project(gathered)

    def weights(
        self, tokens: Float[Tensor, "b t d"], terms: AttentionTerms, queries: slice = slice(None)
    ) -> Float[Tensor, "b heads q t"]:
        """Return the rows `queries` of the attention matrix A (equation 6). Each row sums to 1."""
        q, k, _ = self.queries_keys_values(tokens, terms)
        logits = q[:, :, queries] @ k.transpose(-2, -1) * self.scale
        return (logits if terms.bias is None else logits + terms.bias[..., queries, :]).softmax(dim=-1)

    def gather(
        self, tokens: Float[Tensor, "b t d"], weights: Float[Tensor, "b heads t t"], terms: AttentionTerms
    ) -> Float[Tensor, "b t d"]:
        """Compute the output of `forward` from given attention weights."""
        _, _, v = self.queries_keys_values(tokens, terms)
        return self.project(weights @ v)

    def project(self, gathered: Float[Tensor, "b heads t head_dim"]) -> Float[Tensor, "b t d"]:
        """Concatenate the heads and apply the output layer (equation 8)."""
        return self.output_dropout(self.output(self.output_norm(gathered.transpose(1, 2).flatten(2))))

    def packed_weight(self) -> Float[Tensor, "three_inner d"]:
        """Return the weights of queries, keys and values as one matrix, so that they read the tokens only once."""
        return torch.cat([self.q.weight, self.k.weight, self.v.weight])

    def packed_bias(self) -> Float[Tensor, " three_inner"] | None:
        parts: list[Tensor | None] = [self.q.bias, self.k.bias, self.v.bias]
        if (first := parts[0]) is None:
            return None
        return torch.cat([torch.zeros_like(first) if part is None else part for part in parts])

    def queries_keys_values(self, tokens: Tensor, terms: AttentionTerms) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the queries, keys and values (equation 5), split into heads."""
        q, k, v = (into_heads(part(tokens), self.num_heads) for part in (self.q, self.k, self.v))
        q, k = self.q_norm(q), self.k_norm(k)
        if terms.rotation is not None:
            q, k = rotate(q, terms.rotation), rotate(k, terms.rotation)
        return q, k, v


def into_heads(x: Float[Tensor, "b t d"], heads: int) -> Float[Tensor, "b heads t head_dim"]:
    b, t, d = x.shape
    return x.reshape(b, t, heads, d // heads).transpose(1, 2)


def rotate(
    x: Float[Tensor, "b heads t head_dim"], rotation: tuple[Tensor, Tensor]
) -> Float[Tensor, "b heads t head_dim"]:
    """Rotate each pair (x[i], x[i + head_dim / 2]) by the i-th angle of its token."""
    cos, sin = rotation
    first, second = x.to(torch.promote_types(x.dtype, cos.dtype)).chunk(2, dim=-1)  # bfloat16 is too inaccurate
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


class PoolingAttention(nn.Module):
    """Attention from one learned query to all tokens: the first half of multi-head attention pooling (MAP)."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Parameter(small_(torch.empty(1, 1, width)))
        self.q = xavier_(nn.Linear(width, width))
        self.k, self.v = nn.Linear(width, width), nn.Linear(width, width)
        for part in (self.k, self.v):
            xavier_(part)
        self.output = xavier_(nn.Linear(width, width))

    def forward(self, tokens: Float[Tensor, "b s d"]) -> Float[Tensor, "b 1 d"]:
        q, k, v = self._query_keys_values(tokens)
        return self.output(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def weights(self, tokens: Float[Tensor, "b s d"]) -> Float[Tensor, "b heads s"]:
        """Return the attention weights of the learned query for each token."""
        q, k, _ = self._query_keys_values(tokens)
        return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)[:, :, 0]

    def gather(self, tokens: Float[Tensor, "b s d"], weights: Float[Tensor, "b heads s"]) -> Float[Tensor, "b 1 d"]:
        """Compute the output of `forward` from given attention weights."""
        _, _, v = self._query_keys_values(tokens)
        return self.output((weights[:, :, None] @ v).transpose(1, 2).flatten(2))

    def _query_keys_values(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = into_heads(self.q(self.query), self.num_heads).expand(tokens.shape[0], -1, -1, -1)
        k, v = (into_heads(part(tokens), self.num_heads) for part in (self.k, self.v))
        return q, k, v
