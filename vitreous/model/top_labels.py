"""Class names of a model and its top-k labels for an image."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from vitreous.model.base_config import ModelConfig


@dataclass(frozen=True)
class Label:
    """Class label with its probability."""

    label: str
    index: int
    probability: float


def class_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the labels in a config, or "class 0", "class 1", ... if it has none."""
    return config.labels or tuple(f"class {i}" for i in range(config.num_classes))


def top_labels(probabilities: Float[Tensor, "b classes"], labels: Sequence[str], k: int) -> list[tuple[Label, ...]]:
    """Return the k most probable classes of each row, most probable first. NaN ranks above every number."""
    best = probabilities.topk(min(k, probabilities.shape[1]))
    return [
        tuple(Label(labels[index], index, probability) for index, probability in zip(*row, strict=True))
        for row in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
