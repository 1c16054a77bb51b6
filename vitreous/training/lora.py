"""LoRA (arXiv 2106.09685): weights are frozen, and a low-rank product is trained and added to each matrix.

A parametrisation computes the sum wherever a weight is used, so that no other code needs to know.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitreous.model.block import Block


class Delta(nn.Module):
    """W + B A. B is zero at first, so that the model starts unchanged."""

    def __init__(self, weight: Tensor, rank: int):
        super().__init__()
        outputs, inputs = weight.shape
        self.a = nn.Parameter(torch.randn(rank, inputs, device=weight.device) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def add_lora(model: nn.Module, rank: int) -> None:
    """Freeze the matrices of all blocks and add trainable low-rank matrices to them."""
    for block in model.modules():
        if isinstance(block, Block):
            for linear in [part for part in block.modules() if isinstance(part, nn.Linear)]:
                linear.requires_grad_(False)
                parametrize.register_parametrization(linear, "weight", Delta(linear.weight, rank))
