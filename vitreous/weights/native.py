"""Our own checkpoint: a folder with `model.safetensors`, `config.json` and `README.md` (the model card).

`config.json` holds everything needed to rebuild the model, preprocess a picture and name the classes, and where the
weights come from. Loading builds the model without memory and hands it the tensors of the memory-mapped file, so that
nothing is allocated twice, and nothing at all before names, shapes and types have been checked. No code is executed.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from torch import Tensor

import vitreous
from vitreous.common.atomic_files import atomic_folder, recover
from vitreous.common.checks import BadValue, suggestion
from vitreous.common.codec import decode, to_dict
from vitreous.common.json_files import read_json_object
from vitreous.model.config import ResNetConfig, SegmenterConfig
from vitreous.model.kinds import AnyConfig, AnyModel
from vitreous.model.meta_build import build_blank, fill
from vitreous.weights.adapt import adapt, provenance_of
from vitreous.weights.card import model_card
from vitreous.weights.io.errors import if_run, not_there
from vitreous.weights.io.safetensors_file import BadCheckpoint, check_tensors, read_header, read_tensors, write_tensors

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FILES = (WEIGHTS, CONFIG, CARD)
VERSION = 1
FIELDS = ("format", "version", "model", "provenance")


@dataclass(frozen=True)
class Description:
    """A checkpoint, seen from its `config.json` and the header of its tensors."""

    path: str
    config: AnyConfig
    provenance: dict[str, Any]
    parameters: int
    bytes: int
    dtypes: tuple[str, ...]  # as safetensors names them, the most frequent first


# ---- Saving ----------------------------------------------------------------------------------------------------------


def save_folder(model: AnyModel, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint: whole, or not at all (see files.py). One that was there before is replaced.

    `provenance` is added to what the model was loaded with. Its `metrics` and `license` also appear on the model card.
    A folder that holds anything else than a checkpoint is not touched.
    """
    folder = Path(path)
    recover(folder)
    if folder.is_dir():
        _check_replaceable(folder)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    with atomic_folder(folder, needed=size, ours=FILES) as aside:  # hidden files, such as .git, are kept
        write_files(model, aside, provenance, name=folder.resolve().name)


