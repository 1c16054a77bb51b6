"""Numbers that the page shows of an image: predictions, maps with their tests, distances, and masks.

n: patches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explanation import CLASS_MAPS, MapName
from vitreous.explanation.captured import attention_distance, distances
from vitreous.explanation.importance_maps import (
    Fusion,
    as_pixels,
    faithfulness,
    importance_map,
    masked_probabilities,
    random_faithfulness,
    rollout_map,
)
from vitreous.explanation.pca_and_similarity import pca_colours
from vitreous.inference.mask_images import background_of, palette
from vitreous.model.options import IGNORED
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.responses import class_entry, rounded, top_classes
from vitreous.serving.inspect.session import Session

TOP, TOP_OF_A_LAYER = 5, 3  # classes


# ---- Predictions -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def predictions(session: Session) -> list[dict[str, Any]] | None:
    """Top classes; None if the model does not classify."""
    model = session.inspected.model
    if model.config.task != "classify":
        return None
    scores = session.captured.logits() if model.config.has_attention else model(session.image)
    return top_classes(session.inspected.labels, scores[0].softmax(dim=-1), TOP)


def top_class(session: Session) -> int:
    return int(session.classifier_pass.logits()[0].argmax())


def masked(session: Session, patches: Sequence[int], classes: Sequence[int]) -> dict[str, Any]:
    """Predictions with some patches masked by the image's mean colour, as in occlusion."""
    captured = session.classifier_pass
    mask = torch.zeros(1, *captured.layout.grid, dtype=torch.bool)
    mask.view(-1)[list(patches)] = True
    size = (captured.images.shape[2], captured.images.shape[3])
    probabilities = masked_probabilities(captured, [as_pixels(mask, captured.model.config.patch_stride, size)], "mean")[
        0
    ]
    values = rounded(probabilities[list(classes)]) if classes else []
    return {
        "predictions": top_classes(session.inspected.labels, probabilities, TOP),
        "probabilities": {str(index): value for index, value in zip(classes, values, strict=True)},
    }


def lens(session: Session) -> dict[str, Any]:
    """Top classes after each layer."""
    probabilities = session.classifier_pass.lens()[:, 0].softmax(dim=-1)
    rows = [top_classes(session.inspected.labels, row, TOP_OF_A_LAYER) for row in probabilities]
    return {"layers": [{"layer": layer, "predictions": row} for layer, row in enumerate(rows)]}


# ---- Maps ------------------------------------------------------------------------------------------------------------


def cached_map(session: Session, method: MapName, target: int | None) -> Float[Tensor, "gh gw"]:
    """Importance of every patch; cached, because a map is shown and then tested.

    Where a forward pass is slow, windows of occlusion do not overlap: a quarter of the passes.
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


def rollout(session: Session, fusion: Fusion, discard: float, layer: int) -> dict[str, Any]:
    """Rollout from the first layer to `layer`."""
    return as_map("rollout", rollout_map(session.captured, range(layer + 1), fusion, discard)[0])


def layer_attention(session: Session, layer: int) -> dict[str, Any]:
    return as_map("attention", session.captured.attention_map(layer)[0])


def as_map(method: str, values: Float[Tensor, "gh gw"], target: dict[str, Any] | None = None) -> dict[str, Any]:
    ends = rounded(torch.stack([values.min(), values.max()]))
    numbers = {"values": rounded(values.flatten()), "range": ends}
    return {"method": method, "target": target, "grid": list(values.shape), **numbers}


def components(session: Session, layer: int) -> dict[str, Any]:
    """Three principal components of the patch features as red, green and blue."""
    grid = session.captured.layout.grid
    colours = rounded(pca_colours(session.captured.features(layer).patches[0], grid).flatten())
    return {"method": "pca", "target": None, "grid": list(grid), "rgb": colours, "range": [0.0, 1.0]}


def distance(session: Session) -> dict[str, Any]:
    """Attention distance in pixels of the model's input; `largest` is between opposite corners."""
    config = session.captured.model.config
    corner = distances(config.grid, config.patch_stride, slice(0, 1))[0, -1]
    pixels = attention_distance(session.captured, between=session.step)
    return {"pixels": rounded(pixels), "largest": rounded(corner)}


def map_test(session: Session, method: MapName, target: int) -> dict[str, Any]:
    """Deletion and insertion of a map, and of random orders: three or, if a forward pass is slow, one."""
    captured, size = session.classifier_pass, session.batch_size
    draws = 1 if session.slow else 3
    values = cached_map(session, method, target)
    found = faithfulness(captured, target, values, batch_size=size, between=session.step)
    random = session.once(
        ("random", target),
        lambda: random_faithfulness(captured, target, draws, batch_size=size, between=session.step),
        lambda one: 3 * one.fractions.nbytes,
    )
    return {
        "method": method,
        "target": class_entry(session.inspected.labels, target),
        "shares": rounded(found.fractions),
        "deletion": {"auc": found.deletion, "curve": rounded(found.deletion_curve)},
        "insertion": {"auc": found.insertion, "curve": rounded(found.insertion_curve)},
        "random": {"deletion": random.deletion, "insertion": random.insertion},
    }


# ---- Masks of a segmenter --------------------------------------------------------------------------------------------


@torch.no_grad()
def mask(session: Session) -> UInt8[np.ndarray, "h w"]:
    """Class of every pixel that the grid covers; IGNORED beyond the image."""
    inspected = session.inspected

    def make() -> np.ndarray:
        model, config, (gh, gw) = inspected.model, inspected.model.config, inspected.grid
        if config.task != "segment":
            raise ApiError(409, "no_masks", f"{inspected.id} does not segment")
        (ph, pw) = config.patch_stride
        ids = model(session.image)[0].argmax(dim=0).to(torch.uint8)
        bottom, right = gh * ph - ids.shape[0], gw * pw - ids.shape[1]
        return F.pad(ids, (0, right, 0, bottom), value=IGNORED).cpu().numpy()

    return session.once("mask", make, lambda ids: ids.nbytes)


def segments(session: Session) -> list[dict[str, Any]] | None:
    """Classes in the mask, the largest first; None if the model does not segment."""
    if session.inspected.model.config.task != "segment":
        return None
    ids, labels = mask(session), session.inspected.labels
    counts = np.bincount(ids[ids != IGNORED].ravel(), minlength=1)
    fractions, colours = counts / counts.sum(), palette(background_of(labels))
    return [
        {**class_entry(labels, i), "color": "#" + colours[i].tobytes().hex(), "share": round(fractions[i], 6)}
        for i in map(int, np.argsort(-counts, kind="stable"))
        if counts[i]
    ]
