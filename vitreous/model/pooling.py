"""From the tokens of an image to one vector.

b: batch; d: width.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.model.attention import PoolingAttention
from vitreous.model.block import GeluMlp, SwiGluMlp
from vitreous.model.tokens import Features


class ClassTokenPooling(nn.Module):
    """The class token: z_L^0 of equation 4."""

    def forward(self, features: Features) -> Float[Tensor, "b d"]:
        return features.prefix[:, 0]


class AveragePooling(nn.Module):
    """The mean of the patches, normed afterwards where the encoder's output was not."""

    def __init__(self, norm: nn.Module):
        super().__init__()
        self.norm = norm

    def forward(self, features: Features) -> Float[Tensor, "b d"]:
        return self.norm(features.patches.mean(dim=1))


class AttentionPooling(nn.Module):
    """MAP, multi-head attention pooling: a learned query attends to all tokens, then an MLP with a residual."""

    def __init__(self, attention: PoolingAttention, mlp: GeluMlp | SwiGluMlp, width: int, norm_eps: float):
        super().__init__()
        self.attention = attention
        self.norm = nn.LayerNorm(width, norm_eps)
        self.mlp = mlp

    def forward(self, features: Features) -> Float[Tensor, "b d"]:
        pooled = self.attention(torch.cat([features.prefix, features.patches], dim=1))
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]
