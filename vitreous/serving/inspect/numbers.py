"""What the page shows of a picture, beside attention and likeness: maps, how far they can be believed, answers.

n: patches.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explanation.capture import attention_of
from vitreous.explanation.distance import distances, layer_distance
from vitreous.explanation.faithfulness import as_patches, as_pixels, faithfulness, random_faithfulness
from vitreous.explanation.occlusion import occlusion, painted, usual_windows
from vitreous.explanation.relevance import relevance_of
from vitreous.explanation.rollout import Fusion, rollout_of
from vitreous.explanation.tokens import lens_of, pca_colours
from vitreous.inference.mask_images import background_of, palette
from vitreous.model.options import IGNORED
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.responses import likeliest, named, plain
from vitreous.serving.inspect.session import Subject

Importance = Literal["relevance", "rollout", "attention", "occlusion"]
ABOUT_A_CLASS = ("relevance", "occlusion")
TOP, TOP_OF_A_LAYER = 5, 3  # classes that are named


# ---- What it says ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def predictions(subject: Subject) -> list[dict[str, Any]] | None:
    """None where the model does not classify."""
    model = subject.looked.model
    if isinstance(model, Segmenter) or not model.config.num_classes:
        return None
    shares = model(subject.image)[0].softmax(-1) if isinstance(model, ResNet) else probabilities(subject)
    return likeliest(subject.looked.labels, shares, TOP)


@torch.no_grad()
def probabilities(subject: Subject) -> Float[Tensor, "classes"]:
    return subject.looked.classifier.classify(subject.walk.features())[0].float().softmax(dim=-1)


@torch.no_grad()
def masked(subject: Subject, patches: Sequence[int], classes: Sequence[int]) -> dict[str, Any]:
    """The answer when patches are painted over with the picture's mean colour, as occlusion does."""
    model, image = subject.looked.classifier, subject.image
    gone = torch.zeros(subject.looked.grid, dtype=torch.bool, device=image.device)
    gone.view(-1)[list(patches)] = True
    hidden = as_pixels(gone[None], model.config.patch_stride, (image.shape[2], image.shape[3]))
    shares = model(torch.where(hidden, painted(model, image, "mean"), image))[0].float().softmax(dim=-1)
    asked = plain(shares[list(classes)]) if classes else []
    return {
        "predictions": likeliest(subject.looked.labels, shares, TOP),
        "probabilities": {str(index): share for index, share in zip(classes, asked, strict=True)},
    }


def lens(subject: Subject) -> dict[str, Any]:
    """What the head would say after each layer."""
    model, labels = subject.looked.classifier, subject.looked.labels
    shares = lens_of(subject.walk, range(model.config.depth))[:, 0].softmax(dim=-1)
    rows = [likeliest(labels, row, TOP_OF_A_LAYER) for row in shares]
    return {"layers": [{"layer": layer, "predictions": row} for layer, row in enumerate(rows)]}


# ---- Where it looks --------------------------------------------------------------------------------------------------


def map_of(subject: Subject, method: Importance, target: int | None) -> Float[Tensor, "gh gw"]:
    """How important every patch is by a method as it is by default; kept, because it is shown and put to the test."""

    def make() -> Tensor:
        match method:
            case "attention":
                return attention_of(subject.walk)[0].cpu()
            case "rollout":
                return rollout_of(subject.walk)[0].cpu()
            case "relevance":
                return relevance_of(subject.walk, target, subject.step)[0].cpu()
            case "occlusion":
                assert target is not None
                return _occlusion(subject, target).cpu()

    about = target if method in ABOUT_A_CLASS else None
    return subject.once(("map", method, about), make, lambda values: values.nbytes)


def _occlusion(subject: Subject, target: int) -> Float[Tensor, "gh gw"]:
    """Windows overlap by half, but where a pass is slow they lie side by side: a quarter of the passes."""
    model, image = subject.looked.classifier, subject.image
    window, stride = usual_windows(model, (image.shape[2], image.shape[3]))
    if subject.slow:
        stride = window
    drops = occlusion(model, image, target, window, stride, batch_size=subject.batch_size, between=subject.step)
    return as_patches(drops, model.config.patch_stride)


def importance(subject: Subject, method: Importance, target: int | None) -> dict[str, Any]:
    values = map_of(subject, method, target)
    about = None if target is None or method not in ABOUT_A_CLASS else named(subject.looked.labels, target)
    return as_map(subject, method, values, about)


