"""Calibration and comparison of export precisions on a data set, and the recommended one."""

import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitreous.common.checks import fail
from vitreous.data import DataSet, Source, open_data
from vitreous.data.image import decode, fit
from vitreous.exporting.options import FILES, PRECISIONS, ExportPrecision, OptionalOutput, PrecisionChoice, Target
from vitreous.exporting.quantise import quantise, quantise_weights
from vitreous.exporting.runtimes import open_session, write
from vitreous.exporting.validate import ExportFailed, Pixels, label_agreement, reference_of, validation_images
from vitreous.inference.engine import Images
from vitreous.model.base_config import ModelConfig
from vitreous.model.protocol import Model
from vitreous.model.top_labels import class_names
from vitreous.runtimes.sessions import Session

CALIBRATION_IMAGES = 256
TORCH = "torch"  # name of the model in PyTorch, in float32
MIN_AGREEMENT = 0.985  # of the labels of a recommended precision with those of the model


@dataclass(frozen=True)
class Comparison:
    """Results of an exported file, or of the model in PyTorch, on validation images, one at a time.

    agreement: Fraction of images with the label of the model in PyTorch. None for a model without labels.
    accuracy: Fraction of images with the true label. None for data or models without labels.
    error: Root mean squared error of the first output, relative to its standard deviation.
    images_per_second: Median, from decoded pixels to outputs.
    bytes: Size of the files.
    """

    precision: str
    images: int
    agreement: float | None
    accuracy: float | None
    error: float
    images_per_second: float
    bytes: int

    @property
    def accepted(self) -> bool:
        return math.isfinite(self.error) and (self.agreement is None or self.agreement >= MIN_AGREEMENT)


def open_splits(config: ModelConfig, data: object) -> DataSet:
    """Open the data set for calibration (train) and comparison (val). Classes of a classifier must be the model's."""
    spec = data[0] if isinstance(data, Sequence) and len(data) == 1 else data
    if not isinstance(spec, str):
        fail("data", data, "one data set, whose training images are used for calibration")
    found = open_data(spec, labelled=config.task == "classify")
    if config.task == "classify" and tuple(found.classes) != tuple(class_names(config)):
        raise ValueError(f"the classes of {found.name} differ from the {config.num_classes} labels of the model")
    return found


def calibration_images(config: ModelConfig, source: Source) -> UInt8[Tensor, "n c h w"]:
    """Decode images of the training split, evenly spaced, for `quantise`."""
    images = (source.image(index) for index in _spaced(len(source), CALIBRATION_IMAGES))
    return torch.stack([fit(image, config.image_size, config.preprocessing, config.channels) for image in images])


def comparison_images(config: ModelConfig, source: Source, most: int) -> tuple[list[Pixels], np.ndarray]:
    """Decode at most `most` images of a split, evenly spaced. Return them with their labels."""
    places = _spaced(len(source), most)
    images = [decode(source.image(index), config.channels).permute(1, 2, 0).numpy() for index in places]
    return images, source.labels[places]


def _spaced(count: int, most: int) -> list[int]:
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


def compare(
    sessions: Mapping[str, Session],
    sizes: Mapping[str, int],
    model: Model,
    outputs: Sequence[str],
    images: Sequence[Pixels],
    labels: np.ndarray | None = None,
) -> tuple[Comparison, ...]:
    """Run each image in PyTorch and in all sessions, so that the load of the machine affects all of them.

    Args:
        sessions: The opened file of each precision.
        sizes: Size of the file of each precision, in bytes.
        outputs: Names of the outputs of the files.
        labels: True classes of the images, if known.
    """
    reference = reference_of(model, tuple(outputs))
    runs: dict[str, Session] = {
        TORCH: lambda inputs: reference(inputs["images"][0])[1],
        **sessions,
    }
    sizes = {TORCH: sum(parameter.nbytes for parameter in model.parameters()), **sizes}
    totals = {precision: _Totals() for precision in runs}
    for run in runs.values():
        run({"images": images[0][None]})  # the first run allocates memory
    for place, image in enumerate(images):
        expected: dict[str, np.ndarray] = {}
        for precision, run in runs.items():
            started = time.perf_counter()
            found = run({"images": image[None]})
            totals[precision].seconds.append(time.perf_counter() - started)
            expected = expected or found
            totals[precision].add(found, expected, outputs[0], None if labels is None else int(labels[place]))
    return tuple(total.result(precision, sizes[precision]) for precision, total in totals.items())


