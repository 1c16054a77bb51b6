"""Predictions of models: labels, numbers, features or a mask of one image, or the error if it could not be read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt8
from rich.text import Text
from torch import Tensor

from vitreous.common.text import clean, json_text
from vitreous.model.calibration import UNKNOWN
from vitreous.model.top_labels import Label


@dataclass(frozen=True)
class Prediction:
    """Labels of an image, most probable first, or an error message if the image could not be read.

    familiarity: Fraction of validation images that are at most as familiar as this image. None if the model is not
        calibrated.
    label_set: Set of labels that contains the true label with a probability of at least `coverage`. None if no coverage
        was given.
    """

    name: str
    predictions: tuple[Label, ...] = ()
    familiarity: float | None = None
    label_set: tuple[Label, ...] | None = None
    error: str | None = None

    @property
    def unknown(self) -> bool | None:
        """True if the image is unlike the training images. None if the model has not been calibrated."""
        return None if self.familiarity is None else self.familiarity < UNKNOWN

    def record(self) -> dict[str, Any]:
        """Return the result as a JSON object without the path."""
        record: dict[str, Any] = {"predictions": label_records(self.predictions)}
        if self.familiarity is not None:
            record |= {"unknown": self.unknown, "familiarity": self.familiarity}
        if self.label_set is not None:
            record["label_set"] = label_records(self.label_set)
        return record

    def cells(self) -> list[Any]:
        """Return the cells of a CSV row between the path and the error."""
        cells = label_cells(self.predictions)
        if self.familiarity is not None:
            cells += [str(self.unknown).lower(), self.familiarity]
        if self.label_set is not None:
            cells.append(json_text([clean(label.label) for label in self.label_set]))
        return cells

    def printed(self) -> dict[str, Text]:
        """Return the cells of a printed row, by column."""
        first, *rest = self.predictions
        best = Text(clean(first.label), style="bold")
        if self.unknown:
            best.append(" (unknown?)", style="yellow")
        others = {"other labels": rest} if self.label_set is None else {"label set": self.label_set}
        row = {"label": best, "probability": Text(f"{first.probability:.1%}")}
        return row | {column: label_texts(labels) for column, labels in others.items()}


@dataclass(frozen=True)
class MultiLabelPrediction:
    """Labels of an image that can have several, or the error if it could not be read.

    labels: Labels whose probability reaches their threshold, most probable first; there may be none.
    predictions: The most probable labels, regardless of the thresholds.
    """

    name: str
    labels: tuple[Label, ...] = ()
    predictions: tuple[Label, ...] = ()
    error: str | None = None

    def record(self) -> dict[str, Any]:
        return {"labels": label_records(self.labels), "predictions": label_records(self.predictions)}

    def cells(self) -> list[Any]:
        return [json_text([clean(label.label) for label in self.labels]), *label_cells(self.predictions)]

    def printed(self) -> dict[str, Text]:
        others = [label for label in self.predictions if label not in self.labels]
        return {"labels": label_texts(self.labels, style="bold"), "other labels": label_texts(others)}


@dataclass(frozen=True)
class NumberPrediction:
    """Numbers of an image by target, or the error if it could not be read."""

    name: str
    values: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None

    def record(self) -> dict[str, Any]:
        return {"values": {clean(target): value for target, value in self.values.items()}}

    def cells(self) -> list[Any]:
        return list(self.values.values())

    def printed(self) -> dict[str, Text]:
        return {clean(target): Text(f"{value:.6g}") for target, value in self.values.items()}


@dataclass(frozen=True)
class Embedding:
    """Features of an image, or an error message if the image could not be read."""

    name: str
    vector: Tensor | None = None  # [d], float32, on the CPU
    error: str | None = None

    def record(self) -> dict[str, Any]:
        return {"embedding": self.cells()}

    def cells(self) -> list[Any]:
        return [] if self.vector is None else self.vector.tolist()


@dataclass(frozen=True)
class Segmentation:
    """Pixels and mask of an image, or an error message if the image could not be read."""

    name: str
    pixels: UInt8[np.ndarray, "h w c"] | None = None
    mask: UInt8[np.ndarray, "h w"] | None = None  # indices of `labels`
    labels: tuple[str, ...] = ()
    error: str | None = None

    def fractions(self, classes: int) -> list[float]:
        """Return the fraction of pixels of each class."""
        if self.mask is None:
            raise ValueError(f"{self.name}: {self.error}")
        return (np.bincount(self.mask.ravel(), minlength=classes) / self.mask.size).tolist()

    def largest_classes(self) -> list[tuple[int, float]]:
        """Return the index and the pixel fraction of each class in the mask, largest first."""
        pairs = enumerate(self.fractions(len(self.labels)))
        return sorted((pair for pair in pairs if pair[1]), key=lambda pair: -pair[1])

    def record(self) -> dict[str, Any]:
        """Return the result as a JSON object without the path."""
        assert self.mask is not None
        classes = [{"label": clean(self.labels[i]), "share": fraction} for i, fraction in self.largest_classes()]
        return {"height": self.mask.shape[0], "width": self.mask.shape[1], "classes": classes}


@dataclass(frozen=True)
class Columns:
    """Columns of a table of results: `top` labels per image (and the columns of a calibrated or multi-label model),
    features of size `width`, or one number per target.
    """

    top: int = 0
    width: int = 0
    calibrated: bool = False
    label_set: bool = False
    labels: bool = False  # True if an image can have several labels
    targets: tuple[str, ...] = ()


def label_records(labels: Sequence[Label]) -> list[dict[str, Any]]:
    return [{**vars(label), "label": clean(label.label)} for label in labels]


def label_cells(labels: Sequence[Label]) -> list[Any]:
    return [cell for label in labels for cell in (clean(label.label), label.probability)]


def label_texts(labels: Sequence[Label], style: str = "") -> Text:
    return Text(clean(", ".join(f"{label.label} {label.probability:.1%}" for label in labels)), style=style)
