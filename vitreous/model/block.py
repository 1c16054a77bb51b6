"""One encoder layer (ViT paper, equations 2 and 3): attention and an MLP, each with pre-norm and a residual connection.

b: batch; t: tokens; q: tokens to return; d: width; m: MLP width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.model.attention import AttentionTerms, SelfAttention
from vitreous.model.init import xavier_
from vitreous.model.options import GeluApproximation

TORCH_NAMES: dict[GeluApproximation, str] = {"erf": "none", "tanh": "tanh"}  # `approximate` of torch's GELU


class QuickGelu(nn.Module):
    """CLIP's approximation of GELU."""

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return x * torch.sigmoid(1.702 * x)


def gelu_kind(activation: nn.Module) -> GeluApproximation | None:
    """Return the kind of GELU that a module computes, or None if it computes something else."""
    if isinstance(activation, QuickGelu):
        return "quick"
    name = activation.approximate if isinstance(activation, nn.GELU) else None
    return next((ours for ours, theirs in TORCH_NAMES.items() if theirs == name), None)


class GeluMlp(nn.Module):
    """Two linear layers with GELU between them."""

    def __init__(self, width: int, mlp_width: int, approximation: GeluApproximation, dropout: float = 0.0):
        super().__init__()
        self.up = xavier_(nn.Linear(width, mlp_width))
        self.approximation = approximation
        self.activation = QuickGelu() if approximation == "quick" else nn.GELU(TORCH_NAMES[approximation])
        self.dropout = nn.Dropout(dropout)
        self.down = xavier_(nn.Linear(mlp_width, width))

    def forward(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return self.dropout(self.down(self.dropout(self.hidden(tokens))))

    def hidden(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b t m"]:
        """Return the input of the second linear layer."""
        return self.activation(self.up(tokens))


class SwiGluMlp(nn.Module):
    """Gated MLP: silu(x W1) * (x W2), then a linear layer. W1 and W2 are packed into one layer, in that order.

    norm_eps: Epsilon of a norm before the last layer (EVA-02), or None for no norm.
    """

    def __init__(self, width: int, mlp_width: int, dropout: float = 0.0, norm_eps: float | None = None):
        super().__init__()
        self.gate_and_up = xavier_(nn.Linear(width, 2 * mlp_width), parts=2)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(mlp_width, norm_eps)
        self.dropout = nn.Dropout(dropout)
        self.down = xavier_(nn.Linear(mlp_width, width))

    def forward(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return self.dropout(self.down(self.dropout(self.hidden(tokens))))

    def hidden(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b t m"]:
        """Return the input of the last linear layer."""
        gate, up = self.gate_and_up(tokens).chunk(2, dim=-1)
        return self.norm(F.silu(gate) * up)


Mlp = GeluMlp | SwiGluMlp


class LayerScale(nn.Module):
    """Learned per-channel scale of a residual branch, initialised to a small value (CaiT)."""

    def __init__(self, width: int, initial: float):
        super().__init__()
        self.factor = nn.Parameter(torch.full((width,), initial))

    def forward(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return tokens * self.factor


class StochasticDepth(nn.Module):
    """During training, drops the residual branch of random images and scales up the branch of the other images."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.rate_tensor: Tensor | None = (
            None  # replaces `rate` in compiled blocks, which would otherwise be compiled once per rate
        )

    def forward(self, branch: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        factors = self.factors(branch)
        return branch if factors is None else branch * factors[:, None, None].to(branch.dtype)

    def factors(self, branch: Float[Tensor, "b t d"]) -> Float[Tensor, " b"] | None:
        """Draw the factor of each image, or return None if all are 1."""
        if not self.training or (self.rate_tensor is None and self.rate == 0):
            return None
        rate = self.rate if self.rate_tensor is None else self.rate_tensor
        return (torch.rand(branch.shape[0], device=branch.device) >= rate) / (1 - rate)


class Block(nn.Module):
    """Transformer block (equations 2 and 3): z' = MSA(LN(z)) + z, then z = MLP(LN(z')) + z'."""

    def __init__(
        self,
        attention: SelfAttention,
        mlp: Mlp,
        width: int,
        norm_eps: float,
        layer_scale: float | None = None,
        stochastic_depth: float = 0.0,
    ):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, norm_eps)
        self.attention = attention
        self.attention_scale: nn.Module = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.mlp_norm = nn.LayerNorm(width, norm_eps)
        self.mlp = mlp
        self.mlp_scale: nn.Module = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.stochastic_depth = StochasticDepth(stochastic_depth)

    def forward(
        self, tokens: Float[Tensor, "b t d"], terms: AttentionTerms, queries: slice = slice(None)
    ) -> Float[Tensor, "b q d"]:
        """Apply the block. `queries` selects the tokens to return."""
        attended = self.attention(self.attention_norm(tokens), terms, queries)
        tokens = tokens[:, queries] + self._branch(self.attention_scale, attended)
        return tokens + self._branch(self.mlp_scale, self.mlp(self.mlp_norm(tokens)))

    def with_weights(
        self, tokens: Float[Tensor, "b t d"], weights: Float[Tensor, "b heads t t"], terms: AttentionTerms
    ) -> Float[Tensor, "b t d"]:
        """Compute the output of `forward` from given attention weights."""
        gathered = self.attention.gather(self.attention_norm(tokens), weights, terms)
        tokens = tokens + self._branch(self.attention_scale, gathered)
        return tokens + self._branch(self.mlp_scale, self.mlp(self.mlp_norm(tokens)))

    def attention_weights(
        self, tokens: Float[Tensor, "b t d"], terms: AttentionTerms, queries: slice = slice(None)
    ) -> Float[Tensor, "b heads q t"]:
        """Return the attention weights that `forward` uses for these tokens. `queries` selects the rows to return."""
        return self.attention.weights(self.attention_norm(tokens), terms, queries)

    def _branch(self, scale: nn.Module, values: Tensor) -> Tensor:
        return self.stochastic_depth(scale(values))
