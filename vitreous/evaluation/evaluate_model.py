"""`vitreous.evaluate`: metrics of a classifier, a segmenter, or a frozen encoder with a probe."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from rich.table import Table

from vitreous.common.checks import BadValue, fail
from vitreous.common.progress import Report, silent
from vitreous.common.text import plural
from vitreous.data import DataSet, Source, open_data, open_masked
from vitreous.data.sources.targets import LabelTargets, NumberTargets
from vitreous.evaluation.probe import Probe, ProbeMetrics, check_options, probe_encoder
from vitreous.inference import Embedder, FeatureKind, Precision, open_encoder, open_model, predictor_for
from vitreous.inference.predictor import predictor_class
from vitreous.model.base_config import Task
from vitreous.model.protocol import Model, ModelConfig
from vitreous.model.top_labels import class_names
from vitreous.tasks import (
    Evaluation,
    MultiLabelEvaluation,
    NumberEvaluation,
    SegmentEvaluation,
    classify_source,
    segment_source,
)
from vitreous.tasks.base import EVALUATION_BATCH
from vitreous.tasks.classification_metrics import calibration_images
from vitreous.tasks.target_metrics import TargetEvaluation
from vitreous.weights.native import CALIBRATION, provenance_of

SHOWN = 12  # maximum number of worst classes to print
SHOWN_SEGMENTS = 20  # the same limit for segmenters
CROSS_FITTED = (
    "The model was calibrated on this split. For ece_calibrated, each half of the images uses the temperature fitted "
    "to the other half."
)


@dataclass(frozen=True)
class _ModelMetrics:
    """Metrics of a model for one task. `evaluation` contains per-class metrics and mistakes.

    Subclasses add a field per metric, and define how to open the data and evaluate a predictor.
    """

    task: ClassVar[Task]

    evaluation: Evaluation | SegmentEvaluation | TargetEvaluation
    count: int
    unreadable: int
    split: str
    seconds: float
    doubt: str  # warning if the model may have been trained on some of these images, otherwise empty
    images_per_second: float

    @classmethod
    def open_data(
        cls, config: ModelConfig, spec: str, ignore: Sequence[str], target: Sequence[str] = (), **where: Any
    ) -> DataSet:
        """Open the data. Raise ValueError if its classes differ from those of the model."""
        raise NotImplementedError

    @classmethod
    def evaluate(cls, predictor: Any, data: DataSet, source: Source, progress: Report) -> Any:
        """Evaluate a predictor on `source`, a split of `data`. Return the value of the field `evaluation`."""
        raise NotImplementedError

    @property
    def problems(self) -> list[str]:
        """Unreadable images, each with the reason."""
        return self.evaluation.problems

    def summary(self) -> dict[str, Any]:
        """Return the values that `vitreous eval` prints first."""
        values = {"split": self.split, "count": self.count, **self.evaluation.metrics()}
        return {**values, "images_per_second": self.images_per_second}

    def lines(self) -> Iterator[Table | str]:
        """Yield the tables and remarks that `vitreous eval` prints after the summary."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics with the keys of metrics.json, plus `tables` and `unreadable_files`."""
        return {
            **self.evaluation.metrics(),
            "part": self.split,
            "seconds": self.seconds,
            "doubt": self.doubt,
            "images_per_second": self.images_per_second,
            **self.tables(),
            "unreadable_files": self.problems,
        }

    def tables(self) -> dict[str, Any]:
        """Return the metrics of each class, as JSON."""
        evaluation: Any = self.evaluation
        return {
            "per_class": [vars(row) for row in evaluation.per_class()],
            "confusion": evaluation.confusion().tolist(),
        }


