"""Pooling of tokens into one vector per image.

For explanations, `weights` returns the weight of each token, and `with_weights` pools with given weights.

b: batch; t: prefix and patch tokens; d: width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.model.attention import PoolingAttention
from vitreous.model.block import Mlp
from vitreous.model.tokens import Features


class ClassTokenPooling(nn.Module):
    """Pools with the class token: z_L^0 of equation 4."""

    def forward(self, features: Features) -> Float[Tensor, "b d"]:
        return features.prefix[:, 0]

    def weights(self, features: Features) -> Float[Tensor, "b heads t"]:
        b, t, _ = all_tokens(features).shape
        return F.pad(features.prefix.new_ones(b, 1, 1), (0, t - 1))

    def with_weights(self, features: Features, weights: Float[Tensor, "b heads t"]) -> Float[Tensor, "b d"]:
        return (weights @ all_tokens(features))[:, 0]


class AveragePooling(nn.Module):
    """Averages the patches and applies `norm`, which is the identity if the encoder has a final norm."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm

    def forward(self, features: Features) -> Float[Tensor, "b d"]:
        return self.norm(features.patches.mean(dim=1))

    def weights(self, features: Features) -> Float[Tensor, "b heads t"]:
        b, n, _ = features.patches.shape
        p = features.prefix.shape[1]
        return F.pad(features.patches.new_full((b, 1, n), 1 / n), (p, 0))

    def with_weights(self, features: Features, weights: Float[Tensor, "b heads t"]) -> Float[Tensor, "b d"]:
        return self.norm((weights @ all_tokens(features))[:, 0])


class AttentionPooling(nn.Module):
    """MAP, multi-head attention pooling: a learned query attends to all tokens; a residual MLP follows."""

    def __init__(self, attention: PoolingAttention, mlp: Mlp, width: int, norm_eps: float):
        super().__init__()
        self.attention = attention
        self.norm = nn.LayerNorm(width, norm_eps)
        self.mlp = mlp

    def forward(self, features: Features) -> Float[Tensor, "b d"]:
        return self._add(self.attention(all_tokens(features)))

    def weights(self, features: Features) -> Float[Tensor, "b heads t"]:
        return self.attention.weights(all_tokens(features))

    def with_weights(self, features: Features, weights: Float[Tensor, "b heads t"]) -> Float[Tensor, "b d"]:
        return self._add(self.attention.gather(all_tokens(features), weights))

    def _add(self, pooled: Tensor) -> Tensor:
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]


Pooling = ClassTokenPooling | AveragePooling | AttentionPooling


def all_tokens(features: Features) -> Float[Tensor, "b t d"]:
    """Concatenate prefix and patch tokens."""
    return torch.cat([features.prefix, features.patches], dim=1)
