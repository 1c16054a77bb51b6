"""Vitreous checkpoints: folders with `model.safetensors`, `config.json` and `README.md` (the model card).

A calibrated checkpoint also has `familiarity.safetensors`, and a quantised one `int8.safetensors`. A head from
`train --train-only lda` is stored together with `statistics.safetensors`, which `extend` needs.

`config.json` contains everything needed to rebuild the model, preprocess images and name the classes, as well as the
origin of the weights. Loading checks names, shapes and dtypes, builds the model on the meta device, and assigns
memory-mapped tensors. No code is executed. Before saving, the model is compared with its config.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import vitreous
from vitreous.common.atomic_files import atomic_file, atomic_folder, recover
from vitreous.common.checks import as_size, path_suggestion, suggestion
from vitreous.common.codec import decode, to_dict
from vitreous.common.untrusted_files import read_json_object
from vitreous.model import PRESETS, AnyConfig, Model, ModelConfig
from vitreous.model.familiarity import Familiarity
from vitreous.model.int8 import Int8Scales
from vitreous.model.meta_build import build_blank, fill
from vitreous.weights.card import model_card
from vitreous.weights.catalog import BY_PRESET, hub_hint, name_hint
from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.safetensors_file import check_tensors, read_header, read_tensors, write_tensors

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FAMILIARITY = "familiarity.safetensors"  # only in calibrated checkpoints
STATISTICS = "statistics.safetensors"  # only if the head was computed by LDA
INT8 = "int8.safetensors"  # only after `quantise`
FILES = (WEIGHTS, CONFIG, CARD, FAMILIARITY, STATISTICS, INT8)
VERSION = 1
CALIBRATION = "calibration"  # entry of the provenance that describes the images a model was calibrated on
FIELDS = ("format", "version", "model", "provenance")
RECOMPUTED = "._checkpoint_wrapped_module"  # inserted into module names by torch's activation checkpointing


# ---- Saving ----------------------------------------------------------------------------------------------------------


def save_folder(model: Model, path: str | os.PathLike[str], provenance: Mapping[str, Any] | None = None) -> None:
    """Write a checkpoint atomically, replacing an existing one.

    `provenance` is merged into the model's own provenance. The model card shows its `metrics` and `license`.
    A folder that contains any other file is not replaced.
    """
    folder = Path(path)
    recover(folder)
    if folder.is_dir():
        _check_replaceable(folder)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    with atomic_folder(folder, needed=size, ours=FILES) as aside:  # hidden files, such as .git, are kept
        write_files(model, aside, provenance, name=folder.resolve().name)


def write_files(
    model: Model,
    folder: Path,
    provenance: Mapping[str, Any] | None = None,
    name: str = "model",
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the checkpoint files to an existing folder. If `tensors` is given, it replaces the state dict."""
    record = {**provenance_of(model), **_to_json(provenance or {}), "vitreous": vitreous.__version__}
    if model.config.calibration is None:  # the head or the image size may have changed since the calibration
        record.pop(CALIBRATION, None)
    (folder / CONFIG).write_bytes(_config_json(model.config, record))
    written = model.state_dict() if tensors is None else tensors
    parameters = sum(tensor.numel() for tensor in written.values())
    (folder / CARD).write_text(model_card(model.config, name, parameters, record), encoding="utf-8")
    write_tensors(written, folder / WEIGHTS)
    _write_statistics(model, written, folder / STATISTICS)
    if model.familiarity is not None and model.config.calibration is not None:
        write_tensors(model.familiarity.tensors(), folder / FAMILIARITY)
    if (int8 := vars(model).get("int8")) is not None and int8.digest == weights_digest(model.config, written):
        write_tensors(int8.scales.tensors(), folder / INT8, {"weights": int8.digest})


def _config_json(config: ModelConfig, provenance: Mapping[str, Any]) -> bytes:
    document = {"format": "vitreous", "version": VERSION, "model": to_dict(config), "provenance": provenance}
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a label from a folder name may be invalid Unicode
        text = json.dumps(document, indent=2).encode()
    return text + b"\n"


