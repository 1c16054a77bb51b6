"""Multi-label metrics: average precision, and precision, recall and F1 at the thresholds of the model.

n: images; k: classes; m: distinct scores.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.inference.predictor import thresholds
from vitreous.model.options import MultiLabel
from vitreous.model.top_labels import class_probabilities
from vitreous.tasks.classification_metrics import ratio
from vitreous.tasks.target_metrics import TargetEvaluation


@dataclass(frozen=True)
class LabelMetrics:
    """Metrics of one class. Undefined metrics, such as the recall of a class without images, are None."""

    index: int
    name: str
    count: int  # images of this class
    threshold: float
    average_precision: float | None
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class WrongLabels:
    """An image with wrong labels: those that were missed, those that were predicted wrongly, and its loss."""

    index: int  # position in the source
    missed: list[str]
    wrong: list[str]
    loss: float


@dataclass(frozen=True)
class MultiLabelEvaluation(TargetEvaluation):
    """Evaluation of n images with any number of classes. Means over classes exclude classes without images."""

    def metrics(self) -> dict[str, Any]:
        """Return `map` (mean average precision), `f1` (mean over classes), `f1_micro`, `loss` and image counts.

        `loss` is the binary cross-entropy, averaged over images and classes.
        """
        counts, rows = self.counts(), [row for row in self.per_class() if row.count]
        hits, claims, positives = (int(numbers.sum()) for numbers in self._hits_claims_positives())
        return {
            "map": sum(row.average_precision or 0.0 for row in rows) / max(len(rows), 1),
            "f1": sum(row.f1 or 0.0 for row in rows) / max(len(rows), 1),
            "f1_micro": ratio(2 * hits, claims + positives) or 0.0,
            "loss": float(self.losses()[self.readable].double().mean()),
            **counts,
        }

    def predicted(self) -> Bool[Tensor, "n k"]:
        return class_probabilities(self.scores, self.config).double() >= thresholds(self.config)

    def losses(self) -> Float[Tensor, "n"]:
        return F.binary_cross_entropy_with_logits(self.scores, self.targets.float(), reduction="none").mean(1)

    def per_class(self) -> list[LabelMetrics]:
        """Return the metrics of all classes in order, including classes without images."""
        scores, truth = self.scores[self.readable].numpy(), self.targets[self.readable].numpy()
        limits, columns = thresholds(self.config).tolist(), self._hits_claims_positives()
        return [
            LabelMetrics(
                index,
                name,
                positives,
                limits[index],
                average_precision(scores[:, index], truth[:, index]),
                ratio(hits, claims),
                ratio(hits, positives),
                ratio(2 * hits, claims + positives),
            )
            for index, (name, hits, claims, positives) in enumerate(
                zip(self.names, *(column.tolist() for column in columns), strict=True)
            )
        ]

    def fitted(self) -> "MultiLabelEvaluation":
        """Return the evaluation with thresholds that maximise the F1 of each class on these images."""
        probabilities = class_probabilities(self.scores[self.readable], self.config).numpy()
        truth = self.targets[self.readable].numpy()
        best = tuple(best_threshold(p, t) for p, t in zip(probabilities.T, truth.T, strict=True))
        return replace(self, config=self.config.override({"output": MultiLabel(best)}))

    def worst(self, k: int) -> list[WrongLabels]:
        """Return the k images with the highest loss among those with wrong labels."""
        predicted, losses = self.predicted(), self.losses()
        wrong = (self.readable & (predicted != self.targets).any(1)).nonzero()[:, 0]
        found = []
        for row in wrong[losses[wrong].argsort(descending=True, stable=True)[:k]].tolist():
            pairs = list(zip(self.names, self.targets[row].tolist(), predicted[row].tolist(), strict=True))
            missed, extra = ([name for name, *pair in pairs if pair == kind] for kind in ([True, False], [False, True]))
            found.append(WrongLabels(int(self.indices[row]), missed, extra, float(losses[row])))
        return found

    def curve(self) -> tuple[Float[np.ndarray, "m"], Float[np.ndarray, "m"]]:
        """Return recall and precision over all classes (micro average), from the highest to the lowest score."""
        scores, truth = self.scores[self.readable].flatten().numpy(), self.targets[self.readable].flatten().numpy()
        hits, claims = cumulative_hits(scores, truth)
        return hits / max(hits[-1], 1), hits / claims

    def _hits_claims_positives(self) -> tuple[Int[Tensor, "k"], Int[Tensor, "k"], Int[Tensor, "k"]]:
        predicted, truth = self.predicted()[self.readable], self.targets[self.readable]
        return (predicted & truth).sum(0), predicted.sum(0), truth.sum(0)


def cumulative_hits(
    scores: Float[np.ndarray, "n"], truth: Bool[np.ndarray, "n"]
) -> tuple[Int[np.ndarray, "m"], Int[np.ndarray, "m"]]:
    """Return the numbers of true positives and of predictions at each distinct score, from the highest score."""
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.diff(scores[order]) != 0, True)[: len(scores)]  # equal scores cannot be separated
    return np.cumsum(truth[order])[last], np.flatnonzero(last) + 1


def average_precision(scores: Float[np.ndarray, "n"], truth: Bool[np.ndarray, "n"]) -> float | None:
    """Return the mean precision over the positive images, as scikit-learn does, or None if there are none."""
    if not truth.any():
        return None
    hits, claims = cumulative_hits(scores, truth)
    return float((np.diff(hits, prepend=0) * hits / claims).sum() / hits[-1])


def best_threshold(probabilities: Float[np.ndarray, "n"], truth: Bool[np.ndarray, "n"]) -> float:
    """Return the threshold with the highest F1, halfway between two probabilities, or 0.5 without positive images."""
    if not truth.any():
        return 0.5
    hits, claims = cumulative_hits(probabilities, truth)
    values = np.append(np.unique(probabilities)[::-1].astype(np.float64), 0.0)
    best = int(np.argmax(2 * hits / (claims + truth.sum())))
    return float((values[best] + values[best + 1]) / 2)
