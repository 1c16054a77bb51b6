"""`vitreous.load` and `vitreous.save`: read and write checkpoints in any format."""

import dataclasses
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch

from vitreous.common.atomic_files import atomic_file, atomic_folder
from vitreous.common.checks import BadValue, as_size, fail, suggestion
from vitreous.common.codec import decode, to_dict
from vitreous.common.untrusted_files import read_json_object
from vitreous.model import AnyConfig, Model
from vitreous.model.meta_build import build_blank, fill
from vitreous.model.options import Conditional
from vitreous.weights.catalog import CATALOG, HUB_PREFIX
from vitreous.weights.formats.base import AssumptionWarning, ConfigBuilder, Format, PartWarning, StateDict
from vitreous.weights.formats.detect_format import canonical_name, format_for, identify, summary, under
from vitreous.weights.formats.mapping import Row, check_table, matches, read_table, write_table
from vitreous.weights.formats.write_checks import unknown_options
from vitreous.weights.hub import HubUnavailable, Snapshot, check_destination, download, push_saved
from vitreous.weights.io.containers import OPEN_CLIP_CONFIG, SUFFIXES, USUAL_NAMES, read_file, suffix_of, unwrapped
from vitreous.weights.io.errors import BadCheckpoint, UnsupportedByFormat
from vitreous.weights.io.safetensors_file import Mapped
from vitreous.weights.native import (
    CARD,
    Description,
    NativeCheckpoint,
    adapt,
    check_not_run,
    check_not_swapped,
    is_checkpoint,
    missing_checkpoint,
    provenance_of,
    save_folder,
)

ImageSize = int | Sequence[int]
# Names, in several libraries, of the tensors of a text tower beside a vision tower.
TEXT_TOWER = re.compile(r"(text_model|text|txt|token_embedding)([./ ]|$)")
NATIVE = "use format='vitreous' (--to vitreous)"
LEARNED_POSITIONS = (
    "Conditional positions are the default of `vitreous train` for few images; "
    "to train with positions that other libraries support, name the model, e.g. --model ViT-Ti/16"
)
# Files that may be written. A folder that contains any other file is not replaced.
WRITTEN = {"config.json", "model.safetensors", "model.pdparams", "preprocessor_config.json"}
WRITTEN |= {OPEN_CLIP_CONFIG, "open_clip_model.safetensors"}


# ---- Checkpoints in other formats ------------------------------------------------------------------------------------


def find_tensors(path: Path, lazy: bool = False, part: str = "") -> StateDict:
    """Open a weight file or folder. A file with a standard name is read together with the config.json beside it.

    part: Dotted name of the part to open, such as "state_dict" or "teacher.backbone"; "" for the whole checkpoint.
    """
    file = _weights_in(path) if path.is_dir() else path
    if not file.is_file():
        raise missing_checkpoint(path)
    open_clip = file.name.startswith("open_clip_") or not (file.parent / "config.json").is_file()
    config, config_file = {}, file.parent / (OPEN_CLIP_CONFIG if open_clip else "config.json")
    if (path.is_dir() or file.name in USUAL_NAMES) and config_file.is_file():
        path, config = file.parent, read_json_object(config_file, BadCheckpoint)
    content = read_file(file, lazy)
    forget = content.forget if isinstance(content, Mapped) else lambda: None
    metadata = content.metadata if isinstance(content, Mapped) else content
    tensors, inside, prefix = unwrapped(content, path, part)
    names = (metadata.get(key) for key in ("architecture", "arch"))  # timm's training script writes `arch`
    model_name = next((name for name in names if isinstance(name, str)), "")
    state = StateDict(path, tensors, config, forget, inside, model_name=model_name)
    if not prefix:
        return state
    if not any(name.startswith(f"{prefix}.") for name in tensors):
        raise BadCheckpoint(f"{path} has no part {part!r}; found {', '.join(summary(list(tensors))[:8])}")
    return under(state, f"{prefix}.")