def store_calibration(
    path: str | os.PathLike[str], fields: Mapping[str, Any], familiarity: Familiarity | None, record: Mapping[str, Any]
) -> None:
    """Replace fitted fields of a config without changing the weights. `record` describes the validation images."""
    opened = NativeCheckpoint(path)
    if familiarity is not None:
        with atomic_file(opened.folder / FAMILIARITY) as aside:
            write_tensors(familiarity.tensors(), aside)
    config = opened.stored.override(fields)
    with atomic_file(opened.folder / CONFIG) as aside:
        aside.write_bytes(_config_json(config, {**opened.provenance, CALIBRATION: _to_json(record)}))


def _check_replaceable(folder: Path) -> None:
    names = {entry.name for entry in folder.iterdir() if not entry.name.startswith(".")}
    foreign = sorted(names - set(FILES))
    if foreign or (names and not is_checkpoint(folder)):
        found = foreign[0] if foreign else f"a {min(names)} from another program"
        raise ValueError(f"{folder} contains {found}, which would be deleted by saving here; use a new folder")


def _to_json(value: Any) -> Any:
    """Convert to JSON types; NaN and infinity become null."""
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, np.generic) or (isinstance(value, Tensor) and value.numel() == 1):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def check_not_swapped(model: Model) -> None:
    """Raise ValueError if a module differs from the config, because loading rebuilds the model from the config alone.

    Modules are compared by class, `extra_repr` (e.g. the eps of a norm) and tensor shapes. Attributes changed on
    existing modules are not detected, and added modules without tensors, such as a loss, are dropped silently.
    """
    blank = build_blank(model.config)
    modules, wanted = _modules(model), _modules(blank)
    _check_same(modules, wanted, wanted)
    shapes, wanted = _shapes(model), _shapes(blank)
    _check_same(shapes, wanted, {**wanted, **shapes})


def _check_same(here: Mapping[str, str], stated: Mapping[str, str], names: Iterable[str]) -> None:
    for name in names:
        found, expected = here.get(name, "missing"), stated.get(name, "missing")
        if found != expected:
            raise ValueError(
                f"{name} is {found} in the model but {expected} in its config, and loading uses only the config. "
                "Merge the change into the weights (e.g. for LoRA), save model.state_dict() yourself, "
                "or add a config option for it (see docs/en/architecture.md)"
            )


def _modules(model: Model) -> dict[str, str]:
    """Describe each module by class and `extra_repr`. Classes from other packages are named in full."""

    def describe(module: nn.Module) -> str:
        kind = type(module)
        usual = kind.__module__.startswith(("vitreous.", "torch.nn.modules."))
        name = kind.__name__ if usual else f"{kind.__module__}.{kind.__name__}"
        return name if isinstance(module, nn.Dropout) else f"{name}({module.extra_repr()})"

    return {name.replace(RECOMPUTED, ""): describe(module) for name, module in model.named_modules() if name}


def _shapes(model: Model) -> dict[str, str]:
    return {name: str(list(tensor.shape)) for name, tensor in model.state_dict().items()}


# ---- Loading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    """Config (with overrides applied) and provenance of a checkpoint."""

    config: AnyConfig
    provenance: dict[str, Any]


class NativeCheckpoint:
    """A checkpoint folder. Opening it reads the config and the tensor header, but no tensor data."""

    def __init__(self, path: str | os.PathLike[str]):
        self.folder = _folder(path)
        self.stored, self.provenance = _read_config(self.folder)
        self.header = read_header(self.folder / WEIGHTS)

    def describe(self, overrides: Mapping[str, Any]) -> Description:
        """Return the config, with `overrides` applied, and the provenance."""
        return Description(self.stored.override(overrides), self.provenance)

    def model(
        self, image_size: int | Sequence[int] | None, num_classes: int | None, overrides: Mapping[str, Any]
    ) -> Model:
        """Build the model with memory-mapped tensors."""
        resampled = {name: overrides[name] for name in overrides if name in self.stored.backbone.resampled_fields}
        rest = {name: overrides[name] for name in overrides if name not in resampled}
        file, config = self.folder / WEIGHTS, self.stored.override(rest)
        if (layers := config.num_layers) > len(self.header):  # check before building thousands of layers
            raise BadCheckpoint(f"{file} has {len(self.header)} tensors, too few for the {layers} layers in {CONFIG}")
        model = build_blank(config)
        check_tensors(file, self.header, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()})
        fill(model, read_tensors(file))
        if config.calibration is not None and (self.folder / FAMILIARITY).exists():
            model.familiarity = _read_familiarity(self.folder / FAMILIARITY, config.feature_width)
        if (self.folder / STATISTICS).is_file():
            set_statistics(model, *_read_statistics(self.folder / STATISTICS))
        if (self.folder / INT8).is_file():
            set_int8_scales(model, *_read_int8_scales(self.folder / INT8, model))
        return adapt(model, self.stored, self.provenance, image_size, num_classes, resampled)


