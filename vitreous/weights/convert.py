"""`vitreous.convert`: converts a checkpoint to another format and reports the differences."""

import dataclasses
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.model.protocol import Model, ModelConfig
from vitreous.weights.formats.base import AssumptionWarning
from vitreous.weights.formats.detect_format import canonical_name, format_for
from vitreous.weights.io.containers import SUFFIXES
from vitreous.weights.io.errors import BadCheckpoint, UnsupportedByFormat, shown
from vitreous.weights.load import ImageSize, load, open_checkpoint, save
from vitreous.weights.native import NativeCheckpoint, provenance_of
from vitreous.weights.parity import Difference, compare, random_images
from vitreous.weights.peers import PeerCheck, check_with_peer

__all__ = ["Conversion", "UnsupportedByFormat", "convert"]

LONG = 80  # characters of a config value
# Fields that only affect training, select equivalent implementations, or are reported in `losses`.
NOT_COMPARED = ("dropout", "stochastic_depth", "patch_dropout", "layer_scale", "patch_method", "norm_eps", "mlp")


@dataclass(frozen=True)
class Conversion:
    """Result of `vitreous.convert`."""

    path: Path  # the written file or folder
    provenance: dict[str, Any]  # origin of the source, assumptions and ignored tensors
    losses: list[str]  # numeric differences accepted by `lossy`
    remarks: list[str]  # differences too small to need `lossy`
    not_kept: list[str]  # config fields that the written checkpoint does not preserve
    differences: list[Difference]  # differences from the model after reading the checkpoint back, per stage
    read_as: str = "Vitreous"  # format of the source
    peer: PeerCheck | None = None  # comparison with the other library, if requested


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str,
    format: str | None = None,
    image_size: ImageSize | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    part: str | None = None,
    lossy: bool = False,
    check: bool = False,
) -> Conversion:
    """Convert a checkpoint to another format, read it back and compare the two models on random images.

    target: A folder, or a file whose suffix selects the file type: .safetensors, .pth, .npz, .pdparams.
    to: The format to write, e.g. "vitreous", "timm", "huggingface", "google".
    format, image_size, num_classes, overrides, part: Options for reading the source, as in `vitreous.load`.
    lossy: Write the model even if the other library computes different outputs with the same weights.
    check: Also run the other library on the written checkpoint, if it is installed, and compare its outputs.
    """
    target, native = Path(target), canonical_name(to) == "vitreous"  # an unknown format is reported before reading
    if target.exists() and os.path.exists(source) and target.samefile(source):
        raise ValueError(f"{target} is both the source and the target; choose another target")
    opened = open_checkpoint(source, format, part)
    model = opened.model(image_size, num_classes, overrides)
    save(model, target, to, lossy=lossy)
    provenance, losses, remarks = provenance_of(model), [], []
    if not native:
        written_as, folder = format_for(to, model.config), target.suffix not in SUFFIXES
        losses = written_as.differences(model.config, folder=folder)
        remarks = written_as.minor_differences(model.config) if folder else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumptionWarning)  # reported in `not_kept`
        written, not_kept = _read_back(target, to, model.config)
    images = random_images(model)
    differences = compare(model.float(), written.float(), images)
    read_as = "Vitreous" if isinstance(opened.checkpoint, NativeCheckpoint) else provenance["origin"]
    peer = check_with_peer(model, canonical_name(to), target, images) if check else None
    return Conversion(target, provenance, losses, remarks, not_kept, differences, read_as, peer)


def _read_back(target: Path, to: str, config: ModelConfig) -> tuple[Model, list[str]]:
    """Load the written checkpoint. Return the model and the config fields that the checkpoint does not preserve."""
    fields = [field.name for field in dataclasses.fields(config) if field.name not in NOT_COMPARED]
    known: dict[str, Any] = {name: getattr(config, name) for name in ("num_heads", "image_size") if name in fields}
    try:
        model, not_kept = load(target, to), []
    except BadCheckpoint:
        model, not_kept = None, [f"{field} (pass {field}={value} when loading)" for field, value in known.items()]
    if model is None or any(getattr(model.config, field) != value for field, value in known.items()):
        if model is not None:
            not_kept = _changes({field: (value, getattr(model.config, field)) for field, value in known.items()})
        model = load(target, to, overrides=known)
    return model, not_kept + _changes({name: (getattr(config, name), getattr(model.config, name)) for name in fields})


def _changes(fields: Mapping[str, tuple[object, object]]) -> list[str]:
    """Return one line per field that differs. Dataclasses are compared field by field.

    >>> from vitreous.model.options import Learned1d
    >>> _changes({"position": (Learned1d(interpolation="google"), Learned1d(interpolation="timm"))})
    ['position.interpolation: google is read as timm']
    """
    lines = []
    for name, (a, b) in fields.items():
        if a != b and dataclasses.is_dataclass(a) and type(a) is type(b):
            parts = [field.name for field in dataclasses.fields(a)]
            lines += _changes({f"{name}.{part}": (getattr(a, part), getattr(b, part)) for part in parts})
        elif a != b and b is None and dataclasses.is_dataclass(a):  # such as a calibration with its many numbers
            lines.append(name)
        elif a != b:
            before, after = _excerpts(str(a), str(b))
            lines.append(f"{name}: {before} is read as {after}")
    return lines


def _excerpts(a: str, b: str) -> tuple[str, str]:
    """Escape and truncate two texts. Long texts are cut to start shortly before their first difference.

    >>> _excerpts("x" * 90 + "one", "x" * 90 + "two")
    ('...xxxxxxxxxxone', '...xxxxxxxxxxtwo')
    """
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = max(same - 10, 0) if max(len(a), len(b)) > LONG else 0
    skipped = "..." if start else ""
    return skipped + shown(a[start:], LONG), skipped + shown(b[start:], LONG)
