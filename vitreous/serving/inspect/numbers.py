"""Results that need the cache, the scheduler or the whole model of a session. page/results.py computes the others."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation import CLASS_MAPS, MapName
from vitreous.explanation.rollout_relevance_occlusion import (
    as_pixels,
    faithfulness,
    importance_map,
    masked_probabilities,
    random_faithfulness,
)
from vitreous.explanation.switch_off import head_effects
from vitreous.inference.mask_images import hex_colours
from vitreous.inference.segment_predictor import LONGEST
from vitreous.model.segmenter import Segmenter, slide
from vitreous.model.tokens import Features
from vitreous.page import results
from vitreous.page.results import TOP, as_map, class_entry, faithfulness_curves, picture, rounded, top_classes
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.service import Session

# ---- Predictions -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def predictions(session: Session) -> dict[str, Any]:
    """Return the top classes (None unless the model is a classifier) and `unknown` (None unless it is calibrated)."""
    model, labels = session.inspected.model, session.inspected.labels
    if not model.config.backbone.output_kind.classes:
        return {"predictions": None, "unknown": None}
    if model.config.has_attention:
        scores, pooled = session.captured.logits(), model.pool_features(session.captured.features())
    else:
        scores, pooled = model.logits_and_pooled(session.image)
    return results.predictions(model, scores[0], pooled, labels)


@torch.no_grad()
def features(session: Session) -> Features:
    """Return the features of the image, with or without attention."""
    model = session.inspected.model
    return (
        session.captured.features() if model.config.backbone.has_attention else model.backbone.features(session.image)
    )


def output_patch(session: Session, patch: int) -> int:
    """Return the index among the output features of a patch of the map. Swin merges patches between its stages."""
    if not session.inspected.model.config.backbone.has_attention:
        return patch
    captured, columns = session.captured, session.inspected.grid[1]
    down, across = captured.scale(-1)
    return patch // columns // down * captured.features().grid[1] + patch % columns // across


def image_summary(session: Session, id: str, image: Size) -> dict[str, Any]:
    """Return the response to the upload of an image: its id, size, patch grid, predictions and segments."""
    return {
        "id": id,
        "model": session.inspected.id,
        **picture(session.inspected.model.config, image),
        **predictions(session),
        "segments": segments(session),
    }


def top_class(session: Session) -> int:
    return int(session.classifier_pass.logits()[0].argmax())


def masked(session: Session, patches: Sequence[int], classes: Sequence[int]) -> dict[str, Any]:
    """Return the predictions after filling some patches with the mean colour of the image, as in occlusion."""
    captured = session.classifier_pass
    mask = torch.zeros(1, *captured.layout.grid, dtype=torch.bool)
    mask.view(-1)[list(patches)] = True
    size = (captured.images.shape[2], captured.images.shape[3])
    pixels = as_pixels(mask, captured.model.config.map_stride, size)
    probabilities = masked_probabilities(captured, [pixels], "mean")[0]
    values = rounded(probabilities[list(classes)]) if classes else []
    return {
        "predictions": top_classes(session.inspected.labels, probabilities, TOP),
        "probabilities": {str(index): value for index, value in zip(classes, values, strict=True)},
    }


def effects(session: Session, target: int) -> dict[str, Any]:
    """Return the drop in the probability of a class without each head."""
    drops = head_effects(session.classifier_pass, target, session.batch_size, session.step)
    return {"target": class_entry(session.inspected.labels, target), "heads": rounded(drops)}


# ---- Maps ------------------------------------------------------------------------------------------------------------


def cached_map(session: Session, method: MapName, target: int | None) -> Float[Tensor, "gh gw"]:
    """Return the importance of every patch. The map is cached, because its test may be requested later.

    If a forward pass is slow, occlusion windows do not overlap. This divides the number of passes by four.
    """
    about = target if method in CLASS_MAPS else None
    captured = session.captured if about is None else session.classifier_pass
    return session.once(
        ("map", method, about),
        lambda: importance_map(
            captured, method, target, session.batch_size, overlap=not session.slow, between=session.step
        ).cpu(),
        lambda values: values.nbytes,
    )


def importance(session: Session, method: MapName, target: int | None) -> dict[str, Any]:
    values = cached_map(session, method, target)
    entry = class_entry(session.inspected.labels, target) if target is not None and method in CLASS_MAPS else None
    return as_map(method, values, entry)


def map_test(session: Session, method: MapName, target: int) -> dict[str, Any]:
    """Return the deletion and insertion results of a map, and of three random orders (one if the model is slow)."""
    captured, size = session.classifier_pass, session.batch_size
    draws = 1 if session.slow else 3
    values = cached_map(session, method, target)
    result = faithfulness(captured, target, values, batch_size=size, between=session.step)
    random = session.once(
        ("random", target),
        lambda: random_faithfulness(captured, target, draws, batch_size=size, between=session.step),
        lambda curves: 3 * curves.fractions.nbytes,
    )
    target_class = class_entry(session.inspected.labels, target)
    return {"method": method, "target": target_class, **faithfulness_curves(result, random)}


# ---- Segmentation masks ----------------------------------------------------------------------------------------------


@torch.no_grad()
def mask(session: Session) -> UInt8[np.ndarray, "h w"]:
    """Return the class of every pixel of the whole image, after resizing the image to cover the model input."""
    inspected = session.inspected

    def make() -> np.ndarray:
        if not inspected.model.config.output_kind.per_pixel:
            raise ApiError(409, "no_masks", f"{inspected.id} is not a segmentation model")
        if session.whole is None:
            raise ApiError(422, "unreadable_image", f"the aspect ratio of the image exceeds the maximum of {LONGEST}")
        scores = slide(cast(Segmenter, inspected.model), session.whole)
        return scores[0].argmax(dim=0).to(torch.uint8).cpu().numpy()

    return session.once("mask", make, lambda ids: ids.nbytes)


def segments(session: Session) -> list[dict[str, Any]] | None:
    """Return the classes in the mask, largest first, or None if the model is not a segmenter."""
    if not session.inspected.model.config.output_kind.per_pixel:
        return None
    ids, labels = mask(session), session.inspected.labels
    counts = np.bincount(ids.ravel(), minlength=1)
    fractions, colours = counts / counts.sum(), hex_colours(labels)
    return [
        {**class_entry(labels, i), "color": colours[i], "share": round(fractions[i], 6)}
        for i in map(int, np.argsort(-counts, kind="stable"))
        if counts[i]
    ]