def _read_familiarity(file: Path, width: int) -> Familiarity:
    try:
        return Familiarity.of_tensors({name: tensor.float() for name, tensor in read_tensors(file).items()}, width)
    except (ValueError, RuntimeError) as error:
        raise BadCheckpoint(f"{file}: {error}") from error


def load_folder(
    path: str | os.PathLike[str],
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Model:
    """Load a model in evaluation mode on the CPU, in the stored dtype; see `vitreous.load`."""
    return NativeCheckpoint(path).model(image_size, num_classes, overrides or {})


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return True if a folder contains the `config.json` of a Vitreous checkpoint."""
    try:
        _read_document(_folder(path))
    except ValueError:
        return False
    return True


def check_not_run(folder: Path) -> None:
    """Raise BadCheckpoint if a folder is a training run. The error suggests the checkpoint inside the folder."""
    for name in ("best", "last"):
        if (folder / name / WEIGHTS).is_file() and (folder / name / CONFIG).is_file():
            inside = str(folder / name)
            raise BadCheckpoint(f"{folder} is a run folder, not a checkpoint (did you mean {inside!r}?)")


def missing_checkpoint(path: Path) -> BadCheckpoint:
    """Return the error for a path that does not exist and is not in the catalog."""
    if (name := path.as_posix()) in PRESETS:
        weights = BY_PRESET.get(name)
        known = f"'{weights[0]}' (pretrained weights for this preset), " if weights else ""
        expected = f"expected {known}a folder, a file, a catalog name or hf-hub:owner/name"
        return BadCheckpoint(f"{path} is a preset without weights, not a checkpoint; {expected}")
    hub = "" if path.parent.exists() else hub_hint(name)
    return BadCheckpoint(f"checkpoint {path} not found{name_hint(name) or path_suggestion(path)}{hub}")


def _folder(path: str | os.PathLike[str]) -> Path:
    folder = Path(path)
    if folder.name in (WEIGHTS, CONFIG) and folder.is_file():
        folder = folder.parent
    recover(folder)
    if not folder.exists():
        raise missing_checkpoint(folder)
    if not (folder / CONFIG).is_file():
        check_not_run(folder)
        raise BadCheckpoint(f"{folder} is not a checkpoint: it has no {CONFIG}")
    return folder


def _read_document(folder: Path) -> dict[str, Any]:
    file = folder / CONFIG
    document = read_json_object(file, BadCheckpoint)
    if (format := document.get("format")) != "vitreous":
        check_not_run(folder)
        raise BadCheckpoint(f"{file} must have the format 'vitreous', got {format!r:.80}")
    return document


def _read_config(folder: Path) -> tuple[AnyConfig, dict[str, Any]]:
    document, file = _read_document(folder), folder / CONFIG
    if (version := document.get("version")) != VERSION:
        raise BadCheckpoint(f"{file} has version {version!r}; this version of Vitreous reads only version {VERSION}")
    for field in document:
        if field not in FIELDS:
            raise BadCheckpoint(f"{file}: unknown field {field!r}{suggestion(field, FIELDS)}")
    provenance = document.get("provenance", {})
    if not isinstance(provenance, dict):
        raise BadCheckpoint(f"{file}: provenance must be an object, got {provenance!r}")
    try:
        return decode(AnyConfig, document.get("model"), "model"), provenance
    except ValueError as error:
        raise BadCheckpoint(f"{file}: {error}") from error


# ---- Statistics ------------------------------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """Feature statistics from which the head was computed, and the digest of the corresponding weights."""

    tensors: dict[str, Tensor]
    digest: str


def set_statistics(model: Model, tensors: Mapping[str, Tensor], digest: str | None = None) -> None:
    """Attach statistics to a model. By default, `digest` is the digest of the current weights."""
    digest = digest or weights_digest(model.config, model.state_dict())
    vars(model)["statistics"] = Statistics(dict(tensors), digest)


def statistics_of(model: Model) -> dict[str, Tensor] | None:
    """Return the statistics of a model, or None if they are missing or do not match the weights and config."""
    return _valid_statistics(model, model.state_dict())


def weights_digest(config: ModelConfig, tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of the tensors and of the config without its calibration."""
    fields = {name: value for name, value in to_dict(config).items() if name != "calibration"}
    total = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return total.hexdigest()


def _valid_statistics(model: Model, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    statistics = vars(model).get("statistics")
    if statistics is None or statistics.digest != weights_digest(model.config, tensors):
        return None
    return statistics.tensors


def _write_statistics(model: Model, tensors: Mapping[str, Tensor], file: Path) -> None:
    if (statistics := _valid_statistics(model, tensors)) is not None:
        write_tensors(statistics, file, {"weights": vars(model)["statistics"].digest})


def _read_statistics(file: Path) -> tuple[dict[str, Tensor], str]:
    mapped = read_tensors(file)
    return {name: tensor.clone() for name, tensor in mapped.items()}, mapped.metadata.get("weights", "unknown")


# ---- Int8 scales -----------------------------------------------------------------------------------------------------


class QuantisedFor(NamedTuple):
    """Int8 scales of a model, and the digest of the corresponding weights."""

    scales: Int8Scales
    digest: str


def set_int8_scales(model: Model, scales: Int8Scales, digest: str | None = None) -> None:
    """Attach int8 scales to a model. By default, `digest` is the digest of the current weights."""
    vars(model)["int8"] = QuantisedFor(scales, digest or weights_digest(model.config, model.state_dict()))


def int8_scales(model: Model) -> Int8Scales:
    """Return the int8 scales of a model. Raise ValueError if it has none for its weights and image size."""
    found = vars(model).get("int8")
    if found is None or found.digest != weights_digest(model.config, model.state_dict()):
        problem = "no int8 scales" if found is None else "int8 scales for other weights or another image size"
        raise ValueError(f"the model has {problem}; use `vitreous quantise CHECKPOINT --data DIR`")
    return found.scales


def store_int8_scales(path: str | os.PathLike[str], scales: Int8Scales) -> None:
    """Add int8 scales to a checkpoint without changing its other files."""
    opened = NativeCheckpoint(path)
    digest = weights_digest(opened.stored, read_tensors(opened.folder / WEIGHTS))
    with atomic_file(opened.folder / INT8) as aside:
        write_tensors(scales.tensors(), aside, {"weights": digest})


def _read_int8_scales(file: Path, model: Model) -> tuple[Int8Scales, str]:
    mapped = read_tensors(file)
    try:
        return Int8Scales.of_tensors(dict(mapped.items()), model), mapped.metadata.get("weights", "unknown")
    except ValueError as error:
        raise BadCheckpoint(f"{file}: {error}") from error


# ---- Provenance and adaptation ---------------------------------------------------------------------------------------


def adapt(
    model: Model,
    stored: ModelConfig,
    provenance: Mapping[str, Any],
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
    resampled: Mapping[str, Any] | None = None,
) -> Model:
    """Resize the model, replace its head and change `resampled` fields if requested. Record this in its provenance."""
    if num_classes is not None:
        model.replace_head(num_classes)
    if resampled:
        size = stored.image_size if image_size is None else as_size(image_size)
        model = model.resampled(resampled, size)
    elif image_size is not None:
        model = model.resized(as_size(image_size))
    before, after = to_dict(stored), to_dict(model.config)
    changes: list[dict[str, Any]] = [
        {"field": field, "from": before[field], "to": after[field]}
        for field in before
        if before[field] != after[field] and field not in ("labels", "calibration")
    ]
    if num_classes is not None:
        changes.append({"field": "head", "to": "new"})
    record = {"changes": [*provenance.get("changes", []), *changes]} if changes else {}
    vars(model)["provenance"] = {**provenance, **record}
    return model.eval()


def provenance_of(model: Model) -> dict[str, Any]:
    """Return the origin of a model's weights: the checkpoint's record and the changes made on loading."""
    return dict(vars(model).get("provenance", {}))
