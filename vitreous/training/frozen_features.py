"""Features of a frozen encoder, computed once: pooled features as the head sees them in evaluation.

n: images; d: width of the features.
"""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.common.text import one_line
from vitreous.data.loader import Batch, Request
from vitreous.data.sources.base import Source, pick
from vitreous.inference.engine import NOT_A_NUMBER
from vitreous.inference.predictor import Predictor
from vitreous.model.protocol import Model
from vitreous.tasks.config import TrainConfig
from vitreous.training.distributed import World

REPORTED = 20.0  # seconds between progress reports


class FrozenFeatures(NamedTuple):
    """Features and labels of all images of a source."""

    features: Float[Tensor, "n d"]  # float32; zero for unreadable images
    labels: Int[Tensor, "n"]  # -1 if the image is unreadable
    problems: list[str]  # unreadable images, each with the reason

    def to(self, device: torch.device) -> "FrozenFeatures":
        return FrozenFeatures(self.features.to(device), self.labels.to(device), self.problems)

    def batch(self, request: Request, problems: Sequence[str] = ()) -> Batch:
        """Return a batch of features, without images."""
        which = request.indices.to(self.features.device, non_blocking=True)
        none = torch.zeros(len(which), 0, 0, 0, dtype=torch.uint8)
        return Batch(none, self.labels[which], *request[1:], request.epoch, list(problems), None, self.features[which])


class MirroredPredictor(Predictor):
    """Predictor that mirrors every image."""

    def input(self, pixels: Tensor) -> Tensor:
        return super().input(pixels).flip(-1)


def frozen_features(
    model: Model,
    source: Source,
    config: TrainConfig,
    world: World,
    precision: torch.dtype,
    say: Callable[[str], None],
    mirrored: bool = False,
) -> FrozenFeatures:
    """Compute the features of all images. Each process computes a part; all processes must call this.

    `say` prints a line of progress.
    """
    assert isinstance(config.batch_size, int)
    kind = MirroredPredictor if mirrored else Predictor
    half = precision != torch.float32
    predictor = kind(
        model,
        world.device,
        batch_size=max(config.batch_size // world.size, 1),
        precision="bf16" if half else "fp32",
        workers=config.workers,
    )
    mine = np.arange(world.rank, len(source), world.size)
    what = f"{len(source):,} {'mirrored ' if mirrored else ''}images"
    say(f"computing the features of {what} once, with the frozen encoder")
    features, labels, problems = torch.zeros(len(mine), predictor.width), source.labels[mine].copy(), []
    started = reported = time.monotonic()
    for row, result in enumerate(predictor.stream_embeddings(pick(source, mine))):
        if result.vector is not None:
            features[row] = result.vector
        elif result.error == NOT_A_NUMBER:  # a problem with the model, not with the image
            raise ValueError(f"{result.name}: {NOT_A_NUMBER}")
        else:
            labels[row] = -1
            problems.append(f"{one_line(result.name)}: {result.error}")
        if (now := time.monotonic()) - reported > REPORTED:
            done, reported = (row + 1) * world.size, now
            say(f"  {done:,} of {what}, {done / (now - started):,.0f} images/s")
    parts = world.gather((features, labels, problems))
    everything = FrozenFeatures(
        torch.zeros(len(source), predictor.width), torch.zeros(len(source), dtype=torch.int64), []
    )
    for rank, (some, these, wrong) in enumerate(parts):
        everything.features[rank :: world.size] = some
        everything.labels[rank :: world.size] = torch.from_numpy(these)
        everything.problems.extend(wrong)
    return everything