def _weights_in(folder: Path) -> Path:
    """Return the weight file in a folder: one with a name in USUAL_NAMES, otherwise the only weight file."""
    for name in USUAL_NAMES:
        if (folder / name).is_file():
            return folder / name
    files = sorted(file for file in folder.iterdir() if suffix_of(file) in SUFFIXES)
    if len(files) == 1:
        return files[0]
    check_not_run(folder)
    advice = ": pass the path of one of them" if files else ""
    expected = f"expected one weight file ({', '.join(SUFFIXES)})"
    raise BadCheckpoint(f"{expected} in {folder}, found {len(files) or 'none'}{advice}")


class _Plan(NamedTuple):
    """A config inferred from tensors, and everything needed to build the model."""

    config: AnyConfig  # of the checkpoint
    changes: dict[str, Any]  # fields that the caller wants to change
    format: Format
    state: StateDict
    table: list[Row]
    blank: Model
    provenance: dict[str, Any]
    warning: str | None


@dataclass
class ForeignCheckpoint:
    """A checkpoint in another library's format. The format is detected unless `format` is given."""

    path: Path
    format: str | None
    part: str = ""  # see `find_tensors`
    identified: tuple[Format, str] | None = None  # the format and the prefix of the model's tensors, once detected

    @cached_property
    def mapped(self) -> tuple[Format, StateDict]:
        """The format and the memory-mapped tensors, whose data has not been read."""
        return self._open(lazy=True)

    def describe(self, overrides: Mapping[str, Any]) -> Description:
        """Infer the config and check the names and shapes of all tensors without reading their data."""
        plan = self._plan(*self.mapped, overrides, None, new_head=False)
        check_table(plan.table, plan.state.tensors, plan.blank.state_dict(), plan.state.path, plan.format.ignored)
        return Description(dataclasses.replace(plan.config, **plan.changes), plan.provenance)

    def model(
        self, image_size: int | Sequence[int] | None, num_classes: int | None, overrides: Mapping[str, Any]
    ) -> Model:
        """Build the model and warn about uncertain assumptions."""
        plan = self._plan(*self._open(), overrides, image_size, new_head=num_classes is not None)
        if plan.warning:
            warnings.warn(plan.warning, AssumptionWarning, stacklevel=4)  # points to the call of vitreous.load
        if any(TEXT_TOWER.match(line) for line in plan.provenance.get("left_out", ())):
            dropped = "also contains a text tower, which is not loaded"
            warnings.warn(f"{plan.state.path} {dropped}", PartWarning, stacklevel=4)
        model, state = plan.blank, plan.state
        fill(model, read_table(plan.table, state.tensors, model.state_dict(), state.path, plan.format.ignored))
        state.forget()  # free the pages of tensors that were combined into new tensors
        native = image_size is None or as_size(image_size) == plan.config.image_size
        size = None if native else image_size
        return adapt(model, plan.config, plan.provenance, size, num_classes, plan.changes)

    def _open(self, lazy: bool = False) -> tuple[Format, StateDict]:
        state = find_tensors(self.path, lazy, self.part)
        self.identified = self.identified or identify(state, self.format)
        format, prefix = self.identified
        return format, under(state, prefix)

    def _plan(
        self, format: Format, opened: StateDict, overrides: Mapping[str, Any], image_size: Any, new_head: bool
    ) -> _Plan:
        """Infer the config. If `new_head`, ignore an unsupported classifier."""
        kind = format.config_class
        hints = get_type_hints(kind)
        for field in overrides:
            if field not in hints:
                raise BadValue(f"{field!r} is not a field of {kind.__name__}{suggestion(field, hints)}")
        given = {field: decode(hints[field], value, field) for field, value in overrides.items()}
        state = format.normalise(opened)
        builder = ConfigBuilder(state, given, new_head)
        try:
            format.infer(state, builder, image_size)
            config = dataclasses.replace(kind(labels=()), **builder.fields | builder.stated)
        except BadCheckpoint:
            raise
        except ValueError as error:
            # Overrides that do not match the tensors are a bad argument; everything else is a bad file.
            caller = isinstance(error, BadValue) and any(field in str(error) for field in given)
            raise (BadValue if caller else BadCheckpoint)(f"{state.path} (read as {format.title}): {error}") from error
        if (depth := config.num_layers) * 4 > len(state.tensors):  # check before building thousands of layers
            raise BadCheckpoint(f"{state.path} has {len(state.tensors)} tensors, too few for a depth of {depth}")
        table = format.table(config)
        used = {name for row in table for name in row.theirs}
        dropped = [name for name in state.tensors if name not in used and matches(name, format.ignored)]
        text = [name for name in dropped if TEXT_TOWER.match(name)]
        record = {
            "inside": list(opened.inside),
            "given": {field: to_dict(config)[field] for field in builder.stated},
            "assumed": builder.assumed,
            "left_out": [*opened.ignored, *summary(text), *(name for name in dropped if name not in text)],
        }
        provenance: dict[str, Any] = {"origin": format.title, "format": format.name, "file": state.path.name}
        provenance |= {key: value for key, value in record.items() if value}
        changes = {field: given[field] for field in builder.changed}
        return _Plan(config, changes, format, state, table, build_blank(config), provenance, builder.warning)


