"""`vitreous.load` and `vitreous.save`: models from checkpoints and to them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous.model.checks import check_choice
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT
from vitreous.weights.native import load_folder, save_folder

FORMATS = ("vitreous",)


def load(
    source: str | Path,
    format: str | None = None,
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> ViT | ResNet:
    """A model in evaluation mode, from a checkpoint folder.

    `image_size` resamples its positions; `num_classes` gives it a fresh head; `overrides` changes other fields.
    """
    check_choice("format", format or "vitreous", FORMATS)
    return load_folder(Path(source), image_size=image_size, num_classes=num_classes, overrides=overrides)


def save(
    model: ViT | ResNet, path: str | Path, format: str = "vitreous", provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a model as a checkpoint folder: weights, config and model card, whole or not at all."""
    check_choice("format", format, FORMATS)
    save_folder(model, path, provenance)
