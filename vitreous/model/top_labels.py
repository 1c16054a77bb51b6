"""Class names of a model, class probabilities, and the top-k labels of an image."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from vitreous.model.base_config import ModelConfig
from vitreous.model.options import MultiLabel


@dataclass(frozen=True)
class Label:
    """Class label with its probability."""

    label: str
    index: int
    probability: float


def class_names(config: ModelConfig) -> tuple[str, ...]:
    """Return the labels in a config, or "class 0", "class 1", ... if the config has no labels."""
    return config.labels or tuple(f"class {i}" for i in range(config.num_classes))


def class_probabilities(logits: Float[Tensor, "*b classes"], config: ModelConfig) -> Float[Tensor, "*b classes"]:
    """Return the softmax of the logits, at the calibrated temperature if the model has been calibrated.

    If an image can have several classes, return the sigmoid instead.
    """
    if isinstance(config.output, MultiLabel):
        return logits.sigmoid()
    temperature = 1.0 if config.calibration is None else config.calibration.temperature
    return (logits / temperature).softmax(dim=-1)


def top_classes(scores: Float[Tensor, "b classes"], k: int) -> Int[Tensor, "b k"]:
    """Return the k classes with the highest scores, highest first. Ties are broken in favour of the lower index."""
    order = scores.sort(dim=1, descending=True, stable=True).indices
    return order[:, :k].contiguous()  # a copy, so that the whole order is not kept in memory


def top_labels(probabilities: Float[Tensor, "b classes"], labels: Sequence[str], k: int) -> list[tuple[Label, ...]]:
    """Return the k most probable classes of each row, most probable first. NaN ranks above every number."""
    best = top_classes(probabilities, k)
    return [
        tuple(Label(labels[index], index, probability) for index, probability in zip(*row, strict=True))
        for row in zip(best.tolist(), probabilities.gather(1, best).tolist(), strict=True)
    ]
