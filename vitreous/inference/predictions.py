"""Results of inference on one image: labels or features, or the error if it could not be read."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from vitreous.model.base_config import ModelConfig


@dataclass(frozen=True)
class Label:
    """A class and its probability."""

    label: str
    index: int
    probability: float


@dataclass(frozen=True)
class Prediction:
    """Labels of an image, most probable first; or the error if it could not be read."""

    name: str
    predictions: tuple[Label, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Embedding:
    """Features of an image; or the error if it could not be read."""

    name: str
    vector: Tensor | None = None  # [d], float32, on the CPU
    error: str | None = None


class Throughput(NamedTuple):
    """Speed of the last run, from reading the first image to the last result."""

    images: int
    seconds: float

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0


def class_names(config: ModelConfig) -> tuple[str, ...]:
    """The labels of a model's config, or "class 0", "class 1", ... if it has none."""
    return config.labels or tuple(f"class {i}" for i in range(config.num_classes))


def top_labels(probabilities: Float[Tensor, "b classes"], labels: Sequence[str], k: int) -> list[tuple[Label, ...]]:
    """The k most probable classes of each row, most probable first. NaN ranks above every number.

    >>> import torch
    >>> top_labels(torch.tensor([[0.25, 0.75]]), ("cat", "dog"), k=1)
    [(Label(label='dog', index=1, probability=0.75),)]
    """
    best = probabilities.topk(min(k, probabilities.shape[1]))
    return [
        tuple(Label(labels[index], index, probability) for index, probability in zip(*row, strict=True))
        for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
