"""`vitreous convert`: a checkpoint from one format to another, and a report of what that changed."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from vitreous.common.text import SafeConsole
from vitreous.model.config import ViTConfig
from vitreous.model.vit import ViT
from vitreous.weights.adapt import provenance_of
from vitreous.weights.convert import differences_at
from vitreous.weights.formats.detection import canonical_name, format_named
from vitreous.weights.io.containers import SUFFIXES
from vitreous.weights.io.errors import shown
from vitreous.weights.io.safetensors_file import BadCheckpoint
from vitreous.weights.load import load, load_written, save
from vitreous.weights.parity import Difference, compare, random_images

# What is of no use but in training, or another way to compute the same; and what is told as computed otherwise.
UNTOLD_OF = ("dropout", "stochastic_depth", "patch_dropout", "layer_scale", "patch_method", "norm_eps", "mlp")


def convert(
    source: str | Path,
    target: Path,
    to: str,
    from_: str | None = None,
    image_size: Sequence[int] = (),
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    lossy: bool = False,
    check: bool = False,
) -> list[Difference]:
    """Read, write, and read again what was written. Prints how far the two are apart; with `check`, stage by stage."""
    if target.exists() and os.path.exists(source) and target.samefile(source):
        raise ValueError(f"{target} is the source itself, which would be overwritten: name another DST")
    model = load(source, from_, image_size or None, num_classes, overrides)
    save(model, target, to, lossy=lossy)
    # Names of files and tensors may have brackets in them, and are to be copied whole.
    console = SafeConsole(markup=False, highlight=False, soft_wrap=True)
    record = provenance_of(model)
    console.print(f"read {source}: {record.get('origin', 'Vitreous')}")
    for line in record.get("assumed", ()):
        console.print(f"  taken by convention: {line}")
    for name in record.get("left_out", ()):
        console.print(f"  left out: {shown(name)}")
    console.print(f"wrote {target}: {to}")
    if not isinstance(model, ViT):
        return []
    if canonical_name(to) != "vitreous":
        for line in differences_at(target, format_named(to), model.config):
            console.print(f"  computed otherwise: {line}")
        if target.suffix not in SUFFIXES:
            for line in format_named(to).minor_differences(model.config):
                console.print(f"  note: {line}")
    written, untold = read_again(target, to, model.config)
    for line in untold:
        console.print(f"  not kept: {line}")
    differences = compare(model.float(), written.float(), random_images(model))
    console.print(
        f"read again: outputs differ by {differences[-1].largest:.2e} at most, of {differences[-1].scale:.3g}",
    )
    if check:
        console.print(report(differences))
    return differences


def read_again(target: Path, to: str, config: ViTConfig) -> tuple[ViT, list[str]]:
    """What was written, and which fields of the config it does not hold: these the next reader has to be told."""
    known = {"num_heads": config.num_heads, "image_size": config.image_size}
    try:
        model, untold = load_written(target, to), []
    except BadCheckpoint:
        model, untold = None, [f"{field}, which must be given: {value}" for field, value in known.items()]
    if model is None or any(getattr(model.config, field) != value for field, value in known.items()):
        if model is not None:
            untold = _changed({field: (value, getattr(model.config, field)) for field, value in known.items()})
        model = load_written(target, to, known)
    assert isinstance(model, ViT)
    fields = [field.name for field in dataclasses.fields(config) if field.name not in UNTOLD_OF]
    return model, untold + _changed({name: (getattr(config, name), getattr(model.config, name)) for name in fields})


def _changed(fields: Mapping[str, tuple[object, object]]) -> list[str]:
    """One line for each field that differs. Two options of one kind are compared field by field.

    >>> from vitreous.model.options import Learned1d
    >>> _changed({"position": (Learned1d(interpolation="google"), Learned1d(interpolation="timm"))})
    ['position.interpolation: google is read as timm']
    """
    lines = []
    for name, (a, b) in fields.items():
        if a != b and dataclasses.is_dataclass(a) and type(a) is type(b):
            parts = [field.name for field in dataclasses.fields(a)]
            lines += _changed({f"{name}.{part}": (getattr(a, part), getattr(b, part)) for part in parts})
        elif a != b:
            lines.append(f"{name}: {shown(a)} is read as {shown(b)}")
    return lines


def report(differences: list[Difference]) -> Table:
    table = Table("stage", "largest difference", "mean", "largest value", box=None)
    for one in differences:
        table.add_row(one.stage, f"{one.largest:.2e}", f"{one.mean:.2e}", f"{one.scale:.3g}")
    return table
