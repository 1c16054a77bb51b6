"""`vitreous.quantise`: int8 scales for a model, with which predictors compute in int8 on a CPU."""

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vitreous.common.device import placed
from vitreous.exporting.compare_precisions import calibration_images, comparison_images, open_splits
from vitreous.exporting.metadata import ACTIVATIONS
from vitreous.exporting.outputs import output_names
from vitreous.exporting.quantise import quantise as quantise_model
from vitreous.exporting.validate import Check, ExportFailed, check
from vitreous.inference.predict_images import open_model
from vitreous.inference.predictor import Embedder, predictor_for
from vitreous.model.int8 import Int8Scales
from vitreous.model.protocol import Model
from vitreous.model.top_labels import class_probabilities
from vitreous.runtimes.sessions import Session
from vitreous.weights.native import set_int8_scales

LONG_JOB = 10**9  # images; the comparison uses the backend of a large job


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
    quantised = copy.copy(model)
    set_int8_scales(quantised, scales)
    names = output_names(model)[: 2 if model.config.task in ACTIVATIONS else 1]
    compared = check(int8_session(quantised), "int8", exact, images, names, size=False)
    if problem := compared.problem("int8"):
        raise ExportFailed(f"int8 does not reproduce the model: {problem}")
    return Quantised(quantised, scales, compared)


def int8_session(model: Model) -> Session:
    """Return a session that computes the outputs of a model in int8, with the backend of a predictor."""
    predictor = predictor_for(model, "cpu", precision="int8", workers=0)
    assert isinstance(predictor, Embedder)
    predictor.prepare(LONG_JOB)

    def run(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not model.config.num_classes:
            return {"pooled": predictor.embed(inputs["images"]).numpy()}
        logits = predictor.logits(inputs["images"])
        return {"logits": logits.numpy(), "probabilities": class_probabilities(logits, model.config).numpy()}

    return run
