"""What a run answers for each picture: labels or features, or why there are none."""

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class Label:
    """One class and how probable it is."""

    label: str
    index: int
    probability: float


@dataclass(frozen=True)
class Prediction:
    """What a picture shows, the most probable first; or, where it could not be read, why."""

    name: str
    predictions: tuple[Label, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Embedding:
    """A picture's features; or, where it could not be read, why."""

    name: str
    vector: Tensor | None = None  # [d], float32, on the CPU
    error: str | None = None


class Throughput(NamedTuple):
    """Of the last run, from its first picture to its last answer, with all that was done to them in between."""

    images: int
    seconds: float

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds if self.seconds else 0.0
