"""`vitreous.load` and `vitreous.save`: models from checkpoints and to them, in any format."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vitreous.common.checks import as_size
from vitreous.model.kinds import AnyModel
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter
from vitreous.model.vit import ViT
from vitreous.weights.adapt import adapt, provenance_of
from vitreous.weights.config_match import check_not_swapped
from vitreous.weights.convert import CannotHold, read_foreign, write_foreign
from vitreous.weights.formats.detection import canonical_name, format_named, identify
from vitreous.weights.hub import download, is_hub
from vitreous.weights.io.containers import open_found
from vitreous.weights.io.safetensors_file import NAMES as NAMES_OF_TYPES
from vitreous.weights.native import Description, is_checkpoint, load_folder, save_folder
from vitreous.weights.native import describe as describe_folder
from vitreous.weights.push import check_destination, push


def load(
    source: str | Path,
    format: str | None = None,
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> AnyModel:
    """Load a model, in evaluation mode, from a checkpoint of ours or of another system. The format is detected.

    It is on torch's default device, like a model that `vitreous.create` makes: on the CPU, unless
    `torch.set_default_device` or `with torch.device(...)` names another. On "meta" it has shapes and no weights.

    source: a folder, a file, or `hf-hub:owner/name[@revision]`.
    image_size: resample its positions, in its system's own way.
    num_classes: give it a fresh head.
    overrides: fields of its config; for other systems' files those that tensors do not show, such as `num_heads`, or
        the native `image_size` where the grid is not square.

    What such a file leaves open is assumed, with one `AssumptionWarning` that names the fields and their values.
    """
    return _load(source, format, image_size, num_classes, overrides)


def _load(
    source: str | Path,
    format: str | None = None,
    image_size: int | Sequence[int] | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    warn: bool = True,
) -> AnyModel:
    if (device := torch.get_default_device()).type != "cpu":
        with torch.device("cpu"):  # files are read into the host's memory
            return _load(source, format, image_size, num_classes, overrides, warn).to(device)
    path = Path(source)
    if format is not None:
        format = canonical_name(format)
    if is_hub(source):
        snapshot = download(source)
        model = _load(snapshot.folder, format, image_size, num_classes, overrides, warn)
        vars(model)["provenance"] = snapshot.record(provenance_of(model))
        return model
    if format == "vitreous" or (format is None and _is_ours(path)):
        return load_folder(path, image_size=image_size, num_classes=num_classes, overrides=overrides)
    theirs, found = identify(open_found(path), format)
    model = read_foreign(theirs, found, overrides or {}, image_size, num_classes is not None, warn)
    return adapt(model, model.config, provenance_of(model), _unless_native(model, image_size), num_classes)


def load_written(source: Path, format: str, overrides: Mapping[str, Any] | None = None) -> AnyModel:
    """Load what has just been written, without a warning: the caller reports what the format does not keep."""
    return _load(source, format, overrides=overrides, warn=False)


def load_encoder(
    source: str | Path, image_size: int | Sequence[int] | None = None, overrides: Mapping[str, Any] | None = None
) -> ViT | ResNet:
    """The model of a checkpoint, or of a segmenter the part that sees: for those who have no use for its masks."""
    model = load(source, image_size=image_size, overrides=overrides)
    if not isinstance(model, Segmenter):
        return model
    vars(model.encoder)["provenance"] = provenance_of(model)
    return model.encoder


def save(
    model: AnyModel,
    path: str | Path,
    format: str = "vitreous",
    provenance: Mapping[str, Any] | None = None,
    lossy: bool = False,
    push_to: str | None = None,
) -> None:
    """Write a model: as our own checkpoint folder, or as another system would have written it.

    A format that cannot hold the model says which part and why. `lossy` allows those differences that leave all weights
    in place, such as another system's GELU. What was written is also sent to `push_to`, a repository ("owner/name") of
    the Hugging Face hub, with a model card; without it nothing leaves this machine.
    """
    format = canonical_name(format)
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    check_not_swapped(model)
    repository = None if push_to is None else check_destination(push_to)
    if format == "vitreous":
        save_folder(model, path, provenance)
    elif not isinstance(model, ViT):
        kind, part = type(model).__name__, ", or save its .encoder" if isinstance(model, Segmenter) else ""
        raise CannotHold(f"{format} holds Vision Transformers, and this is a {kind}: use the format vitreous{part}")
    else:
        write_foreign(model, format_named(format), path, lossy)
    if repository is not None:
        push(model, Path(path), format, repository, provenance)


def describe(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Description:
    """Describe a checkpoint of any format for `vitreous info`, read with these `overrides`. Nothing is warned of: the
    provenance lists every assumption.
    """
    if is_hub(source):
        snapshot = download(source)
        found = describe(snapshot.folder, overrides)
        return dataclasses.replace(found, path=str(source), provenance=snapshot.record(found.provenance))
    path = Path(source)
    if _is_ours(path):
        return describe_folder(path, overrides)
    model = _load(path, overrides=overrides, warn=False)
    tensors = list(model.state_dict().values())
    kinds = [NAMES_OF_TYPES[tensor.dtype] for tensor in tensors]
    return Description(
        path=str(source),
        config=model.config,
        provenance=provenance_of(model),
        parameters=sum(tensor.numel() for tensor in tensors),
        bytes=sum(tensor.nbytes for tensor in tensors),
        dtypes=tuple(sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kind))),
    )


def _is_ours(path: Path) -> bool:
    return not path.exists() or is_checkpoint(path) or (path.is_dir() and not any(path.iterdir()))


def _unless_native(model: ViT, image_size: int | Sequence[int] | None) -> int | Sequence[int] | None:
    return None if image_size is None or as_size(image_size) == model.config.image_size else image_size
