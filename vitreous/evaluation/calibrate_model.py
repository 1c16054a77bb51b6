"""`vitreous.calibrate`: calibrate a classifier on images that it was not trained on."""

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from vitreous.common.checks import check_choice
from vitreous.common.progress import Report, silent
from vitreous.evaluation.evaluate_model import ClassificationMetrics, about, choose_split
from vitreous.inference import Precision, Predictor, open_model
from vitreous.inference.predictor import predictor_class
from vitreous.model.calibration import Calibration
from vitreous.model.protocol import Model
from vitreous.tasks.base import EVALUATION_BATCH
from vitreous.tasks.classification_metrics import calibration_images, classify_source, fit_familiarity
from vitreous.weights.native import CALIBRATION, provenance_of


@dataclass(frozen=True)
class Calibrated:
    """A calibrated model, and its expected calibration error (ECE) before and after the calibration."""

    model: Model  # shares its weights with the given model
    calibration: Calibration
    split: str
    ece: float
    ece_calibrated: float  # cross-fitted: each half of the images uses the temperature fitted to the other half
    doubt: str  # warning if the model may have been trained on these images, otherwise empty

    @property
    def record(self) -> dict[str, object]:
        """Description of the calibration images for the model's provenance."""
        return dict(provenance_of(self.model)[CALIBRATION])


def calibrate(
    model: Model | str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    split: Literal["val", "test"] = "val",
    image_size: int | Sequence[int] | None = None,
    data_root: str | os.PathLike[str] | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    batch_size: int = EVALUATION_BATCH,
    device: str | torch.device | None = "auto",
    precision: Precision = "fp32",
    workers: int = 2,
    flip: bool = False,
    progress: Report = silent,
) -> Calibrated:
    """Fit the temperature of a classifier and its thresholds for unknown images and label sets, as `train` does.

    The model must not have been trained on the images of `split`. An image is unknown if it is unlike the images of the
    train split. The arguments are the same as for `vitreous.evaluate`. Save the result with
    `vitreous.save(result.model, folder)`.

    >>> import vitreous
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=10, image_size=8, overrides={"depth": 1, "patch_size": 4})
    >>> result = vitreous.calibrate(model, data="digits", device="cpu")
    >>> result.calibration.images, result.model.config.calibration == result.calibration
    (359, True)
    """
    check_choice("split", split, ("val", "test"))
    model, started = open_model(model, image_size), time.perf_counter()
    if not model.config.can_be_calibrated or model.config.task != ClassificationMetrics.task:
        raise ValueError(f"only a classifier can be calibrated, got {predictor_class(model.config).takes}")
    predictor = Predictor(model, device, batch_size, precision, flip=flip, workers=workers)
    root = None if data_root is None else Path(data_root)
    opened = ClassificationMetrics.open_data(
        model.config, os.fspath(data), (), root=root, val_fraction=val_fraction, seed=seed
    )
    images = calibration_images(choose_split(opened, split)[1], model.config)
    keep = {"keep_logits": True, "keep_features": True}
    results = classify_source(predictor, images, opened.classes, progress=progress, **keep)
    calibration, evaluation = results.calibrate()
    familiarity, quantiles = fit_familiarity(predictor, opened.train, results, progress)
    calibration = replace(calibration, familiarities=quantiles)
    metrics, calibrated = evaluation.metrics(), copy.copy(model)
    calibrated.config, calibrated.familiarity = model.config.override({"calibration": calibration}), familiarity
    record = {"data": opened.name, "split": split, "images": calibration.images}
    vars(calibrated)["provenance"] = {**provenance_of(model), CALIBRATION: record}
    doubt = about(model, opened, split, len(images), started, val_fraction, seed)["doubt"]
    return Calibrated(calibrated, calibration, split, metrics["ece"], metrics["ece_calibrated"], doubt)
