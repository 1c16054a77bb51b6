"""Compares two models stage by stage. b: batch; c: channels; h, w: image height and width."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.model.protocol import Model


class Difference(NamedTuple):
    """Difference between two models after a stage. `scale` is the first model's largest absolute value."""

    stage: str
    largest: float
    mean: float
    scale: float


@torch.no_grad()
def compare(first: Model, second: Model, images: Float[Tensor, "b c h w"]) -> list[Difference]:
    """Compare the models stage by stage. Each model continues with its own outputs, so differences accumulate."""
    pairs = zip(first.stage_outputs(images), second.stage_outputs(images), strict=True)
    return [difference(stage, a, b) for (stage, a), (_, b) in pairs]


def difference(stage: str, a: Float[Tensor, "*shape"], b: Float[Tensor, "*shape"]) -> Difference:
    """Return the difference between two outputs of the same stage."""
    return Difference(stage, (a - b).abs().max().item(), (a - b).abs().mean().item(), a.abs().max().item())


def random_images(model: Model, count: int = 2) -> Float[Tensor, "b c h w"]:
    """Return random images at the model's image size, from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, model.config.channels, *model.config.image_size, generator=generator)
