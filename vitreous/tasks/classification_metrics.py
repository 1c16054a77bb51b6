"""Classification metrics: accuracy, loss, calibration, per-class metrics and confusion.

Logits are reduced batch by batch on their device. Only 64 bytes per image are kept, regardless of the number of
classes, unless the logits are needed to calibrate the model.

n: images; k: top classes that are kept, at most 5.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from vitreous.common.progress import Report, silent, tracked
from vitreous.common.text import one_line
from vitreous.data.loader import Batch
from vitreous.data.sources.base import Source, pick
from vitreous.inference.engine import NOT_A_NUMBER, SourceImage
from vitreous.inference.fit_calibration import calibrate_scores, cross_fitted, lower_quantiles
from vitreous.inference.forward_pass import ONE_CLASS, class_scores, evaluation_mode, mixed_precision, model_input
from vitreous.inference.predictor import Embedder, Predictor
from vitreous.model.calibration import Calibration
from vitreous.model.familiarity import Familiarity
from vitreous.model.options import OutputConfig, Preprocessing
from vitreous.model.protocol import ModelConfig
from vitreous.model.top_labels import top_classes

# Training images for the familiarity: 2 per dimension of the features, at most 2,000, but 10 per class if that is more
PER_DIMENSION, MOST_FEATURES, MOST_PER_CLASS = 2, 2000, 10
MOST_OUTPUTS = 2**24  # maximum number of logits and features to keep, e.g. for 9,500 images, 1,000 classes, width 768
UNREADABLE = -1  # label of an unreadable image


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class. Recall is None if the class has no images; precision is None if it is never predicted."""

    index: int
    name: str
    count: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class Confused:
    """A pair of confused classes, and the number of images of class `true` that were classified as `predicted`."""

    true: int
    predicted: int
    count: int
    fraction: float  # as a fraction of all images of class `true`


@dataclass(frozen=True)
class WrongPrediction:
    """A misclassified image and the probability of the predicted class."""

    index: int  # row in the evaluation
    true: int
    predicted: int
    probability: float


@dataclass(frozen=True)
class Reliability:
    """Mean confidence and accuracy in each confidence bin. `ece` is the expected calibration error."""

    edges: Float[Tensor, "edges"]  # bin edges, one more than the number of bins
    counts: Int[Tensor, "bins"]
    confidence: Float[Tensor, "bins"]
    accuracy: Float[Tensor, "bins"]
    ece: float


