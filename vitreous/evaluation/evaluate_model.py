"""`vitreous.evaluate`: metrics of a classifier, a segmenter, or a frozen encoder through a probe."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vitreous.common.checks import fail
from vitreous.data.open import open_data, open_masked
from vitreous.data.sources.base import DataSet, Source
from vitreous.evaluation.probe import Probe, ProbeMetrics, check_options, probe_encoder
from vitreous.inference.engine import Precision
from vitreous.inference.predict_images import open_encoder, open_model
from vitreous.inference.predictor import FeatureKind, Predictor, SegmentPredictor
from vitreous.model.protocol import Model
from vitreous.tasks.classification_metrics import Evaluation, classify_source
from vitreous.tasks.segmentation_metrics import SegmentEvaluation, segment_source
from vitreous.weights.native import provenance_of


@dataclass(frozen=True)
class _ModelMetrics:
    """Metrics of a model with a head; fractions, not percent. `evaluation` has per-class metrics and mistakes."""

    evaluation: Evaluation | SegmentEvaluation
    count: int
    unreadable: int
    split: str
    seconds: float
    doubt: str  # a warning if the model may have been trained on some of these images; otherwise empty
    images_per_second: float

    def to_dict(self) -> dict[str, Any]:
        """The keys of metrics.json, with `per_class`, `confusion` and `unreadable_files`."""
        return {
            **self.evaluation.metrics(),
            "part": self.split,
            "seconds": self.seconds,
            "doubt": self.doubt,
            "images_per_second": self.images_per_second,
            "per_class": [vars(row) for row in self.evaluation.per_class()],
            "confusion": self.evaluation.confusion().tolist(),
            "unreadable_files": self.evaluation.problems,
        }


@dataclass(frozen=True)
class ClassificationMetrics(_ModelMetrics):
    """Metrics of a classifier."""

    evaluation: Evaluation
    top1: float
    top5: float
    loss: float
    ece: float


@dataclass(frozen=True)
class SegmentationMetrics(_ModelMetrics):
    """Metrics of a segmenter at full image size."""

    evaluation: SegmentEvaluation
    miou: float
    pixel_accuracy: float
    boundary_f: float


Metrics = ClassificationMetrics | SegmentationMetrics | ProbeMetrics


def evaluate(
    model: Model | str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    split: Literal["train", "val", "test"] | None = None,
    image_size: int | Sequence[int] | None = None,
    data_root: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    batch_size: int = 64,
    device: str | torch.device | None = "auto",
    precision: Precision = "fp32",
    workers: int = 2,
    flip: bool = False,
    decode: Literal["exact", "fast"] = "exact",
    probe: Probe | None = None,
    features: FeatureKind = "pooled",
    cache: Path | None = None,
    neighbours: Sequence[int] = (20,),
    shots: Sequence[int] = (),
    ignore: Sequence[str] = (),
) -> Metrics:
    """Evaluate a model: accuracy and calibration of a classifier, mean IoU of a segmenter, or a probe of its features.

    model: a model, or a checkpoint: a folder, a file of another system, or hf-hub:owner/name.
    data: a data set, as for `vitreous.train`.
    split: by default the test split if there is one, else the validation split.
    image_size: another size than the model's; positions are resampled.
    data_root: a local copy of a data set that would be downloaded.
    val_fraction, seed: of the validation split if the data has none, as in training; a probe draws with this seed too.
    workers: decoding threads.
    flip: average with the mirror image.
    decode: "fast" decodes large JPEGs at a reduced scale, which changes some results; only for classifiers.
    probe: evaluate the frozen encoder: train k-NN, a linear classifier or few-shot least squares on its features.
    features: for a probe, the input of the head, or the class token concatenated with the mean of the patches.
    cache: for a probe, a folder that stores features for the next one.
    neighbours: for k-NN, numbers of neighbours, all measured in one pass; the first is reported.
    shots: for few-shot probes, images per class; the first is reported. By default those of 5, 10 and 25 that every
        class has.
    ignore: for a segmenter, classes whose pixels are excluded.

    >>> import vitreous
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=10, image_size=8, overrides={"depth": 1, "patch_size": 4})
    >>> metrics = vitreous.evaluate(model, data="digits", device="cpu")
    >>> metrics.split, metrics.count, metrics.to_dict()["top1"] == metrics.top1
    ('val', 359, True)
    """
    _check_used(probe is not None, "--probe", features=(features, "pooled"), cache=(cache, None))
    _check_used(probe == "knn", "--probe knn", neighbours=(tuple(neighbours), (20,)))
    _check_used(probe == "fewshot", "--probe fewshot", shots=(tuple(shots), ()))
    _check_used(probe is None, "a classifier, without --probe", decode=(decode, "exact"))
    spec = os.fspath(data)
    opening: dict[str, Any] = {"root": data_root, "val_fraction": val_fraction, "seed": seed}
    running: dict[str, Any] = {"batch_size": batch_size, "precision": precision, "flip": flip, "workers": workers}
    if probe is not None:
        if ignore:
            fail("ignore", " ".join(ignore), "omitted with --probe: it excludes classes of pixels")
        check_options(probe, features, neighbours, shots)
        if split == "train":
            fail("split", split, "'val' or 'test' for a probe, which learns from train")
        found = open_data(spec, **opening)
        name, source = choose_split(found, split)
        predictor = Predictor(open_encoder(model, image_size), device, **running)
        return probe_encoder(
            predictor, found.train, name, source, probe,
            features=features, cache=cache, neighbours=neighbours, shots=shots, seed=seed,
        )  # fmt: skip
    model = open_model(model, image_size)
    if model.config.task == "segment":
        _check_used(False, "a classifier", decode=(decode, "exact"))
        found = open_masked(spec, **opening, ignore=tuple(ignore), order=model.config.labels)
        return _evaluate_segmenter(SegmentPredictor(model, device, **running), found, split, val_fraction, seed)
    if ignore:
        fail("ignore", " ".join(ignore), "omitted for a classifier: it excludes classes of pixels")
    if not model.config.num_classes:
        raise ValueError("the model has no head: evaluate its features with --probe knn, linear or fewshot")
    found = open_data(spec, **opening)
    return _evaluate_classifier(Predictor(model, device, decode=decode, **running), found, split, val_fraction, seed)


def _evaluate_segmenter(
    predictor: SegmentPredictor, data: DataSet, split: str | None, val_fraction: float, seed: int
) -> SegmentationMetrics:
    config = predictor.model.config
    name, source = choose_split(data, split)
    check_classes(config.labels, config.num_classes, data.mask_classes, data.name)
    started = time.perf_counter()
    masks = segment_source(predictor, source, data.mask_classes)
    about = _about(predictor.model, data, name, len(source), started, val_fraction, seed)
    return SegmentationMetrics(**masks.metrics(), evaluation=masks, **about)


def _evaluate_classifier(
    predictor: Predictor, data: DataSet, split: str | None, val_fraction: float, seed: int
) -> ClassificationMetrics:
    config = predictor.model.config
    name, source = choose_split(data, split)
    if config.num_classes != len(data.classes) or config.labels not in ((), data.classes):
        ours = config.labels or f"{config.num_classes} unnamed"
        raise ValueError(f"the model was trained on the classes {_few(ours)}, but {data.name} has {_few(data.classes)}")
    started = time.perf_counter()
    evaluation = classify_source(predictor, source, data.classes)
    about = _about(predictor.model, data, name, len(source), started, val_fraction, seed)
    return ClassificationMetrics(**evaluation.metrics(), evaluation=evaluation, **about)


def _check_used(used: bool, use: str, **options: tuple[object, object]) -> None:
    """Reject options, each with its default, that have no effect."""
    for name, (value, default) in options.items():
        if not used and value != default:
            fail(name, value, f"omitted, or used with {use}")


def choose_split(data: DataSet, split: str | None = None) -> tuple[str, Source]:
    """The name and images of a split; by default test, which was not used to choose anything, else val."""
    splits = {"train": data.train, "val": data.val} | ({"test": data.test} if data.test is not None else {})
    chosen = split or ("test" if data.test is not None else "val")
    if chosen not in splits:
        raise ValueError(f"split is {chosen!r}, but {data.name} has {', '.join(splits)} ({data.note})")
    return chosen, splits[chosen]


def _about(
    model: Any, data: DataSet, split: str, images: int, started: float, val_fraction: float, seed: int
) -> dict[str, Any]:
    """Fields of every evaluation. `doubt` is set if the model's run split the same data in another way."""
    seconds, trained = time.perf_counter() - started, provenance_of(model)
    then, doubt = (trained.get("seed"), trained.get("val_fraction")), ""
    if data.val_drawn and trained.get("data") == data.name and None not in then and then != (seed, val_fraction):
        doubt = (
            f"the checkpoint was trained on another split of {data.name} and may know some of these images; its own is "
            f"--seed {then[0]} --val-fraction {then[1]}"
        )
    return {"split": split, "seconds": seconds, "doubt": doubt, "images_per_second": images / seconds}


def check_classes(known: Sequence[str], count: int, classes: Sequence[str], where: str) -> None:
    """Raise if the classes of a segmenter and of masks differ."""
    if len(classes) == count and tuple(known) in ((), tuple(classes)):
        return
    ours, theirs = ", ".join(known) or f"{count} unnamed", ", ".join(classes)
    others = [name for name in classes if name not in known]
    hint = f"; exclude with --ignore {' '.join(others)}" if set(known) < set(classes) else ""
    hint = "; do not --ignore classes that it knows" if set(classes) < set(known) else hint
    raise ValueError(f"the model was trained on the classes {ours}, but the masks of {where} have {theirs}{hint}")


def _few(names: object) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "") if isinstance(names, tuple) else str(names)
