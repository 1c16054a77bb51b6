"""Interface of a checkpoint format, and the builder that infers a config from a checkpoint.

To add a format, subclass `Format` and add an instance to `FORMATS` (detect_format.py). `name`, `title` and `signatures`
identify the format, `infer` reads the config, and `table` maps the tensors in both directions. The methods under
"Writing" are needed only to save models in the format.
"""

import dataclasses
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from vitreous.common.checks import Size, as_size
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.options import GeluApproximation, Preprocessing
from vitreous.model.swin_config import SwinConfig
from vitreous.weights.formats.mapping import Row, renamed
from vitreous.weights.formats.write_checks import RARE, missing_parts, numeric_differences
from vitreous.weights.io.containers import write_file
from vitreous.weights.io.errors import BadCheckpoint

# Number of heads, by model width, of published models whose heads are not 64 wide: SO400M, ViT-H, ViT-g, ViT-G.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}


class PartWarning(UserWarning):
    """Warns that a checkpoint contains another model, which is not loaded."""


class AssumptionWarning(UserWarning):
    """Warns that a checkpoint does not specify some config fields, so their usual values are assumed."""


@dataclass(frozen=True)
class StateDict:
    """A checkpoint of another library: tensors by their original names, and the contents of config.json."""

    path: Path
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    forget: Callable[[], None] = lambda: None  # see `Mapped.forget`
    inside: tuple[str, ...] = ()  # nested keys under which a training checkpoint contains the model
    ignored: tuple[str, ...] = ()  # summary of the tensors outside the model, for the provenance
    model_name: str = ""  # architecture name in the file's metadata

    def count(self, pattern: str, first: int = 0) -> int:
        """Count consecutive layers from `first` that have the tensor `pattern`, e.g. `blocks.{i}.norm1.weight`."""
        numbers = itertools.count(first)
        return next(i for i in numbers if pattern.replace("{i}", str(i)) not in self.tensors) - first

    def shape(self, name: str, dims: int | None = None) -> tuple[int, ...]:
        """Return the shape of a required tensor. If `dims` is given, require `dims` non-empty dimensions."""
        if name not in self.tensors:
            raise BadCheckpoint(f"{self.path} has no tensor {name}")
        shape = tuple(self.tensors[name].shape)
        if dims is not None and (len(shape) != dims or 0 in shape):
            raise BadCheckpoint(f"{self.path}: {name} must have {dims} non-empty dimensions, got shape {list(shape)}")
        return shape


class Format(ABC):
    """Checkpoint format of another library. Instances are stateless."""

    name: ClassVar[str]
    title: ClassVar[str]  # library name in model cards and messages
    config_class: ClassVar[type[ViTConfig] | type[SwinConfig] | type[ResNetConfig]] = ViTConfig
    signatures: ClassVar[Sequence[Sequence[str]]]  # a checkpoint matches if it has all tensors of any one signature
    roots: ClassVar[Sequence[str]] = ("",)  # possible prefixes of all tensor names
    renames: ClassVar[Sequence[tuple[str, str]]] = ()  # (pattern, replacement) for names of other versions
    ignored: ClassVar[Sequence[str]] = ()  # patterns of tensor names to ignore
    distinctive: ClassVar[bool] = False  # True if no unsupported model with these signatures is known by its shapes
    read_only: ClassVar[bool] = False
    suffixes: ClassVar[Sequence[str]] = ()  # accepted when writing; if empty, any file or a folder can be written
    file_name: ClassVar[str] = "model.safetensors"  # weight file in a folder
    missing: ClassVar[Sequence[str]] = ()  # unsupported options (see CHECKS in write_checks.py)
    supports: ClassVar[Sequence[str]] = ()  # options in RARE (write_checks.py), which other formats do not support
    norm_eps: ClassVar[float] = 1e-6  # the library's default LayerNorm eps
    gelu: ClassVar[GeluApproximation] = "erf"  # the library's default GELU variant

    def root(self, state: StateDict) -> str | None:
        """Return the prefix of the tensors that match a signature, or None if none match."""
        for root in self.roots:
            if any(all(f"{root}{name}" in state.tensors for name in names) for names in self.signatures):
                return root
        return None

    def recognises(self, state: StateDict) -> bool:
        return self.root(state) is not None and self.confirms(state)

    def confirms(self, state: StateDict) -> bool:
        """Return False if shapes or values show that a matching checkpoint has another format."""
        return True

    def ambiguity(self, state: StateDict) -> str:
        """Return a reason why a checkpoint with this signature may be another model, or "" if there is none."""
        return ""

    def normalise(self, state: StateDict) -> StateDict:
        """Rename the tensors of any version of the library to the names in `table`."""
        root = self.root(state) or ""
        tensors = {name.removeprefix(root): tensor for name, tensor in state.tensors.items()}
        return dataclasses.replace(state, tensors=renamed(tensors, self.renames))

    @abstractmethod
    def infer(self, state: StateDict, builder: "ConfigBuilder", image_size: Any = None) -> None:
        """Set the config fields of `builder`. `image_size` is the size that the caller requested, used as a hint."""

    @abstractmethod
    def table(self, config: Any) -> list[Row]:
        """Return the rows for all tensors of a model with a config of `config_class`."""

    # ---- Writing ----

    def unsupported(self, config: Any) -> list[str]:
        """Return one line per unsupported part of the model."""
        rare = [part for part in RARE if part not in self.supports]
        return missing_parts(config, self.title, [*self.missing, *rare])

    def differences(self, config: Any, folder: bool = False) -> list[str]:
        """Return one line per computation that the library does differently with the same weights.

        folder: True if a config is written with the weights; otherwise the library uses its defaults.
        """
        return numeric_differences(config, self.title, self.norm_eps, self.gelu)

    def minor_differences(self, config: Any) -> list[str]:
        """Return one line per difference that is too small to require `lossy` but is reported by `convert`."""
        return []

    def extra_tensors(self, config: Any) -> dict[str, Tensor]:
        """Return tensors that the library requires but Vitreous models do not have."""
        return {}

    def packed(self, tensors: Mapping[str, Tensor], config: Any) -> Mapping[str, Tensor]:
        """Return the tensors of the file, if layers are packed or names have a prefix that `table` does not have."""
        return tensors

    def write(self, tensors: Mapping[str, Tensor], config: Any, path: Path) -> None:
        """Write the `packed` tensors to `path` (a folder or a file)."""
        write_file(self.packed(tensors, config), path / self.file_name if path.is_dir() else path)


