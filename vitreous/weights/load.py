"""`vitreous.load` and `vitreous.save`: models from and to checkpoints of any format."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitreous.model.protocol import Model
from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT
from vitreous.weights.adapt import provenance_of
from vitreous.weights.config_match import check_not_swapped
from vitreous.weights.foreign import ForeignCheckpoint, write_foreign
from vitreous.weights.formats.detection import canonical_name, format_named
from vitreous.weights.hub import Snapshot, check_destination, download, is_hub, push
from vitreous.weights.io.safetensors_file import CannotHold
from vitreous.weights.native import Description, NativeCheckpoint, is_checkpoint, save_folder

ImageSize = int | Sequence[int]


@dataclass(frozen=True)
class Source:
    """An opened checkpoint: its files and format are found once, then it is described and built from the same file."""

    checkpoint: NativeCheckpoint | ForeignCheckpoint
    snapshot: Snapshot | None = None  # of the Hugging Face hub

    def describe(self, overrides: Mapping[str, Any] | None = None) -> Description:
        """Return the config and the provenance, which lists every assumption; nothing is warned of."""
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
        """Build the model; the arguments are those of `vitreous.load`."""
        with torch.device("cpu"):
            model = self.checkpoint.model(image_size, num_classes, overrides or {})
        if self.snapshot is not None:
            vars(model)["provenance"] = self.snapshot.record(provenance_of(model))
        return model.to(torch.get_default_device())


def open_checkpoint(source: str | Path, format: str | None = None) -> Source:
    """Open a folder, a file or `hf-hub:owner/name[@revision]`, and detect its format unless it is given."""
    if format is not None:
        format = canonical_name(format)
    snapshot = download(source) if is_hub(source) else None
    path = Path(source) if snapshot is None else snapshot.folder
    if format == "vitreous" or (format is None and _is_native(path)):
        return Source(NativeCheckpoint(path), snapshot)
    with torch.device("cpu"):  # files are read into the host's memory
        return Source(ForeignCheckpoint(path, format), snapshot)


def _is_native(path: Path) -> bool:
    return not path.exists() or is_checkpoint(path) or (path.is_dir() and not any(path.iterdir()))


def load(
    source: str | Path,
    format: str | None = None,
    image_size: ImageSize | None = None,
    num_classes: int | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Model:
    """Load a model, in evaluation mode, from a checkpoint of ours or of another system. The format is detected.

    It is on torch's default device, like a model of `vitreous.create`: on the CPU, unless `torch.set_default_device` or
    `with torch.device(...)` names another. On "meta" it has shapes and no weights.

    source: a folder, a file, or `hf-hub:owner/name[@revision]`.
    image_size: resample the position embeddings for this size, as the model's own system does.
    num_classes: replace the head by a new one for this number of classes; 0 for none.
    overrides: config fields that change no shape, such as `{"dropout": Dropout(hidden=0.1)}`; for files of other
        systems also fields that tensors do not show, such as `num_heads`, or the native `image_size` if the grid is not
        square.

    Fields that a file does not state are assumed, with one `AssumptionWarning` that names them and their values.
    """
    return open_checkpoint(source, format).model(image_size, num_classes, overrides)


def load_encoder(
    source: str | Path, image_size: ImageSize | None = None, overrides: Mapping[str, Any] | None = None
) -> ViT | ResNet:
    """Load a model without a decoder: of a segmenter, only its encoder."""
    model = load(source, image_size=image_size, overrides=overrides)
    vars(model.backbone)["provenance"] = provenance_of(model)
    return model.backbone  # type: ignore[return-value]


def describe(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Description:
    """Describe a checkpoint of any format without building its model."""
    return open_checkpoint(source).describe(overrides)


def save(
    model: Model,
    path: str | Path,
    format: str = "vitreous",
    provenance: Mapping[str, Any] | None = None,
    lossy: bool = False,
    push_to: str | None = None,
) -> None:
    """Write a model as our own checkpoint folder, or as another system would.

    Raises `CannotHold` if the format lacks a part of the model. `lossy` accepts differences in computation that keep
    all weights, such as another GELU. `push_to` also uploads the files, with a model card, to a repository
    ("owner/name") of the Hugging Face hub; without it nothing leaves this machine.
    """
    format = canonical_name(format)
    model = getattr(model, "_orig_mod", model)  # inside the wrapper of torch.compile
    check_not_swapped(model)
    repository = None if push_to is None else check_destination(push_to)
    if format == "vitreous":
        save_folder(model, path, provenance)
    elif not isinstance(model, ViT):
        kind, part = type(model).__name__, "" if model.backbone is model else ", or save its .backbone"
        raise CannotHold(f"{format} holds Vision Transformers, and this is a {kind}: use the format vitreous{part}")
    else:
        write_foreign(model, format_named(format), path, lossy)
    if repository is not None:
        push(model, Path(path), format, repository, provenance)