@dataclass(frozen=True)
class ClassificationMetrics(_ModelMetrics):
    """Metrics of a classifier."""

    task = "classify"
    evaluation: Evaluation
    top1: float
    top5: float
    balanced_accuracy: float  # mean recall of the classes
    loss: float
    ece: float
    ece_calibrated: float | None = None  # with the calibrated temperature; None if the model is not calibrated

    @classmethod
    def open_data(
        cls, config: ModelConfig, spec: str, ignore: Sequence[str], target: Sequence[str] = (), **where: Any
    ) -> DataSet:
        reject(config, ignore=ignore, target=target)
        data = open_data(spec, **where)
        if config.num_classes != len(data.classes) or config.labels not in ((), data.classes):
            own = f"the classes {_few(config.labels)}" if config.labels else f"{config.num_classes} unnamed classes"
            raise ValueError(f"the model was trained on {own}, but {data.name} has the classes {_few(data.classes)}")
        return data

    @classmethod
    def evaluate(cls, predictor: Any, data: DataSet, source: Source, progress: Report) -> Evaluation:
        fitted_here = _calibrated_on(predictor.model, data, source)
        found = classify_source(predictor, source, data.classes, keep_logits=fitted_here, progress=progress)
        return found.calibrate()[1] if fitted_here else found

    def summary(self) -> dict[str, Any]:
        values = super().summary()
        if self.evaluation.num_classes <= 5:
            del values["top5"]  # always 1
        return values

    def lines(self) -> Iterator[Table | str]:
        evaluation = self.evaluation
        if evaluation.cross_fitted:
            yield f"{CROSS_FITTED}\n"
        columns = ("class", "images", "precision", "recall", "F1")
        table = Table(*columns, box=None, title="worst classes", title_justify="left")
        rows = [row for row in evaluation.per_class() if row.f1 is not None]
        for row in sorted(rows, key=lambda row: row.f1 or 0.0)[:SHOWN]:
            table.add_row(row.name, str(row.count), *map(_fraction, (row.precision, row.recall, row.f1)))
        yield table
        for pair in evaluation.most_confused(5):
            names = f"{evaluation.name(pair.true)} predicted as {evaluation.name(pair.predicted)}"
            yield f"{names}: {plural(pair.count, 'time')} ({pair.fraction:.1%})"


@dataclass(frozen=True)
class SegmentationMetrics(_ModelMetrics):
    """Metrics of a segmenter at full image size."""

    task = "segment"
    evaluation: SegmentEvaluation
    miou: float
    pixel_accuracy: float
    boundary_f: float

    @classmethod
    def open_data(
        cls, config: ModelConfig, spec: str, ignore: Sequence[str], target: Sequence[str] = (), **where: Any
    ) -> DataSet:
        reject(config, target=target)
        data = open_masked(spec, **where, ignore=tuple(ignore), order=config.labels)
        check_classes(config.labels, config.num_classes, data.mask_classes, data.name)
        return data

    @classmethod
    def evaluate(cls, predictor: Any, data: DataSet, source: Source, progress: Report) -> SegmentEvaluation:
        return segment_source(predictor, source, data.mask_classes, progress=progress)

    def lines(self) -> Iterator[Table | str]:
        table = Table("class", "pixels", "IoU", "accuracy", "boundary F", box=None)
        rows = sorted(self.evaluation.per_class(), key=lambda row: (row.iou is None, row.iou))
        for row in rows[:SHOWN_SEGMENTS]:
            table.add_row(row.name, f"{row.pixels:,}", *map(_fraction, (row.iou, row.accuracy, row.boundary_f)))
        yield table


@dataclass(frozen=True)
class MultiLabelMetrics(_ModelMetrics):
    """Metrics of a multi-label classifier."""

    task = "multilabel"
    evaluation: MultiLabelEvaluation
    map: float  # mean average precision
    f1: float  # mean over classes, at the thresholds of the model
    f1_micro: float  # over all labels
    loss: float

    @classmethod
    def open_data(
        cls, config: ModelConfig, spec: str, ignore: Sequence[str], target: Sequence[str] = (), **where: Any
    ) -> DataSet:
        reject(config, ignore=ignore)
        return open_data(spec, **where, targets=LabelTargets(tuple(target), class_names(config)))

    @classmethod
    def evaluate(cls, predictor: Any, data: DataSet, source: Source, progress: Report) -> MultiLabelEvaluation:
        return MultiLabelEvaluation.of_source(predictor, source, progress=progress)

    def lines(self) -> Iterator[Table | str]:
        columns = ("class", "images", "AP", "threshold", "precision", "recall", "F1")
        table = Table(*columns, box=None, title="worst classes", title_justify="left")
        rows = [row for row in self.evaluation.per_class() if row.count]
        for row in sorted(rows, key=lambda row: row.average_precision or 0.0)[:SHOWN]:
            numbers = (row.average_precision, row.threshold, row.precision, row.recall, row.f1)
            table.add_row(row.name, str(row.count), *map(_fraction, numbers))
        yield table

    def tables(self) -> dict[str, Any]:
        return {"per_class": [vars(row) for row in self.evaluation.per_class()]}


@dataclass(frozen=True)
class RegressionMetrics(_ModelMetrics):
    """Metrics of a regression model, averaged over its targets."""

    task = "regress"
    evaluation: NumberEvaluation
    mae: float  # mean absolute error
    rmse: float  # root mean squared error
    r2: float
    loss: float

    @classmethod
    def open_data(
        cls, config: ModelConfig, spec: str, ignore: Sequence[str], target: Sequence[str] = (), **where: Any
    ) -> DataSet:
        reject(config, ignore=ignore)
        if target and len(target) != config.num_classes:
            fail("target", " ".join(target), f"{config.num_classes} columns, for {', '.join(class_names(config))}")
        return open_data(spec, **where, targets=NumberTargets(tuple(target) or class_names(config)))

    @classmethod
    def evaluate(cls, predictor: Any, data: DataSet, source: Source, progress: Report) -> NumberEvaluation:
        return NumberEvaluation.of_source(predictor, source, progress=progress)

    def lines(self) -> Iterator[Table | str]:
        table = Table("target", "MAE", "RMSE", "R²", "mean", "std", box=None)
        for row in self.evaluation.per_target():
            table.add_row(row.name, *(f"{number:.4g}" for number in (row.mae, row.rmse, row.r2, row.mean, row.std)))
        yield table

    def tables(self) -> dict[str, Any]:
        return {"per_target": [vars(row) for row in self.evaluation.per_target()]}


