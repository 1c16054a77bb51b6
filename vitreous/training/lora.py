"""LoRA (arXiv 2106.09685): the weights stay as they are; a product of two thin matrices is learned and added to each.

A parametrisation computes the sum wherever a weight is used, so that no other code knows of it.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitreous.model.block import Block


class Delta(nn.Module):
    """W + B A. B starts at zero, so that the model starts as it was."""

    def __init__(self, weight: Tensor, rank: int):
        super().__init__()
        outputs, inputs = weight.shape
        self.a = nn.Parameter(torch.randn(rank, inputs, device=weight.device) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def add_lora(model: nn.Module, rank: int) -> None:
    """Freeze the blocks of a model and give every matrix in them something small to learn."""
    for block in model.modules():
        if isinstance(block, Block):
            for linear in [part for part in block.modules() if isinstance(part, nn.Linear)]:
                linear.requires_grad_(False)
                parametrize.register_parametrization(linear, "weight", Delta(linear.weight, rank))


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model with its additions added for good: those of an ordinary one."""
    marker, state = ".parametrizations.weight.", {}
    for name, value in model.state_dict().items():
        owner, found, part = name.partition(marker)
        if not found:
            state[name] = value
        elif part == "original":
            linear = cast(nn.Linear, model.get_submodule(owner))
            state[f"{owner}.weight"] = linear.weight.detach()
    return state