@dataclass
class _Totals:
    """Sums over the images for a `Comparison`."""

    seconds: list[float] = field(default_factory=list)
    agreements: list[float | None] = field(default_factory=list)
    correct: list[bool] = field(default_factory=list)
    squares: float = 0.0
    variance: float = 0.0

    def add(
        self, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], output: str, label: int | None
    ) -> None:
        self.agreements.append(label_agreement(found, expected))
        self.squares += float(np.square(found[output] - expected[output]).sum())
        self.variance += float(
            (expected[output] - expected[output].mean(axis=1, keepdims=True)).var() * expected[output].size
        )
        if label is not None:
            self.correct.append(bool(found[output].argmax() == label))

    def result(self, precision: str, size: int) -> Comparison:
        known = [one for one in self.agreements if one is not None]
        return Comparison(
            precision,
            images=len(self.seconds),
            agreement=float(np.mean(known)) if known else None,
            accuracy=float(np.mean(self.correct)) if self.correct else None,
            error=float(np.sqrt(self.squares / max(self.variance, 1e-12))),
            images_per_second=1 / statistics.median(self.seconds),
            bytes=size,
        )


def recommended(rows: Sequence[Comparison]) -> Comparison:
    """Return the fastest precision that agrees with the model. Raise ExportFailed if none does."""
    accepted = [row for row in rows if row.precision != TORCH and row.accepted]
    if not accepted:
        raise ExportFailed(f"no precision agrees with the model on {MIN_AGREEMENT:.1%} of the images")
    return max(accepted, key=lambda row: row.images_per_second)


# ---- Choice ----------------------------------------------------------------------------------------------------------


class Prepared(NamedTuple):
    """A model to write in `precision`, and images to compare it with the original."""

    precision: ExportPrecision
    model: Model
    images: list[Pixels]
    comparisons: tuple[Comparison, ...] = ()


def prepare(
    model: Model,
    to: Target,
    precision: PrecisionChoice,
    outputs: Sequence[OptionalOutput],
    data: Images | Sequence[str] | str | None,
    max_images: int,
) -> Prepared:
    """Quantise a model if necessary. For "auto", write, run and compare all precisions of a target, and choose one."""
    if precision != "int8" and precision != "auto":
        ready = quantise_weights(model) if precision == "int8-weights" else model
        return Prepared(precision, ready, validation_images(data, model.config.channels, max_images))
    splits = open_splits(model.config, data)
    images, labels = comparison_images(model.config, splits.val, max_images)
    models: dict[ExportPrecision, Model] = dict.fromkeys(PRECISIONS[to], model)
    if "int8" in models:
        models["int8"] = quantise(model, calibration_images(model.config, splits.train))
    if precision == "int8":
        return Prepared(precision, models["int8"], images)
    if "int8-weights" in models:
        models["int8-weights"] = quantise_weights(model)
    comparisons = _compare_files(models, model, to, outputs, images, labels if splits.train.classes else None)
    name = recommended(comparisons).precision
    [chosen] = (one for one in models if one == name)
    return Prepared(chosen, models[chosen], images, comparisons)


def _compare_files(
    models: Mapping[ExportPrecision, Model],
    model: Model,
    to: Target,
    outputs: Sequence[OptionalOutput],
    images: Sequence[Pixels],
    labels: np.ndarray | None,
) -> tuple[Comparison, ...]:
    """Write all precisions to a temporary folder, and compare them."""
    sessions: dict[str, Session] = {}
    sizes: dict[str, int] = {}
    names: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for precision, one in models.items():
            path = Path(folder, precision, FILES[to])
            path.parent.mkdir()
            names = list(write(one, path, to, outputs, precision, dynamic_size=False, tensor_input=False)["outputs"])
            sessions[precision] = open_session(path)
            sizes[precision] = sum(file.stat().st_size for file in path.parent.iterdir())
        return compare(sessions, sizes, model, names, images, labels)