AnyMetrics = ClassificationMetrics | MultiLabelMetrics | RegressionMetrics | SegmentationMetrics
METRICS: tuple[type[AnyMetrics], ...] = (
    ClassificationMetrics,
    MultiLabelMetrics,
    RegressionMetrics,
    SegmentationMetrics,
)
Metrics = AnyMetrics | ProbeMetrics


def reject(config: ModelConfig, **options: Sequence[str]) -> None:
    """Reject options that have no effect for a model."""
    for name, value in options.items():
        if value:
            fail(name, " ".join(value), f"omitted for {predictor_class(config).takes}")


def evaluate(
    model: Model | str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    split: Literal["train", "val", "test"] | None = None,
    image_size: int | Sequence[int] | None = None,
    data_root: str | os.PathLike[str] | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    batch_size: int = EVALUATION_BATCH,
    device: str | torch.device | None = "auto",
    precision: Precision = "fp32",
    workers: int = 2,
    flip: bool = False,
    decode: Literal["exact", "fast"] = "exact",
    merge_tokens: int = 0,
    probe: Probe | None = None,
    features: FeatureKind = "pooled",
    cache: str | os.PathLike[str] | None = None,
    neighbours: Sequence[int] = (20,),
    shots: Sequence[int] = (),
    ignore: Sequence[str] = (),
    target: Sequence[str] = (),
    progress: Report = silent,
) -> Metrics:
    """Evaluate a classifier (accuracy, calibration), a multi-label classifier (mean average precision), a
    regression model (mean absolute error), a segmenter (mean IoU), or frozen features with a probe.

    model: Model, or checkpoint (a folder, a weight file, a catalog name, or hf-hub:owner/name).
    data: Data set, as for `vitreous.train`.
    split: Split to evaluate; by default test if it exists, otherwise val.
    image_size: Image size; defaults to the image size of the model. Position embeddings are resampled.
    data_root: Local copy of a data set that is otherwise downloaded.
    val_fraction: Fraction of images to hold out if the data has no validation split. Use the value from training.
    seed: Seed for the held-out split and the probe. Use the value from training.
    workers: Number of decoding threads.
    flip: Average the predictions for each image and its mirror image.
    decode: "fast" decodes large JPEGs at a reduced scale, which can change the results. Only for classifiers.
    merge_tokens: Number of pairs of patches that every block of a ViT merges: faster, but can change results.
    probe: Evaluate the frozen encoder with k-NN, a linear classifier or few-shot least squares.
    features: "pooled" (input of the head) or "class+mean" (the class token and the mean of the patches), for probes.
    cache: Folder in which to cache the features for a probe.
    neighbours: Numbers of neighbours for k-NN, evaluated in one pass; the first is reported.
    shots: Numbers of images per class for few-shot probes; the first is reported. By default, those of 5, 10 and 25
        for which the smallest class has enough images.
    ignore: Classes to exclude from the metrics of a segmenter.
    target: Columns of the table with the labels of a multi-label classifier, as in `vitreous.train`, or with the
        numbers of a regression model, if they have other names than in training.
    progress: Callback that receives the current stage, the number of finished items and the total number.

    >>> import vitreous
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=10, image_size=8, overrides={"depth": 1, "patch_size": 4})
    >>> metrics = vitreous.evaluate(model, data="digits", device="cpu")
    >>> metrics.split, metrics.count, metrics.to_dict()["top1"] == metrics.top1
    ('val', 359, True)
    """
    _check_options(probe, features, cache, neighbours, shots, decode, split, ignore, target)
    spec, root = os.fspath(data), None if data_root is None else Path(data_root)
    opening: dict[str, Any] = {"root": root, "val_fraction": val_fraction, "seed": seed}
    running: dict[str, Any] = {"batch_size": batch_size, "precision": precision, "flip": flip, "workers": workers}
    if probe is not None:
        found = open_data(spec, **opening)
        name, source = choose_split(found, split)
        predictor = Embedder(open_encoder(model, image_size), device, merge_tokens=merge_tokens, **running)
        return probe_encoder(
            predictor, found.train, name, source, probe,
            features=features, cache=None if cache is None else Path(cache),
            neighbours=neighbours, shots=shots, seed=seed, progress=progress,
        )  # fmt: skip
    model = open_model(model, image_size)
    kind = next((kind for kind in METRICS if kind.task == model.config.task), None)
    if kind is None:
        raise ValueError("the model has no head; use --probe knn, linear or fewshot to evaluate its features")
    runner = predictor_for(model, device, decode=decode, merge_tokens=merge_tokens, **running)
    found = kind.open_data(model.config, spec, ignore, target, **opening)
    name, source = choose_split(found, split)
    started = time.perf_counter()
    evaluation: Any = kind.evaluate(runner, found, source, progress)
    common = about(model, found, name, len(source), started, val_fraction, seed)
    return kind(**evaluation.metrics(), evaluation=evaluation, **common)