def write_files(
    model: AnyModel,
    folder: Path,
    provenance: Mapping[str, Any] | None = None,
    name: str = "model",
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """The three files of a checkpoint, into a folder that is there: for those who put more beside them.

    `tensors` are written instead of the model's own, where what is trained is not what is kept.
    """
    record = {**provenance_of(model), **_plain(provenance or {}), "vitreous": vitreous.__version__}
    document = {"format": "vitreous", "version": VERSION, "model": to_dict(model.config), "provenance": record}
    (folder / CONFIG).write_bytes(_json(document))
    written = model.state_dict() if tensors is None else tensors
    parameters = sum(tensor.numel() for tensor in written.values())
    (folder / CARD).write_text(model_card(model.config, name, parameters, record), encoding="utf-8")
    write_tensors(written, folder / WEIGHTS)


def _json(document: dict[str, Any]) -> bytes:
    """Readable in every language; escaped only where a label, once the name of a folder, is no text at all."""
    try:
        return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(document, indent=2).encode() + b"\n"


def _check_replaceable(folder: Path) -> None:
    names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
    foreign = sorted(names - set(FILES))
    if foreign or (names and not is_checkpoint(folder)):
        held = foreign[0] if foreign else f"a {min(names)} that is not ours"
        raise ValueError(f"{folder} holds {held}, which saving would delete: name a new folder, or our checkpoint")


def _plain(value: Any) -> Any:
    """As JSON can hold it. A figure that is not a number must not cost a checkpoint: it becomes null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


# ---- Loading ---------------------------------------------------------------------------------------------------------


def load_folder(
    path: str | os.PathLike[str],
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> AnyModel:
    """The model of a checkpoint, in evaluation mode, on the CPU, in the type its tensors are stored in.

    image_size: resample the positions for another size (`model.resized`).
    num_classes: a fresh head for so many classes, without names, even if the number is the same; 0 for none.
    overrides: other values for fields of the config that change no shape: `{"dropout": Dropout(hidden=0.1)}`.

    What was changed is kept in `provenance_of(model)`, and so in the next checkpoint.
    """
    folder = _folder(path)
    stored, provenance = _read_config(folder)
    config = _override(stored, overrides or {})
    model = _assemble(folder, config)
    return adapt(model, stored, provenance, image_size, num_classes)


def load_state(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a checkpoint, memory-mapped: what is changed in them does not reach the file."""
    return read_tensors(_folder(path) / WEIGHTS)


def describe(path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> Description:
    """What `vitreous info` says of a checkpoint; no tensor is read."""
    folder = _folder(path)
    config, provenance = _read_config(folder)
    config = _override(config, overrides or {})
    header = read_header(folder / WEIGHTS)
    kinds = [entry.dtype for entry in header.values()]
    return Description(
        path=str(path),
        config=config,
        provenance=provenance,
        parameters=sum(math.prod(entry.shape) for entry in header.values()),
        bytes=(folder / WEIGHTS).stat().st_size,
        dtypes=tuple(sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kind))),
    )


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether a folder says that it is a checkpoint of ours."""
    try:
        _read_document(_folder(path))
    except ValueError:
        return False
    return True


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if folder.name in (WEIGHTS, CONFIG) and folder.is_file():
        folder = folder.parent
    recover(folder)
    if not folder.exists():
        raise not_there(folder)
    if not (folder / CONFIG).is_file():
        if_run(folder)
        raise BadCheckpoint(f"{folder} is not a checkpoint: it has no {CONFIG}")
    return folder


def _read_document(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    document = read_json_object(file, BadCheckpoint)
    if (format := document.get("format")) != "vitreous":
        if_run(folder)
        raise BadCheckpoint(
            f"{file} has format {format!r:.80}, but must have 'vitreous': it is not a checkpoint of ours"
        )
    return document


def _read_config(folder: Path) -> tuple[AnyConfig, dict[str, Any]]:
    document, file = _read_document(folder), folder / CONFIG
    if (version := document.get("version")) != VERSION:
        raise BadCheckpoint(f"{file} has version {version!r}, but this Vitreous reads version {VERSION}")
    for field in document:
        if field not in FIELDS:
            raise BadCheckpoint(f"{file}: {field!r} is not a field of a checkpoint{suggestion(field, FIELDS)}")
    provenance = document.get("provenance", {})
    if not isinstance(provenance, dict):
        raise BadCheckpoint(f"{file}: provenance is {provenance!r}, but must be an object")
    try:
        return decode(AnyConfig, document.get("model"), "model"), provenance
    except ValueError as error:
        raise BadCheckpoint(f"{file}: {error}") from error


def _override(config: AnyConfig, overrides: Mapping[str, Any]) -> AnyConfig:
    if isinstance(config, SegmenterConfig):  # what can be changed without a change of shape is in its encoder
        encoder: Any = _override(config.encoder, overrides)
        return dataclasses.replace(config, encoder=encoder)
    hints = get_type_hints(type(config))
    for field in overrides:
        if field not in hints:
            raise BadValue(f"{field!r} is not a field of {type(config).__name__}{suggestion(field, hints)}")
    changes = {field: decode(hints[field], value, field) for field, value in overrides.items()}
    return dataclasses.replace(config, **changes)


def _assemble(folder: Path, config: AnyConfig) -> AnyModel:
    file = folder / WEIGHTS
    header = read_header(file)
    layers = _layers(config)
    if layers > len(header):  # said before a thousand layers are built in vain
        raise BadCheckpoint(
            f"{file} has {len(header)} tensors, too few for the {layers} layers that {CONFIG} describes"
        )
    model: AnyModel = build_blank(config)  # type: ignore[assignment]
    check_tensors(file, header, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()})
    fill(model, read_tensors(file))
    return model


def _layers(config: AnyConfig) -> int:
    if isinstance(config, SegmenterConfig):
        return config.encoder.depth + getattr(config.decoder, "depth", 0)
    return sum(config.stages) if isinstance(config, ResNetConfig) else config.depth
