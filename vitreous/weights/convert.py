"""Models from other systems' checkpoints, and to them."""

import dataclasses
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import torch

from vitreous.common.atomic_files import atomic_file, atomic_folder
from vitreous.common.checks import BadValue, suggestion
from vitreous.common.codec import decode, to_dict
from vitreous.model.config import ViTConfig
from vitreous.model.meta_build import build_blank, fill
from vitreous.model.vit import ViT
from vitreous.weights.formats.base import AssumptionWarning, ConfigBuilder, Format
from vitreous.weights.formats.mapping import matches, read_table, write_table
from vitreous.weights.formats.write_checks import unknown_options
from vitreous.weights.io.checkpoint import ForeignCheckpoint
from vitreous.weights.io.containers import SUFFIXES
from vitreous.weights.io.safetensors_file import BadCheckpoint
from vitreous.weights.native import CARD, is_checkpoint

# What a folder that was written here holds; one with anything else is not replaced.
WRITTEN = {"config.json", "model.safetensors", "model.pdparams", "preprocessor_config.json"}


class CannotHold(ValueError):
    """A format has no place for a part of a model, or computes with it otherwise."""


def read_foreign(
    format: Format,
    found: ForeignCheckpoint,
    overrides: Mapping[str, Any],
    image_size: Any = None,
    new_head: bool = False,
    warn: bool = True,
) -> ViT:
    """Read the model of a checkpoint. Its provenance records overrides, assumptions and ignored tensors.

    new_head: the classifier is going to be replaced, and so ignored where a model of ours cannot have it.
    warn: whether to issue an AssumptionWarning for what is uncertain.
    """
    hints = get_type_hints(ViTConfig)
    for field in overrides:
        if field not in hints:
            raise BadValue(f"{field!r} is not a field of ViTConfig{suggestion(field, hints)}")
    opened, found = found, format.normalise(found)
    guess = ConfigBuilder(found, overrides, new_head)
    given = {field: decode(hints[field], value, field) for field, value in overrides.items()}
    try:
        format.infer(found, guess, image_size)
        config = dataclasses.replace(ViTConfig(labels=()), **guess.fields | given)
    except BadCheckpoint:
        raise
    except ValueError as error:
        # What the caller gave cannot be with these tensors; anything else is the file's fault.
        asked = isinstance(error, BadValue) and any(field in str(error) for field in given)
        raise (BadValue if asked else BadCheckpoint)(f"{found.path}, read as {format.title}: {error}") from error
    if config.depth * 4 > len(found.tensors):  # said before a thousand layers are built in vain
        raise BadCheckpoint(f"{found.path} has {len(found.tensors)} tensors, too few for depth {config.depth}")
    if warn and guess.warning:
        warnings.warn(guess.warning, AssumptionWarning, stacklevel=4)  # where vitreous.load was called
    model = build_blank(config)
    table = format.table(config)
    tensors = read_table(table, found.tensors, model.state_dict(), found.path, format.ignored)
    fill(model, tensors)
    opened.forget()  # what was read only to be put together with others
    used = {name for row in table for name in row.theirs}
    left_out = list(opened.ignored)
    left_out += [name for name in found.tensors if name not in used and matches(name, format.ignored)]
    vars(model)["provenance"] = {
        "origin": format.title,
        "format": format.name,
        "file": found.path.name,
        **({"inside": list(opened.inside)} if opened.inside else {}),
        **({"given": {field: to_dict(config)[field] for field in given}} if given else {}),
        **({"assumed": guess.assumed} if guess.assumed else {}),
        **({"left_out": left_out} if left_out else {}),
    }
    return model.eval()


def write_foreign(model: ViT, format: Format, path: str | os.PathLike[str], lossy: bool = False) -> list[str]:
    """Write a model as the other system would have written it. Returns what is lost, which only `lossy` allows.

    What was at `path` before is replaced, whole or not at all.
    """
    config, target = model.config, Path(path)
    if format.suffixes and target.suffix not in format.suffixes:
        usual = ", ".join(format.suffixes)
        raise ValueError(f"{target} ends in {target.suffix!r}, but {format.title} is one file that ends in {usual}")
    if obstacles := unknown_options(config) or format.unsupported(config):
        raise CannotHold(f"{format.title} cannot hold this model: {'; '.join(obstacles)}")
    losses = differences_at(target, format, config)
    if losses and not lossy:
        in_folder = not format.suffixes and not format.differences(config, folder=True)
        remedy = "Name a folder, whose config.json states it, or write" if in_folder else "Write"
        raise CannotHold(
            f"{format.title} would compute otherwise with these weights: {'; '.join(losses)}. "
            f"{remedy} it all the same with lossy=True (--lossy)"
        )
    ours = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    with torch.device("cpu"):  # whatever torch's default device is
        tensors = write_table(format.table(config), ours) | format.extra_tensors(config)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    needed = sum(tensor.nbytes for tensor in tensors.values())
    _check_replaceable(target)
    with (atomic_file if target.suffix in SUFFIXES else atomic_folder)(target, needed=needed) as aside:
        format.write(tensors, config, aside)
    return losses


def differences_at(target: Path, format: Format, config: ViTConfig) -> list[str]:
    """What the other system computes otherwise with what is written there: a file has no config, a folder may."""
    return format.differences(config, folder=target.suffix not in SUFFIXES)


def _check_replaceable(target: Path) -> None:
    ours = {CARD} if is_checkpoint(target) else set()  # any other README.md somebody has written
    if target.is_dir() and (foreign := sorted({file.name for file in target.iterdir()} - WRITTEN - ours)):
        raise ValueError(f"{target} holds {foreign[0]}, which writing would delete: name a new folder")
