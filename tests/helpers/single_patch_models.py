"""Models whose output depends on one patch by construction, and a model of every kind."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import AttentionPool, GlobalAverage, ResNetStem
from vitreous.model.pooling import AttentionPooling
from vitreous.model.position import Learned1dPosition
from vitreous.model.vit import ViT

PLACE, DECOY = (1, 2), (2, 0)  # row and column of the patch that matters, and of a decoy
CONTENT, FLAG, SIGNAL, ANCHOR = 0, 1, 2, 3  # channels of a token; the anchor makes the norms nearly constant
SHOWN = 1  # the class that the patch supports

# All have a grid of 3 x 4 patches of 8 x 8 pixels.
KINDS: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers": {"registers": 4},
    "distilled": {"distillation_token": True},
    "average": {"class_token": False, "pool": GlobalAverage()},
    "average, normed after": {"class_token": False, "pool": GlobalAverage("after")},
    "attention pooling": {"class_token": False, "pool": AttentionPool()},
    "attention pooling and class token": {"pool": AttentionPool()},
    "hybrid": {"stem": ResNetStem(stages=(), width=32), "patch_size": (2, 2)},
}


def of_kind(small: ViTConfig, kind: str) -> ViT:
    """Build a newly initialised model in evaluation mode."""
    return build_vit(dataclasses.replace(small, **KINDS[kind])).eval()


@torch.no_grad()
def planted(small: ViTConfig, kind: str) -> ViT:
    """Build a model whose first layer attends to one patch. The head uses only the brightness of this patch."""
    model = of_kind(small, kind)
    width, heads = small.width, small.num_heads
    for block in model.encoder.blocks:
        for parameter in [*block.attention.parameters(), *block.mlp.parameters()]:
            parameter.zero_()
    model.patches.projection.weight.zero_()
    model.patches.projection.weight[CONTENT] = 4 / model.patches.projection.weight[0].numel()
    for parameter in [*model.prefix.parameters(), *model.position.parameters(), *model.head.parameters()]:
        parameter.zero_()
    assert isinstance(model.position, Learned1dPosition)
    model.position.table[*PLACE, FLAG] = 10.0
    model.position.table[..., ANCHOR] = 10.0
    for token in model.prefix.parameters():
        token[..., ANCHOR] = 10.0
    attention = model.encoder.blocks[0].attention
    attention.q.bias.view(heads, -1)[:, 0] = 6.0  # all tokens query ...
    attention.k.weight.view(heads, -1, width)[:, 0, FLAG] = 1.0  # ... the flag ...
    attention.v.weight.view(heads, -1, width)[:, 0, CONTENT] = 1.0  # ... and receive the content
    attention.output.weight.view(width, heads, -1)[SIGNAL, :, 0] = 1.0
    assert not attention.q.weight.any()
    if isinstance(model.pool, AttentionPooling):
        for parameter in [*model.pool.attention.parameters(), *model.pool.mlp.parameters()]:
            parameter.zero_()
        model.pool.attention.v.weight.copy_(torch.eye(width))
        model.pool.attention.output.weight.copy_(torch.eye(width))
    for head in (model.head, model.distillation_head):
        if head is not None:
            head.weight.zero_()
            head.weight[SHOWN, SIGNAL] = 1.0
            head.bias.zero_()
    return model


def sample_image() -> Tensor:
    """Return a dark image with some texture that is bright in the patch that matters and in the decoy."""
    generator = torch.Generator().manual_seed(1)
    pixels = 0.5 * torch.rand(1, 3, 24, 32, generator=generator)
    for row, column in (PLACE, DECOY):
        pixels[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] *= 6
    return pixels


def peak(values: Tensor) -> tuple[int, int]:
    """Return the row and column of the largest value."""
    row, column = divmod(int(values.argmax()), values.shape[-1])
    return row, column