def write_foreign(model: Model, format: Format, path: str | os.PathLike[str], lossy: bool = False) -> None:
    """Write a model atomically in another format. Without `lossy`, numeric differences raise `UnsupportedByFormat`."""
    config, target = model.config, Path(path)
    if format.read_only:
        raise UnsupportedByFormat(f"checkpoints in the format {format.name!r} can be read but not written; {NATIVE}")
    if not isinstance(config, format.config_class):
        part = "" if model.backbone is model else ", or save its .backbone"
        reason = f"does not support this family of models: the model is a {config.summary}"
        raise UnsupportedByFormat(f"the format {format.name!r} {reason}; {NATIVE}{part}")
    if format.suffixes and target.suffix not in format.suffixes:
        usual = ", ".join(format.suffixes)
        raise ValueError(f"{target} must end in {usual} for {format.title}")
    if unsupported := unknown_options(config) or format.unsupported(config):
        remedy = f". {LEARNED_POSITIONS}" if isinstance(getattr(config, "position", None), Conditional) else ""
        raise UnsupportedByFormat(f"{format.title} does not support this model: {'; '.join(unsupported)}{remedy}")
    differences = format.differences(config, folder=target.suffix not in SUFFIXES)
    if differences and not lossy:
        in_folder = not format.suffixes and not format.differences(config, folder=True)
        remedy = "Save to a folder, whose config.json records these settings, or save" if in_folder else "Save"
        raise UnsupportedByFormat(
            f"{format.title} would give different outputs with these weights: {'; '.join(differences)}. "
            f"{remedy} the model anyway with lossy=True (--lossy)"
        )
    ours = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
    with torch.device("cpu"):  # ignore torch's default device
        tensors = write_table(format.table(config), ours) | format.extra_tensors(config)
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    needed = sum(tensor.nbytes for tensor in tensors.values())
    kept = WRITTEN | ({CARD} if is_checkpoint(target) else set())  # other README.md files belong to the user
    if target.is_dir() and (foreign := sorted({file.name for file in target.iterdir()} - kept)):
        raise ValueError(f"{target} contains {foreign[0]}, which would be deleted by saving here; use a new folder")
    with (atomic_file if target.suffix in SUFFIXES else atomic_folder)(target, needed=needed) as aside:
        format.write(tensors, config, aside)


