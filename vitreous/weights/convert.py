"""`vitreous.convert`: a checkpoint from one format to another, with a report of what that changed."""

import dataclasses
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.model.config import ViTConfig
from vitreous.model.vit import ViT
from vitreous.weights.formats.base import AssumptionWarning
from vitreous.weights.formats.detection import canonical_name, format_named
from vitreous.weights.io.containers import SUFFIXES
from vitreous.weights.io.errors import BadCheckpoint, UnsupportedByFormat, shown
from vitreous.weights.load import ImageSize, load, save
from vitreous.weights.native import provenance_of
from vitreous.weights.parity import Difference, compare, random_images

__all__ = ["Conversion", "UnsupportedByFormat", "convert"]

# Fields that matter only in training, or that choose between equal computations, or that `losses` reports.
NOT_COMPARED = ("dropout", "stochastic_depth", "patch_dropout", "layer_scale", "patch_method", "norm_eps", "mlp")


@dataclass(frozen=True)
class Conversion:
    """The result of `vitreous.convert`. Lists have one line per entry."""

    path: Path  # of what was written
    provenance: dict[str, Any]  # of the source: its origin, assumptions and ignored tensors
    losses: list[str]  # differences in computation that `lossy` accepted
    remarks: list[str]  # differences too small to need `lossy`
    not_kept: list[str]  # config fields that the written checkpoint does not state
    differences: list[Difference]  # between the models, stage by stage, the outputs last; empty unless it is a ViT


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str,
    format: str | None = None,
    image_size: ImageSize | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    lossy: bool = False,
) -> Conversion:
    """Convert a checkpoint to another format, read it back and compare the two models on random images.

    target: a folder, or a file whose suffix selects its kind: .safetensors, .pth, .npz, .pdparams.
    to: the format to write, e.g. "vitreous", "timm", "huggingface", "google".
    format, image_size, num_classes, overrides: how to read the source, as in `vitreous.load`.
    lossy: write the model even if the other system computes differently with the same weights.
    """
    target = Path(target)
    if target.exists() and os.path.exists(source) and target.samefile(source):
        raise ValueError(f"{target} is the source itself, which would be overwritten: choose another target")
    model = load(source, format, image_size, num_classes, overrides)
    save(model, target, to, lossy=lossy)
    provenance, losses, remarks = provenance_of(model), [], []
    if not isinstance(model, ViT):
        return Conversion(target, provenance, [], [], [], [])
    if canonical_name(to) != "vitreous":
        losses = format_named(to).differences(model.config, folder=target.suffix not in SUFFIXES)
        remarks = [] if target.suffix in SUFFIXES else format_named(to).minor_differences(model.config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)  # `not_kept` reports the same
        written, not_kept = _read_back(target, to, model.config)
    differences = compare(model.float(), written.float(), random_images(model))
    return Conversion(target, provenance, losses, remarks, not_kept, differences)


def _read_back(target: Path, to: str, config: ViTConfig) -> tuple[ViT, list[str]]:
    """Load what was written, and list the config fields that it does not state and a reader must be given."""
    known = {"num_heads": config.num_heads, "image_size": config.image_size}
    try:
        model, not_kept = load(target, to), []
    except BadCheckpoint:
        model, not_kept = None, [f"{field}, which must be given: {value}" for field, value in known.items()]
    if model is None or any(getattr(model.config, field) != value for field, value in known.items()):
        if model is not None:
            not_kept = _changes({field: (value, getattr(model.config, field)) for field, value in known.items()})
        model = load(target, to, overrides=known)
    assert isinstance(model, ViT)
    fields = [field.name for field in dataclasses.fields(config) if field.name not in NOT_COMPARED]
    return model, not_kept + _changes({name: (getattr(config, name), getattr(model.config, name)) for name in fields})


def _changes(fields: Mapping[str, tuple[object, object]]) -> list[str]:
    """Return one line per field that differs; dataclasses of one class are compared field by field.

    >>> from vitreous.model.options import Learned1d
    >>> _changes({"position": (Learned1d(interpolation="google"), Learned1d(interpolation="timm"))})
    ['position.interpolation: google is read as timm']
    """
    lines = []
    for name, (a, b) in fields.items():
        if a != b and dataclasses.is_dataclass(a) and type(a) is type(b):
            parts = [field.name for field in dataclasses.fields(a)]
            lines += _changes({f"{name}.{part}": (getattr(a, part), getattr(b, part)) for part in parts})
        elif a != b:
            lines.append(f"{name}: {shown(a)} is read as {shown(b)}")
    return lines