@dataclass(frozen=True)
class Evaluation:
    """Predictions for n images. Metrics exclude unreadable images (label -1). Ties favour the lower class index."""

    labels: Int[Tensor, "n"]
    best: Int[Tensor, "n k"]  # top classes, highest score first
    confidence: Float[Tensor, "n"]  # probability of the top class
    losses: Float[Tensor, "n"]  # cross-entropy of each image
    indices: Int[Tensor, "n"]  # positions of the images in their source
    num_classes: int
    names: tuple[str, ...] | None = None
    problems: list[str] = field(default_factory=list)  # unreadable images, each with the reason
    calibrated: Float[Tensor, "n"] | None = None  # calibrated probability of the top class
    logits: Float[Tensor, "n classes"] | None = None  # kept to calibrate the model
    features: Float[Tensor, "n d"] | None = None  # kept to calibrate the model
    cross_fitted: bool = False  # True if the model was calibrated on these images (see `calibrate`)

    @classmethod
    def of(
        cls,
        logits: Float[Tensor, "n classes"],
        labels: Int[Tensor, "n"],
        names: Sequence[str] | None = None,
        indices: Int[Tensor, "n"] | None = None,
        problems: Sequence[str] = (),
        temperature: float | None = None,
        keep_logits: bool = False,
        features: Float[Tensor, "n d"] | None = None,
    ) -> "Evaluation":
        """Evaluate logits on any device and in any precision. The result is on the CPU in float32.

        `temperature` is the calibrated temperature of the model, or None if the model is not calibrated. `features` are
        kept.
        """
        num_classes = logits.shape[1]
        labels = labels.to(logits.device, torch.int64)
        if names is not None and len(names) != num_classes:
            raise ValueError(f"names must have one entry per class ({num_classes}), got {len(names)}")
        if bool(((labels < UNREADABLE) | (labels >= num_classes)).any()):
            allowed = f"from 0 to {num_classes - 1}, or {UNREADABLE} for an unreadable image"
            raise ValueError(f"labels must be {allowed}, got {int(labels.min())} to {int(labels.max())}")
        readable = labels != UNREADABLE
        logits = torch.where(readable[:, None], logits.float(), 0)  # logits of unreadable images are arbitrary
        broken = int((~logits.isfinite().all(1)).sum())
        if broken:
            raise ValueError(f"the logits of {broken} of {len(labels)} images are infinite or NaN")
        log_probabilities = logits.log_softmax(1)
        best = top_classes(logits, 5)
        confidence = log_probabilities.gather(1, best[:, :1])[:, 0].exp()
        losses = F.nll_loss(log_probabilities, labels, reduction="none", ignore_index=UNREADABLE)
        places = torch.arange(len(labels)) if indices is None else indices.cpu()
        known = None if names is None else tuple(names)
        scaled = None if temperature is None else (logits / temperature).softmax(1).gather(1, best[:, :1])[:, 0].cpu()
        kept = logits.cpu() if keep_logits else None
        found = (labels.cpu(), best.cpu(), confidence.cpu(), losses.cpu(), places)
        return cls(*found, num_classes, known, list(problems), scaled, kept, features)

    @classmethod
    def join(cls, parts: Sequence["Evaluation"]) -> "Evaluation":
        """Merge evaluations in the order of their indices, counting each image once."""
        if not parts:
            raise ValueError("cannot merge evaluations: no batches were evaluated")
        first = parts[0]
        if any((part.num_classes, part.names) != (first.num_classes, first.names) for part in parts):
            counts = sorted({part.num_classes for part in parts})
            raise ValueError(f"cannot merge evaluations with different classes (numbers of classes: {counts})")
        fields = ["labels", "best", "confidence", "losses", "indices"]
        fields += [name for name in ("calibrated", "logits", "features") if getattr(first, name) is not None]
        joined = {field: torch.cat([getattr(part, field) for part in parts]) for field in fields}
        order = torch.from_numpy(np.unique(joined["indices"].numpy(), return_index=True)[1])
        problems = dict.fromkeys(problem for part in parts for problem in part.problems)
        rows: dict[str, Any] = {field: tensor[order] for field, tensor in joined.items()}
        return cls(**rows, num_classes=first.num_classes, names=first.names, problems=list(problems))

    def name(self, index: int) -> str:
        return self.names[index] if self.names is not None else str(index)

    @property
    def predicted(self) -> Int[Tensor, "n"]:
        return self.best[:, 0]

    @property
    def readable(self) -> Shaped[Tensor, "n"]:
        return self.labels != UNREADABLE

    def calibrate(self) -> tuple[Calibration, "Evaluation"]:
        """Fit a calibration to the kept logits. Also return the evaluation with cross-fitted probabilities.

        Each half of the images is scaled with the temperature fitted to the other half. With a temperature fitted to
        the same images, the calibration error would be too optimistic.
        """
        self._check_not_empty()
        assert self.logits is not None
        logits, labels = self.logits[self.readable], self.labels[self.readable]
        calibrated = self.confidence.clone()
        calibrated[self.readable] = cross_fitted(logits, labels)
        evaluation = replace(self, calibrated=calibrated, logits=None, features=None, cross_fitted=True)
        return calibrate_scores(logits, labels), evaluation

    def metrics(self) -> dict[str, Any]:
        """Return `top1`, `top5`, `balanced_accuracy`, `loss`, `ece` and image counts. Accuracies are fractions.

        `balanced_accuracy` is the mean recall of the classes that have images. `ece_calibrated` is included if the
        model is calibrated.
        """
        self._check_not_empty()
        hits = self.best == self.labels[:, None]  # unreadable images never count as correct
        count = int(self.readable.sum())
        return {
            "top1": int(hits[:, 0].sum()) / count,
            "top5": int(hits.sum()) / count,
            "balanced_accuracy": self.balanced_accuracy(),
            "loss": float(self.losses.double().sum()) / count,
            "ece": self.calibration().ece,
            **({} if self.calibrated is None else {"ece_calibrated": self.calibration(calibrated=True).ece}),
            "count": count,
            "unreadable": len(self.labels) - count,
        }

    def calibration(self, bins: int = 15, calibrated: bool = False) -> Reliability:
        """Compare confidence with accuracy in bins of equal width (Guo et al. 2017).

        calibrated: Use the calibrated confidence, which requires a calibrated model.
        """
        self._check_not_empty()
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
        known = self.calibrated if calibrated else self.confidence
        assert known is not None, "the model is not calibrated"
        confidence = known[self.readable].double()
        right = (self.predicted == self.labels)[self.readable].double()
        place = torch.bucketize(confidence, edges[1:-1])
        counts = torch.bincount(place, minlength=bins)
        sure = torch.bincount(place, confidence, minlength=bins)
        hits = torch.bincount(place, right, minlength=bins)
        ece = float((sure - hits).abs().sum()) / len(place)
        return Reliability(edges, counts, sure / counts.clamp(min=1), hits / counts.clamp(min=1), ece)

    def balanced_accuracy(self) -> float:
        true, predicted = self._pairs()
        counts, hits = (
            torch.bincount(which, minlength=self.num_classes).double() for which in (true, true[true == predicted])
        )
        return float((hits / counts)[counts > 0].mean())

    def per_class(self) -> list[ClassMetrics]:
        """Return the metrics of all classes in order, including classes without images."""
        true, predicted = self._pairs()
        counts, claims, hits = (
            torch.bincount(which, minlength=self.num_classes).tolist()
            for which in (true, predicted, true[true == predicted])
        )
        return [
            ClassMetrics(
                index, self.name(index), count, ratio(hit, claimed), ratio(hit, count), ratio(2 * hit, count + claimed)
            )
            for index, (count, claimed, hit) in enumerate(zip(counts, claims, hits, strict=True))
        ]

    def confusion(self) -> Int[Tensor, "classes classes"]:
        """Return the confusion matrix: rows are true classes, columns are predicted classes."""
        true, predicted = self._pairs()
        cells = torch.bincount(true * self.num_classes + predicted, minlength=self.num_classes**2)
        return cells.view(self.num_classes, self.num_classes)

    def most_confused(self, k: int) -> list[Confused]:
        """Return the k most frequently confused class pairs. Pairs with the same count are sorted by `fraction`."""
        true, predicted = self._pairs()
        wrong = true != predicted
        cells, counts = torch.unique(true[wrong] * self.num_classes + predicted[wrong], return_counts=True)
        totals = torch.bincount(true, minlength=self.num_classes)
        pairs = []
        for cell, count in zip(cells.tolist(), counts.tolist(), strict=True):
            row, column = divmod(cell, self.num_classes)
            pairs.append(Confused(row, column, count, count / int(totals[row])))
        return sorted(pairs, key=lambda pair: (-pair.count, -pair.fraction))[:k]

    def worst(self, k: int) -> list[WrongPrediction]:
        """Return the k misclassified images with the highest confidence."""
        wrong = (self.readable & (self.predicted != self.labels)).nonzero()[:, 0]
        order = wrong[self.confidence[wrong].argsort(descending=True, stable=True)[:k]]
        rows = zip(order, self.labels[order], self.predicted[order], self.confidence[order], strict=True)
        return [WrongPrediction(int(index), int(true), int(guess), float(p)) for index, true, guess, p in rows]

    def _pairs(self) -> tuple[Int[Tensor, "m"], Int[Tensor, "m"]]:
        return self.labels[self.readable], self.predicted[self.readable]

    def _check_not_empty(self) -> None:
        if not bool(self.readable.any()):
            raise ValueError(f"nothing to evaluate: none of the {len(self.labels)} images could be read")


def ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def classify_batches(
    module: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    preprocessing: Preprocessing,
    classes: Sequence[str],
    precision: torch.dtype = torch.float32,
    flip: bool = False,
) -> Evaluation:
    """Evaluate a module on batches from a loader. `flip` averages the predictions for an image and its mirror image."""
    scored = batch_scores(module, batches, device, preprocessing, precision, flip)
    parts = [Evaluation.of(scores, batch.labels, classes, batch.indices, batch.problems) for batch, scores in scored]
    return Evaluation.join(parts)


def batch_scores(
    module: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    preprocessing: Preprocessing,
    precision: torch.dtype = torch.float32,
    flip: bool = False,
    output: OutputConfig = ONE_CLASS,
) -> Iterator[tuple[Batch, Float[Tensor, "b classes"]]]:
    """Yield each batch with its scores."""
    with evaluation_mode(module):
        for batch in batches:
            images = model_input(batch.images, device, preprocessing)
            with mixed_precision(device, precision):
                scores = class_scores(module, images, flip, output)
            yield batch, scores


def calibration_images(source: Source, config: ModelConfig) -> Source:
    """Return the images on which to calibrate a model: all or, if there would be too many outputs, every n-th image."""
    most = max(MOST_OUTPUTS // (config.num_classes + config.feature_width), 1)
    every = -(-len(source) // most)
    return source if every <= 1 else pick(source, np.arange(0, len(source), every))


def fit_familiarity(
    predictor: Predictor,
    train: Source,
    val: Evaluation,
    progress: Report = silent,
    known: tuple[Float[Tensor, "n d"], Int[Tensor, "n"]] | None = None,
) -> tuple[Familiarity, tuple[float, ...]]:
    """Fit a familiarity model to features of training images. Also return quantiles of the validation scores.

    `val` must have features. `known` are the features and labels of the readable training images, if they have already
    been computed.
    """
    features, labels = known or _sampled_features(predictor, train, progress)
    familiarity = Familiarity.fit(features, labels)
    assert val.features is not None
    return familiarity, lower_quantiles(familiarity.scores(val.features[val.readable]))


def _sampled_features(
    predictor: Predictor, source: Source, progress: Report
) -> tuple[Float[Tensor, "n d"], Int[Tensor, "n"]]:
    most = max(min(PER_DIMENSION * predictor.width, MOST_FEATURES), MOST_PER_CLASS * predictor.config.num_classes)
    sample = pick(source, np.linspace(0, len(source) - 1, min(most, len(source))).astype(int))
    results = tracked(predictor.stream_embeddings(sample), "extracting features", len(sample), progress)
    vectors = {row: result.vector for row, result in enumerate(results) if result.vector is not None}
    if not vectors:
        raise ValueError(f"cannot calibrate: none of the {len(sample)} images could be read")
    return torch.stack(list(vectors.values())), torch.from_numpy(sample.labels[list(vectors)])


def rank_batches(count: int, batch_size: int, rank: int, ranks: int) -> list[range]:
    """Return the batches that belong to process `rank` of `ranks`. All processes use the same division into batches.

    >>> rank_batches(10, 4, 0, 2), rank_batches(10, 4, 1, 2)
    ([range(0, 4), range(8, 10)], [range(4, 8)])
    """
    starts = range(rank * batch_size, count, ranks * batch_size)
    return [range(start, min(start + batch_size, count)) for start in starts]


def classify_source(
    predictor: Predictor,
    source: Source,
    classes: Sequence[str],
    rank: int = 0,
    ranks: int = 1,
    keep_logits: bool = False,
    progress: Report = silent,
    keep_features: bool = False,
) -> Evaluation:
    """Evaluate a predictor on the images that belong to process `rank` of `ranks`. Raise if an output is not finite."""
    calibration, k = predictor.config.calibration, len(classes)
    how: dict[str, Any] = {"temperature": calibration and calibration.temperature, "keep_logits": keep_logits}
    empty = torch.zeros(0, dtype=torch.int64)  # there may be more processes than images
    nothing = torch.zeros(0, predictor.width) if keep_features else None
    parts = [Evaluation.of(torch.zeros(0, k), empty, classes, empty, features=nothing, **how)]
    for indices, scores, readable, problems in source_scores(predictor, source, rank, ranks, progress, keep_features):
        labels = torch.where(readable, torch.from_numpy(source.labels[indices.numpy()]), UNREADABLE)
        features = scores[:, k:] if keep_features else None
        parts.append(Evaluation.of(scores[:, :k], labels, classes, indices, problems, features=features, **how))
    return Evaluation.join(parts)


def source_scores(
    predictor: Embedder,
    source: Source,
    rank: int = 0,
    ranks: int = 1,
    progress: Report = silent,
    with_features: bool = False,
) -> Iterator[tuple[Int[Tensor, "b"], Float[Tensor, "b classes"], Bool[Tensor, "b"], list[str]]]:
    """Yield the indices and scores of each batch of process `rank` of `ranks`, its readable images and its problems.

    `with_features` appends the features of each image to its scores. Both are 0 for an unreadable image. Raise if one
    is NaN.
    """
    batches = rank_batches(len(source), predictor.batch_size, rank, ranks)
    images = (SourceImage(source, index) for batch in batches for index in batch)
    results = predictor.stream_logits_and_features(images) if with_features else predictor.stream_logits(images)
    nothing = torch.zeros(predictor.config.num_classes + with_features * predictor.width)
    results = tracked(results, "evaluating images", sum(map(len, batches)), progress)
    for batch in batches:
        readable, scores, problems = torch.ones(len(batch), dtype=torch.bool), [], []
        for row, result in enumerate(itertools.islice(results, len(batch))):
            if result.error == NOT_A_NUMBER:  # a problem with the model, not with the image
                raise ValueError(f"{result.name}: {NOT_A_NUMBER}")
            if result.vector is None:
                readable[row] = False
                problems.append(f"{one_line(result.name)}: {result.error}")
            scores.append(nothing if result.vector is None else result.vector)
        yield torch.tensor(batch), torch.stack(scores), readable, problems