# ---- Checkpoints in any format ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint in any supported format, which can be described or built into a model."""

    checkpoint: NativeCheckpoint | ForeignCheckpoint
    snapshot: Snapshot | None = None  # if it came from the Hugging Face Hub

    def describe(self, overrides: Mapping[str, Any] | None = None) -> Description:
        """Return the config and provenance. The provenance lists all assumptions; no warning is issued."""
        with torch.device("cpu"):
            description = self.checkpoint.describe(overrides or {})
        if self.snapshot is None:
            return description
        return dataclasses.replace(description, provenance=self.snapshot.record(description.provenance))

    def model(
        self,
        image_size: ImageSize | None = None,
        num_classes: int | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Model:
        """Build the model. The arguments are those of `vitreous.load`."""
        with torch.device("cpu"):
            model = self.checkpoint.model(image_size, num_classes, overrides or {})
        if self.snapshot is not None:
            vars(model)["provenance"] = self.snapshot.record(provenance_of(model))
        return model.to(torch.get_default_device())


def is_hub(source: str | Path) -> bool:
    """Return True if the source starts with `hf-hub:`."""
    return str(source).startswith(HUB_PREFIX)


def open_checkpoint(source: str | Path, format: str | None = None, part: str | None = None) -> Checkpoint:
    """Open a folder, file, catalog name or `hf-hub:owner/name[@revision]`. Detect the format unless it is given."""
    if format is not None:
        format = canonical_name(format)
    snapshot = download(source) if is_hub(source) else _download_pretrained(str(source))
    path = Path(source) if snapshot is None else snapshot.folder
    native = not path.exists() or is_checkpoint(path) or (path.is_dir() and not any(path.iterdir()))
    if format == "vitreous" or (format is None and native):
        if part:
            fail("part", part, "None for a Vitreous checkpoint, which contains one model")
        return Checkpoint(NativeCheckpoint(path), snapshot)
    return Checkpoint(ForeignCheckpoint(path, format, part or ""), snapshot)


def _download_pretrained(name: str) -> Snapshot | None:
    """Download weights by catalog name. Return None for other names and for local files, which take precedence."""
    if name not in CATALOG or Path(name).exists():
        return None
    entry = CATALOG[name]
    terms = f"license {entry.license}, paper https://arxiv.org/abs/{entry.paper}"
    try:
        return download(entry.source, f"downloading {name} ({entry.source}): {terms}")
    except OSError as error:
        files = "its config.json and model.safetensors"
        instead = f"Alternatively, copy {files} to a folder and pass that folder instead of {name}"
        kind = HubUnavailable if isinstance(error, HubUnavailable) else OSError
        raise kind(f"{name}: {error}. {instead}") from None


def load(
    source: str | Path,
    format: str | None = None,
    image_size: ImageSize | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    part: str | None = None,
) -> Model:
    """Load a model in evaluation mode from a checkpoint in any format.

    The model is on torch's default device, as with `vitreous.create`. On the "meta" device, it has no weights.

    source: A folder, a file, a catalog name such as "dinov2-s" (see `vitreous info --pretrained`), or
        `hf-hub:owner/name[@revision]`.
    format: The checkpoint format; detected by default.
    image_size: Resample the position embeddings to this image size, as the library that wrote the checkpoint does.
    num_classes: Replace the head with a new head for this number of classes; 0 removes the head.
    overrides: Config fields that change no shapes, such as `{"dropout": Dropout(hidden=0.1)}`. For other formats, also
        fields that cannot be inferred from the tensors, such as `num_heads`, or `image_size` for a non-square grid.
    part: The part of a checkpoint with several models, such as "state_dict" (instead of averaged weights) or
        "teacher.backbone". A text tower, which cannot be loaded, is dropped with a `PartWarning`.

    Fields that a file does not specify get default values, which are listed in a single `AssumptionWarning`.
    """
    return open_checkpoint(source, format, part).model(image_size, num_classes, overrides)


def load_encoder(source: str | Path, image_size: ImageSize | None = None) -> Model:
    """Load a model. If the model is a segmenter, return only its encoder."""
    model = load(source, image_size=image_size)
    vars(model.backbone)["provenance"] = provenance_of(model)
    return model.backbone


def describe(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Description:
    """Describe a checkpoint in any format without building its model."""
    return open_checkpoint(source).describe(overrides)


def save(
    model: Model,
    path: str | Path,
    format: str = "vitreous",
    provenance: Mapping[str, Any] | None = None,
    lossy: bool = False,
    push_to: str | None = None,
) -> None:
    """Save a model as a Vitreous checkpoint folder or in another format.

    Raise `UnsupportedByFormat` if the format cannot represent the model. `lossy` accepts numeric differences, such as
    a different GELU, provided that all weights are kept. `push_to` also uploads the files and a model card to a Hugging
    Face Hub repository ("owner/name"); by default, nothing is uploaded.
    """
    format = canonical_name(format)
    model = getattr(model, "_orig_mod", model)  # unwrap torch.compile
    check_not_swapped(model)
    repository = None if push_to is None else check_destination(push_to)
    if format == "vitreous":
        save_folder(model, path, provenance)
    else:
        write_foreign(model, format_for(format, model.config), path, lossy)
    if repository is not None:
        push_saved(model, Path(path), format, repository, provenance)
