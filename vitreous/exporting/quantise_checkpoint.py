"""`vitreous.quantise`: int8 scales for a model, with which predictors compute in int8 on a CPU."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vitreous.common.device import placed
from vitreous.exporting.compare_precisions import calibration_images, comparison_images, open_splits
from vitreous.exporting.outputs import output_names
from vitreous.exporting.quantise import quantise as quantise_model
from vitreous.exporting.validate import Check, ExportFailed, check, reference_of
from vitreous.inference.predict_images import open_model
from vitreous.model.int8 import Int8Scales
from vitreous.model.protocol import Model
from vitreous.weights.native import set_int8_scales


@dataclass(frozen=True)
class Quantised:
    """Result of `vitreous.quantise`."""

    model: Model  # shares its weights with the given model
    scales: Int8Scales
    check: Check  # comparison of the int8 model with the given model


def quantise(
    model: Model | str | os.PathLike[str],
    data: str,
    *,
    image_size: int | Sequence[int] | None = None,
    max_images: int = 100,
) -> Quantised:
    """Fit the int8 scales of a model on training images, and compare the labels in int8 on validation images.

    The weights do not change. With the scales, `precision="int8"` works for predictions, embeddings, evaluation and the
    server. Save the result with `vitreous.save(result.model, folder)`. If less than 95% of the labels agree with those
    in float32, ExportFailed is raised.

    Args:
        model: A model or a checkpoint (folder, weight file, catalog name, hf-hub:owner/name).
        data: A data set, as for `vitreous.train`. 256 of its training images are used.
        image_size: Input size of the model. Default: the image size of the checkpoint.
        max_images: Maximum number of images to compare.
    """
    model = open_model(model, image_size)
    if model.config.output_kind.per_pixel:
        raise ValueError(f"int8 scales are for models with one output per image, got a {model.config.summary}")
    exact, splits = placed(model, torch.device("cpu"), torch.float32).eval(), open_splits(model.config, data)
    scales = Int8Scales.of_model(quantise_model(exact, calibration_images(model.config, splits.train)))
    if not scales.layers:
        raise ExportFailed(f"no layer of the {model.config.summary} keeps the outputs in int8")
    images, _ = comparison_images(model.config, splits.val, max_images)
    names = output_names(model)[:2]
    reference = reference_of(scales.applied(exact), names)
    compared = check(lambda inputs: reference(inputs["images"][0])[1], "int8", exact, images, names, size=False)
    if problem := compared.problem("int8"):
        raise ExportFailed(f"int8 does not reproduce the model: {problem}")
    quantised = copy.copy(model)
    set_int8_scales(quantised, scales)
    return Quantised(quantised, scales, compared)