def _calibrated_on(model: Any, data: DataSet, source: Source) -> bool:
    """Return True if the model was calibrated on exactly these images, so that the temperature must be cross-fitted."""
    record = provenance_of(model).get(CALIBRATION)
    if model.config.calibration is None or not isinstance(record, dict) or record.get("data") != data.name:
        return False
    fitted_on = {"val": data.val, "test": data.test}.get(str(record.get("split")))
    return source is fitted_on and calibration_images(source, model.config) is source


def _check_options(
    probe: Probe | None,
    features: FeatureKind,
    cache: str | os.PathLike[str] | None,
    neighbours: Sequence[int],
    shots: Sequence[int],
    decode: str,
    split: str | None,
    ignore: Sequence[str],
    target: Sequence[str],
) -> None:
    """Raise BadValue if an option is invalid or has no effect with this probe. This runs before files are opened."""
    _check_used(probe is not None, "with --probe", features=(features, "pooled"), cache=(cache, None))
    _check_used(probe == "knn", "with --probe knn", neighbours=(tuple(neighbours), (20,)))
    _check_used(probe == "fewshot", "with --probe fewshot", shots=(tuple(shots), ()))
    _check_used(probe is None, "for a classifier without --probe", decode=(decode, "exact"))
    if probe is None:
        return
    if ignore:
        fail("ignore", " ".join(ignore), "omitted with --probe (it applies only to segmentation models)")
    if target:
        fail("target", " ".join(target), "omitted with --probe, which needs one label per image")
    check_options(probe, features, neighbours, shots)
    if split == "train":
        fail("split", split, "'val' or 'test' for a probe, which is trained on 'train'")


def _check_used(used: bool, use: str, **options: tuple[object, object]) -> None:
    """Reject options that differ from their default but have no effect."""
    for name, (value, default) in options.items():
        if not used and value != default:
            raise BadValue(f"{name} is {value}, but it only has an effect {use}")


def choose_split(data: DataSet, split: str | None = None) -> tuple[str, Source]:
    """Return the name and images of a split; by default test if it exists, otherwise val."""
    splits = {"train": data.train, "val": data.val} | ({"test": data.test} if data.test is not None else {})
    chosen = split or ("test" if data.test is not None else "val")
    if chosen not in splits:
        raise ValueError(f"split is {chosen!r}, but {data.name} only has {', '.join(splits)} ({data.note})")
    return chosen, splits[chosen]


def about(
    model: Any, data: DataSet, split: str, images: int, started: float, val_fraction: float, seed: int
) -> dict[str, Any]:
    """Return the fields that all metrics share. `doubt` is a warning if the model was trained on another split."""
    seconds, trained = time.perf_counter() - started, provenance_of(model)
    then, doubt = (trained.get("seed"), trained.get("val_fraction")), ""
    if data.val_drawn and trained.get("data") == data.name and None not in then and then != (seed, val_fraction):
        doubt = (
            f"the model was trained on another split of {data.name}, which may include some of these images; to use "
            f"the same split, pass --seed {then[0]} --val-fraction {then[1]}"
        )
    return {"split": split, "seconds": seconds, "doubt": doubt, "images_per_second": images / seconds}


def check_classes(known: Sequence[str], count: int, classes: Sequence[str], where: str) -> None:
    """Raise ValueError if a segmenter and the masks have different classes."""
    if len(classes) == count and tuple(known) in ((), tuple(classes)):
        return
    trained = f"the classes {', '.join(known)}" if known else f"{count} unnamed classes"
    others = [name for name in classes if name not in known]
    hint = f"; exclude the other classes with --ignore {' '.join(others)}" if set(known) < set(classes) else ""
    hint = "; do not use --ignore for classes of the model" if set(classes) < set(known) else hint
    found = ", ".join(classes)
    raise ValueError(f"the model was trained on {trained}, but the masks of {where} have the classes {found}{hint}")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
