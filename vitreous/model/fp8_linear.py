"""Linear layer for inference in 8-bit floating point, with one fixed scale for the input and one for the weight.

n: outputs; k: inputs.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.kernels.fp8 import FP8, product, quantise


class Fp8Linear(nn.Module):
    """Linear layer that multiplies in 8 bits. It has no gradients."""

    weight: Tensor
    input_scale: Tensor
    weight_scale: Tensor

    def __init__(self, linear: nn.Linear, input_scale: Float[Tensor, ""], weight_scale: Float[Tensor, ""]):
        super().__init__()
        self.dtype = linear.weight.dtype  # of the output
        self.register_buffer("weight", quantise(linear.weight.detach(), weight_scale))
        self.register_buffer("input_scale", input_scale)
        self.register_buffer("weight_scale", weight_scale)
        self.bias = linear.bias

    def forward(self, x: Float[Tensor, "*b k"]) -> Float[Tensor, "*b n"]:
        return self.multiply(x, self.weight, self.bias, self.dtype)

    def multiply(
        self,
        x: Float[Tensor, "*b k"],
        weight: Float[Tensor, "n k"],
        bias: Float[Tensor, " n"] | None,
        dtype: torch.dtype,
    ) -> Float[Tensor, "*b n"]:
        """Multiply by a weight with the scale of this layer. `x` may already be in 8 bits."""
        x = x if x.dtype == FP8 else quantise(x, self.input_scale)
        return product(x, weight, (self.input_scale, self.weight_scale), bias, dtype)


def input_scale(layer: nn.Module) -> Float[Tensor, ""] | None:
    """Return the scale of the input of an 8-bit layer, or None for another layer."""
    return layer.input_scale if isinstance(layer, Fp8Linear) else None