def rollout(subject: Subject, fusion: Fusion, discard: float, layer: int) -> dict[str, Any]:
    """From the first layer to `layer`."""
    return as_map(subject, "rollout", rollout_of(subject.walk, range(layer + 1), fusion, discard)[0])


def layer_attention(subject: Subject, layer: int) -> dict[str, Any]:
    return as_map(subject, "attention", attention_of(subject.walk, layer)[0])


def as_map(subject: Subject, method: str, values: Tensor, about: dict[str, Any] | None = None) -> dict[str, Any]:
    ends = plain(torch.stack([values.min(), values.max()]))
    numbers = {"values": plain(values.flatten()), "range": ends}
    return {"method": method, "target": about, "grid": list(subject.looked.grid), **numbers}


def components(subject: Subject, layer: int) -> dict[str, Any]:
    """The three directions in which patches differ most, as red, green and blue."""
    grid = subject.looked.grid
    colours = pca_colours(subject.walk.features(layer).patches[0], grid)
    return {"method": "pca", "target": None, "grid": list(grid), "rgb": plain(colours.flatten()), "range": [0.0, 1.0]}


def distance(subject: Subject) -> dict[str, Any]:
    """In pixels of what the model is given; `largest` is between opposite corners."""
    config, rows = subject.looked.vit.config, []
    for layer in range(config.depth):
        subject.step()
        rows.append(layer_distance(subject.walk.layer(layer)))
    corner = distances(config.grid, config.patch_stride, slice(0, 1))[0, -1]
    return {"pixels": plain(torch.stack(rows)), "largest": plain(corner)}


# ---- How far it can be believed --------------------------------------------------------------------------------------


def tested(subject: Subject, method: Importance, target: int) -> dict[str, Any]:
    """Deletion and insertion for a map, and for patches in random order: the mean of three or, where slow, one such."""
    model, image, size = subject.looked.classifier, subject.image, subject.batch_size
    draws = 1 if subject.slow else 3
    values = map_of(subject, method, target)
    found = faithfulness(model, image, target, values, batch_size=size, between=subject.step)
    random = subject.once(
        ("random", target),
        lambda: random_faithfulness(model, image, target, draws, batch_size=size, between=subject.step),
        lambda one: 3 * one.shares.nbytes,
    )
    return {
        "method": method,
        "target": named(subject.looked.labels, target),
        "shares": plain(found.shares),
        "deletion": {"auc": found.deletion, "curve": plain(found.deletion_curve)},
        "insertion": {"auc": found.insertion, "curve": plain(found.insertion_curve)},
        "random": {"deletion": random.deletion, "insertion": random.insertion},
    }


# ---- Masks of a segmenter --------------------------------------------------------------------------------------------


@torch.no_grad()
def mask(subject: Subject) -> UInt8[np.ndarray, "h w"]:
    """The class of every pixel of what the grid covers; where that reaches beyond the picture, none."""

    def make() -> np.ndarray:
        model, (gh, gw), (uh, uw) = (
            subject.looked.segmenter,
            subject.looked.grid,
            subject.looked.vit.config.patch_stride,
        )
        if model.config.num_classes > IGNORED:
            said = f"{subject.looked.id} tells {model.config.num_classes} classes apart, but a mask shows {IGNORED}"
            raise ApiError(409, "too_many_classes", said)
        ids = model(subject.image)[0].argmax(dim=0).to(torch.uint8)
        bottom, right = gh * uh - ids.shape[0], gw * uw - ids.shape[1]
        return F.pad(ids, (0, right, 0, bottom), value=IGNORED).cpu().numpy()

    return subject.once("mask", make, lambda ids: ids.nbytes)


def segments(subject: Subject) -> list[dict[str, Any]] | None:
    """The classes that are there, the largest first; None where the model does not segment."""
    if not isinstance(subject.looked.model, Segmenter):
        return None
    ids, labels = mask(subject), subject.looked.labels
    counts = np.bincount(ids[ids != IGNORED].ravel(), minlength=1)
    colours = palette(background_of(labels))
    order = [int(index) for index in np.argsort(-counts, kind="stable") if counts[index]]
    return [
        {**named(labels, i), "color": "#" + colours[i].tobytes().hex(), "share": round(counts[i] / counts.sum(), 6)}
        for i in order
    ]