class ConfigBuilder:
    """Collects config fields, and the reason for each value that the checkpoint does not specify."""

    def __init__(self, state: StateDict, overrides: Mapping[str, Any], new_head: bool = False):
        self.path, self.overrides = state.path, overrides
        self.new_head = new_head  # the caller will replace the classifier
        self.changed: set[str] = set()  # overridden fields that the checkpoint specifies and `Model.resampled` changes
        self.fields: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}
        self._uncertain: set[str] = set()

    @property
    def stated(self) -> dict[str, Any]:
        """Overridden fields that describe the checkpoint."""
        return {field: value for field, value in self.overrides.items() if field not in self.changed}

    @property
    def assumed(self) -> list[str]:
        """One line `field: reason` per field that neither the checkpoint nor an override specifies."""
        return [f"{name}: {reason}" for name, reason in self._reasons.items() if name not in self.overrides]

    @property
    def warning(self) -> str | None:
        """Warning about uncertain fields, with advice on overriding them, or None if all fields are certain."""
        names = [name for name in self._reasons if name in self._uncertain and name not in self.overrides]
        if not names:
            return None
        assumed = ", ".join(f"{name}={_short(self.fields[name])}" for name in names)
        return f"{self.path}: assumed {assumed}. If that is wrong, {how_to_set(names[0])}"

    def set(self, **fields: Any) -> None:
        """Set fields that the checkpoint specifies."""
        self.fields |= fields
        self._reasons = {name: reason for name, reason in self._reasons.items() if name not in fields}

    def default(self, reason: str, **fields: Any) -> None:
        """Set unspecified fields whose values are the same in all models of the format."""
        self.fields |= fields
        self._reasons |= dict.fromkeys(fields, reason)
        self._uncertain -= fields.keys()

    def assume(self, reason: str, **fields: Any) -> None:
        """Set unspecified fields to their usual values, which may be wrong. Loading warns about these fields."""
        self.default(reason, **fields)
        self._uncertain |= fields.keys()

    def assume_preprocessing(self, reason: str, preprocessing: Preprocessing, certain: bool = False) -> None:
        """Assume published preprocessing, averaging its RGB mean and std if the model does not have 3 channels."""
        if self.fields["channels"] != 3 and len(preprocessing.mean) == 3:
            mean, std = ((sum(numbers) / 3,) for numbers in (preprocessing.mean, preprocessing.std))
            preprocessing = dataclasses.replace(preprocessing, mean=mean, std=std)
            reason += ", averaged over the RGB channels"
        (self.default if certain else self.assume)(reason, preprocessing=preprocessing)

    def infer_heads(self, width: int, published: bool = False) -> None:
        """Set the number of heads from the width (64 per head). The number is certain only for `published` models."""
        if "num_heads" in self.overrides:
            return
        if width not in HEADS and (width % 64 or not width):
            raise BadCheckpoint(
                f"{self.path} does not specify the number of heads, and their total width ({width}) is not a multiple "
                f"of 64, the usual head width; {how_to_set('num_heads')}"
            )
        usual = "as in SO400M, ViT-H, ViT-g and ViT-G" if width in HEADS else "64 dimensions per head are usual"
        self.assume(usual, num_heads=HEADS.get(width, width // 64))
        if published:
            self.set(num_heads=self.fields["num_heads"])

    def infer_grid(
        self, positions: int, prefix_choices: Sequence[int], patch_stride: Size, wanted: Any = None, native: Any = None
    ) -> int:
        """Set the native image size from the number of positions. Return the number of prefix positions.

        wanted: Image size requested by the caller, or None. native: Image size specified by the checkpoint, or None.
        The first match is used: the native size (if its partial patches have no positions, the model ignores them), a
        square grid with the first prefix choice, the wanted size, or (if
        `native` is None) a square grid with another prefix. The last case is uncertain: a 15 x 15 grid, and a 14 x 16
        grid with a class token, both have 225 positions.
        """
        native = self.overrides.get("image_size", native)
        if native is not None and (prefix := _truncating(positions, prefix_choices, patch_stride, native)) is not None:
            self.set(image_size=as_size(native), truncate=True)
            return prefix
        if native is not None and (prefix := _fitting(positions, prefix_choices, patch_stride, native)) is not None:
            self.set(image_size=as_size(native))
            return prefix
        if side := _square_side(positions - prefix_choices[0]):
            self.default(
                "the number of patch positions is a square number",
                image_size=(side * patch_stride[0], side * patch_stride[1]),
            )
            if native is not None:
                reason = "the checkpoint specifies {} x {}, but contains positions for this size".format(
                    *as_size(native)
                )
                self.assume(reason, image_size=self.fields["image_size"])
            return prefix_choices[0]
        if wanted is not None and (prefix := _fitting(positions, prefix_choices, patch_stride, wanted)) is not None:
            self.default("the requested size matches the number of positions", image_size=as_size(wanted))
            return prefix
        for other in prefix_choices[1:]:
            if native is None and (side := _square_side(positions - other)):
                reason = f"a square grid, if {other} of the {positions} positions belong to prefix tokens; "
                reason += f"if this number is {prefix_choices[0]}, pass the image size"
                self.assume(reason, image_size=(side * patch_stride[0], side * patch_stride[1]))
                return other
        given = native if native is not None else wanted
        unfit = f" or match an image size of {as_size(given)}" if given is not None else ""
        raise BadCheckpoint(
            f"{self.path} has {positions} positions; the {positions - prefix_choices[0]} patch positions do not form "
            f"a square grid{unfit}. Pass the model's native image size, a multiple of {patch_stride[0]} x "
            f"{patch_stride[1]}, as image_size"
        )


def how_to_set(*fields: str) -> str:
    """Explain how to set fields that a checkpoint does not specify, in Python and on the command line."""
    python = ", ".join(f'"{field}": ...' for field in fields)
    command = " ".join(("vitreous convert SRC DST --to vitreous", *(f"--set {field}=..." for field in fields)))
    return f"pass overrides={{{python}}}, or convert the checkpoint once with `{command}`"


def _short(value: Any) -> str:
    """Return the repr of a config value. For dataclasses with many fields, show only non-default fields."""
    if not dataclasses.is_dataclass(value) or len(dataclasses.fields(value)) <= 2:
        return repr(value)
    changed = [field.name for field in dataclasses.fields(value) if getattr(value, field.name) != field.default]
    return f"{type(value).__name__}({', '.join(f'{name}={getattr(value, name)!r}' for name in changed)})"


def _fitting(positions: int, prefix_choices: Sequence[int], patch_stride: Size, size: Any) -> int | None:
    """Return the prefix length for which the remaining positions are the grid of this image size, or None."""
    patches = math.prod(-(-side // stride) for side, stride in zip(as_size(size), patch_stride, strict=True))
    return next((prefix for prefix in prefix_choices if positions == prefix + patches), None)


def _truncating(positions: int, prefix_choices: Sequence[int], patch_stride: Size, size: Any) -> int | None:
    """Return the prefix length if all positions belong to whole patches of an image with partial patches, or None."""
    whole = [side // stride * stride for side, stride in zip(as_size(size), patch_stride, strict=True)]
    return None if tuple(whole) == as_size(size) else _fitting(positions, prefix_choices, patch_stride, whole)


def _square_side(patches: int) -> int:
    """Return the side of a square grid with this number of patches, or 0 if no such grid exists."""
    side = math.isqrt(max(patches, 0))
    return side if side**2 == patches else 0
