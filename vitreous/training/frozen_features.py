"""Pooled features of a frozen encoder, computed once, as the head receives them during evaluation.

n: images; d: feature width.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.common.distributed import World
from vitreous.common.progress import ProgressLines
from vitreous.data.loader import Batch, Request
from vitreous.data.sources.base import Source, pick
from vitreous.evaluation.features import extract_rows
from vitreous.inference.predictor import Embedder
from vitreous.model.protocol import Model
from vitreous.tasks.config import TrainConfig


class FrozenFeatures(NamedTuple):
    """Features and labels of all images of a source."""

    features: Float[Tensor, "n d"]  # float32; zero for unreadable images
    labels: Int[Tensor, "n"]  # -1 if the image is unreadable
    problems: list[str]  # unreadable images, each with the reason

    def to(self, device: torch.device) -> "FrozenFeatures":
        return FrozenFeatures(self.features.to(device), self.labels.to(device), self.problems)

    def batch(self, request: Request, problems: Sequence[str] = ()) -> Batch:
        """Return a batch that contains features instead of images."""
        which = request.indices.to(self.features.device, non_blocking=True)
        none = torch.zeros(len(which), 0, 0, 0, dtype=torch.uint8)
        return Batch(none, self.labels[which], *request[1:], request.epoch, list(problems), None, self.features[which])


class MirroredEmbedder(Embedder):
    """Embedder that mirrors every image."""

    def input(self, pixels: Tensor) -> Tensor:
        return super().input(pixels).flip(-1)


def frozen_features(
    model: Model,
    source: Source,
    config: TrainConfig,
    world: World,
    precision: torch.dtype,
    log: Callable[[str], None],
    mirrored: bool = False,
) -> FrozenFeatures:
    """Compute the features of all images. All processes must call this, and each computes a slice.

    `log` is called with lines that report the progress.
    """
    assert isinstance(config.batch_size, int)
    kind = MirroredEmbedder if mirrored else Embedder
    half = precision != torch.float32
    predictor = kind(
        model,
        world.device,
        batch_size=max(config.batch_size // world.size, 1),
        precision="bf16" if half else "fp32",
        workers=config.workers,
    )
    images = f"{len(source):,} {'mirrored ' if mirrored else ''}images"
    log(f"computing features of {images} with the frozen encoder")
    local = extract_rows(
        predictor, pick(source, np.arange(world.rank, len(source), world.size)), progress=ProgressLines(log)
    )
    features = torch.zeros(len(source), predictor.width)
    labels, problems = torch.zeros(len(source), dtype=torch.int64), []
    for rank, part in enumerate(world.gather(local)):
        features[rank :: world.size], labels[rank :: world.size] = part.features, part.labels
        problems += part.problems
    return FrozenFeatures(features, labels, problems)
