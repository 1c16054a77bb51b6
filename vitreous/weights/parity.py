"""Compares two models stage by stage. b: batch; c: channels; h, w: image height and width."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.model.vit import ViT


class Difference(NamedTuple):
    """Difference between two models after a stage. `scale` is the first model's largest absolute value."""

    stage: str
    largest: float
    mean: float
    scale: float


@torch.no_grad()
def compare(one: ViT, other: ViT, images: Float[Tensor, "b c h w"]) -> list[Difference]:
    """Compare the models stage by stage. Each continues from its own outputs, so differences accumulate."""
    return [
        Difference(stage, (a - b).abs().max().item(), (a - b).abs().mean().item(), a.abs().max().item())
        for (stage, a), (_, b) in zip(stages(one, images), stages(other, images), strict=True)
    ]


def stages(model: ViT, images: Float[Tensor, "b c h w"]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and tensor of each stage: patches, tokens with positions, blocks, features and output."""
    patches, grid = model.patchify(images)
    yield "patches", patches
    tokens, layout = model.embed(patches, grid)
    yield "tokens and positions", tokens
    for layer, (_, after) in enumerate(model.encoder.walk(tokens, layout, model.position)):
        yield f"block {layer}", after
    features = model.encode(tokens, layout)
    yield "features", torch.cat([features.prefix, features.patches], dim=1)
    yield "logits" if model.config.num_classes else "output", model.classify(features)


def random_images(model: ViT, count: int = 2) -> Float[Tensor, "b c h w"]:
    """Return random images at the model's image size, from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, model.config.channels, *model.config.image_size, generator=generator)
