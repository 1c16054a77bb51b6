"""How good a classifier is: accuracy, loss, calibration, each class on its own, and what it takes for what.

Of each picture's scores only what the figures need is kept: the five best classes, the probability of the first and
the loss. That is 56 bytes a picture for any number of classes; the scores of 100,000 pictures for 21,000 classes would
be 8 GB. So a large evaluation digests each batch where its scores are and joins the digests (`Evaluation.join`).

n: pictures; k: best classes kept, at most 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

UNREADABLE = -1  # the label of a picture that could not be read


@dataclass(frozen=True)
class ClassFigures:
    """One class. A figure is None where it has no meaning: recall without pictures, precision without predictions."""

    index: int
    name: str
    count: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class Confused:
    """`count` pictures of the class `true` were taken for `predicted`; `share` is their part of all of that class."""

    true: int
    predicted: int
    count: int
    share: float


@dataclass(frozen=True)
class Wrong:
    """A mistake: which picture, in the order of evaluation, and the probability that the model gave its answer."""

    index: int
    true: int
    predicted: int
    probability: float


@dataclass(frozen=True)
class Calibration:
    """Pictures sorted into equal bins of confidence (above the left edge, up to and including the right one).

    Empty bins have a confidence and an accuracy of 0. `ece`: the mean distance of the two over all pictures.
    """

    edges: Float[Tensor, "edges"]  # one more than bins
    counts: Int[Tensor, "bins"]
    confidence: Float[Tensor, "bins"]
    accuracy: Float[Tensor, "bins"]
    ece: float


@dataclass(frozen=True)
class Evaluation:
    """What a model answered to n labelled pictures. Made by `of`, batch by batch by `of` and `join`.

    Unreadable pictures (label -1) are counted and left out of every figure. Of equal scores the lower class wins.

    >>> scores = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 0.0], [1.0, 0.0, 4.0], [0.0, 0.0, 0.0]])
    >>> evaluation = Evaluation.of(scores, torch.tensor([0, 1, 0, -1]), names=("ant", "bee", "cat"))
    >>> figures = evaluation.metrics()
    >>> round(figures["top1"], 2), figures["count"], figures["unreadable"]
    (0.67, 3, 1)
    >>> evaluation.most_confused(1)
    [Confused(true=0, predicted=2, count=1, share=0.5)]
    """

    labels: Int[Tensor, "n"]
    best: Int[Tensor, "n k"]  # the classes with the highest scores, highest first
    confidence: Float[Tensor, "n"]  # the probability of the first of them
    losses: Float[Tensor, "n"]  # the cross-entropy of each picture
    num_classes: int
    names: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls, logits: Float[Tensor, "n classes"], labels: Int[Tensor, "n"], names: Sequence[str] | None = None
    ) -> "Evaluation":
        """From scores, on any device and in any precision; what is kept is on the CPU, in float32."""
        num_classes = logits.shape[1]
        labels = labels.to(logits.device, torch.int64)
        if names is not None and len(names) != num_classes:
            raise ValueError(f"names has {len(names)} entries, but the scores are of {num_classes} classes")
        if bool(((labels < UNREADABLE) | (labels >= num_classes)).any()):
            raise ValueError(f"labels must be from 0 to {num_classes - 1}, or {UNREADABLE} for an unreadable picture")
        readable = labels != UNREADABLE
        logits = torch.where(readable[:, None], logits.float(), 0)  # whatever stands there shall not matter
        broken = int((~logits.isfinite().all(1)).sum())
        if broken:
            raise ValueError(f"the scores of {broken} of {len(labels)} pictures are infinite or not a number")
        log_probabilities = logits.log_softmax(1)
        best = _best(logits, min(5, num_classes))
        confidence = log_probabilities.gather(1, best[:, :1])[:, 0].exp()
        losses = F.nll_loss(log_probabilities, labels, reduction="none", ignore_index=UNREADABLE)
        return cls(
            labels.cpu(),
            best.cpu(),
            confidence.cpu(),
            losses.cpu(),
            num_classes,
            None if names is None else tuple(names),
        )

    @classmethod
    def join(cls, parts: Sequence["Evaluation"]) -> "Evaluation":
        """The evaluation of all pictures of all parts, in their order."""
        if not parts:
            raise ValueError("there is nothing to join: no batch was evaluated")
        first = parts[0]
        if any((part.num_classes, part.names) != (first.num_classes, first.names) for part in parts):
            raise ValueError("evaluations of different classes cannot be joined")
        fields = ("labels", "best", "confidence", "losses")
        joined = {field: torch.cat([getattr(part, field) for part in parts]) for field in fields}
        return cls(**joined, num_classes=first.num_classes, names=first.names)

    def name(self, index: int) -> str:
        return self.names[index] if self.names is not None else str(index)

    @property
    def predicted(self) -> Int[Tensor, "n"]:
        return self.best[:, 0]

    @property
    def readable(self) -> Shaped[Tensor, "n"]:
        return self.labels != UNREADABLE

    def metrics(self) -> dict[str, float]:
        """`top1`, `top5`, `loss`, `ece` and how many pictures they are of. Fractions, not percent."""
        self._check_not_empty()
        hits = self.best == self.labels[:, None]  # an unreadable picture is never a hit
        count = int(self.readable.sum())
        return {
            "top1": int(hits[:, 0].sum()) / count,
            "top5": int(hits.sum()) / count,
            "loss": float(self.losses.double().sum()) / count,
            "ece": self.calibration().ece,
            "count": count,
            "unreadable": len(self.labels) - count,
        }

    def calibration(self, bins: int = 15) -> Calibration:
        """Does it know what it knows? Confidence against accuracy (Guo et al. 2017, with their 15 bins)."""
        self._check_not_empty()
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
        confidence = self.confidence[self.readable].double()
        right = (self.predicted == self.labels)[self.readable].double()
        place = torch.bucketize(confidence, edges[1:-1])
        counts = torch.bincount(place, minlength=bins)
        sure = torch.bincount(place, confidence, minlength=bins)
        hits = torch.bincount(place, right, minlength=bins)
        ece = float((sure - hits).abs().sum()) / len(place)
        return Calibration(edges, counts, sure / counts.clamp(min=1), hits / counts.clamp(min=1), ece)

    def per_class(self) -> list[ClassFigures]:
        """Every class in its order, also those without a picture."""
        true, predicted = self._answers()
        counts, claims, hits = (
            torch.bincount(which, minlength=self.num_classes).tolist()
            for which in (true, predicted, true[true == predicted])
        )
        return [
            ClassFigures(
                index,
                self.name(index),
                count,
                precision=hit / claimed if claimed else None,
                recall=hit / count if count else None,
                f1=2 * hit / (count + claimed) if count + claimed else None,
            )
            for index, (count, claimed, hit) in enumerate(zip(counts, claims, hits, strict=True))
        ]

    def confusion(self) -> Int[Tensor, "classes classes"]:
        """Pictures of class (row) that were taken for class (column). Dense: for thousands of classes it is large."""
        true, predicted = self._answers()
        cells = torch.bincount(true * self.num_classes + predicted, minlength=self.num_classes**2)
        return cells.view(self.num_classes, self.num_classes)

    def most_confused(self, k: int) -> list[Confused]:
        """The k mistakes that are made most often; of equally frequent ones, first the larger share of its class."""
        true, predicted = self._answers()
        wrong = true != predicted
        cells, counts = torch.unique(true[wrong] * self.num_classes + predicted[wrong], return_counts=True)
        totals = torch.bincount(true, minlength=self.num_classes)
        pairs = []
        for cell, count in zip(cells.tolist(), counts.tolist(), strict=True):
            row, column = divmod(cell, self.num_classes)
            pairs.append(Confused(row, column, count, count / int(totals[row])))
        return sorted(pairs, key=lambda pair: (-pair.count, -pair.share))[:k]

    def worst(self, k: int) -> list[Wrong]:
        """The k mistakes that were made with the highest confidence."""
        wrong = (self.readable & (self.predicted != self.labels)).nonzero()[:, 0]
        order = wrong[self.confidence[wrong].argsort(descending=True, stable=True)[:k]]
        rows = zip(order, self.labels[order], self.predicted[order], self.confidence[order], strict=True)
        return [Wrong(int(index), int(true), int(guess), float(sure)) for index, true, guess, sure in rows]

    def _answers(self) -> tuple[Int[Tensor, "m"], Int[Tensor, "m"]]:
        """Labels and predictions of the pictures that could be read."""
        return self.labels[self.readable], self.predicted[self.readable]

    def _check_not_empty(self) -> None:
        if not bool(self.readable.any()):
            raise ValueError(f"there is nothing to measure: none of the {len(self.labels)} pictures could be read")


def _best(logits: Float[Tensor, "n classes"], k: int) -> Int[Tensor, "n k"]:
    """The k highest classes, the lower one first where they are equal, which torch.topk does not promise."""
    logits = logits.clone()
    best = []
    for _ in range(k):
        best.append(logits.argmax(1))
        logits.scatter_(1, best[-1][:, None], -torch.inf)
    return torch.stack(best, dim=1)
