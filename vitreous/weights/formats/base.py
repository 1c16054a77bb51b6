"""The interface of a checkpoint format, and the builder that infers a config from a checkpoint.

A new format is a subclass of `Format`: `name`, `title` and `signatures` identify it, `infer` reads the config,
`table` maps the tensors in both directions, and an instance in `FORMATS` (detection.py) registers it. The class
attributes and the methods below "Writing" matter only if models are written in the format.
"""

import dataclasses
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import Tensor

from vitreous.common.checks import Size, as_size
from vitreous.model.config import ViTConfig
from vitreous.model.options import Preprocessing
from vitreous.weights.formats.mapping import Row, renamed
from vitreous.weights.formats.write_checks import missing_parts, numeric_differences
from vitreous.weights.io.containers import write_file
from vitreous.weights.io.errors import BadCheckpoint

# Published models whose heads do not have 64 dimensions, by width: SO400M, ViT-H, ViT-g, ViT-G.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}


class AssumptionWarning(UserWarning):
    """A checkpoint does not state all fields of its model's config, and usual values were assumed."""


@dataclass(frozen=True)
class StateDict:
    """The tensors of a foreign checkpoint under their own names, and the config.json beside them."""

    path: Path
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    forget: Callable[[], None] = lambda: None  # see Mapped
    inside: tuple[str, ...] = ()  # keys under which a training script stored the tensors, if it stored others too
    ignored: tuple[str, ...] = ()  # tensors beside the model, summarised for the provenance
    model_name: str = ""  # the architecture that the file's metadata name

    def count(self, pattern: str, first: int = 0) -> int:
        """Number of layers: tensors `blocks.{i}.norm1.weight` for i = first, first + 1, ..."""
        numbers = itertools.count(first)
        return next(i for i in numbers if pattern.replace("{i}", str(i)) not in self.tensors) - first

    def shape(self, name: str, dims: int | None = None) -> tuple[int, ...]:
        """Shape of a required tensor, checked to have `dims` dimensions, none of them 0."""
        if name not in self.tensors:
            raise BadCheckpoint(f"{self.path} has no tensor {name}")
        shape = tuple(self.tensors[name].shape)
        if dims is not None and (len(shape) != dims or 0 in shape):
            raise BadCheckpoint(f"{self.path}: {name} is {list(shape)}, but must have {dims} dimensions")
        return shape


class Format(ABC):
    """Checkpoint format of another system. Instances have no state."""

    name: ClassVar[str]
    title: ClassVar[str]  # as model cards and messages call the system
    signatures: ClassVar[Sequence[Sequence[str]]]  # a checkpoint has this format if it has all names of one of these
    roots: ClassVar[Sequence[str]] = ("",)  # prefixes that all tensor names may have
    renames: ClassVar[Sequence[tuple[str, str]]] = ()  # regular expressions from other versions' names to `table`'s
    ignored: ClassVar[Sequence[str]] = ()  # patterns of tensor names that are not read
    suffixes: ClassVar[Sequence[str]] = ()  # of the file it is written as; if none, it may be written as a folder too
    file_name: ClassVar[str] = "model.safetensors"  # in a folder
    missing: ClassVar[Sequence[str]] = ()  # what the system lacks (keys of CHECKS in write_checks.py)
    norm_eps: ClassVar[float] = 1e-6  # the system's LayerNorm eps and GELU, where its files do not state them
    gelu: ClassVar[Literal["erf", "tanh"]] = "erf"

    def root(self, state: StateDict) -> str | None:
        """The root under which one of the signatures is complete, or None."""
        for root in self.roots:
            if any(all(f"{root}{name}" in state.tensors for name in names) for names in self.signatures):
                return root
        return None

    def recognises(self, state: StateDict) -> bool:
        return self.root(state) is not None and self.confirms(state)

    def confirms(self, state: StateDict) -> bool:
        """Tell systems apart that share a signature, by shapes or values."""
        return True

    def normalise(self, state: StateDict) -> StateDict:
        """The tensors under the names that `table` uses, in all versions of the system."""
        root = self.root(state) or ""
        tensors = {name.removeprefix(root): tensor for name, tensor in state.tensors.items()}
        return dataclasses.replace(state, tensors=renamed(tensors, self.renames))

    @abstractmethod
    def infer(self, state: StateDict, builder: "ConfigBuilder", image_size: Any = None) -> None:
        """Set the fields of the config. `image_size` is the size that the caller wants to use, as a hint."""

    @abstractmethod
    def table(self, config: ViTConfig) -> list[Row]:
        """Rows for all tensors of a model."""

    # ---- Writing ----

    def unsupported(self, config: ViTConfig) -> list[str]:
        """One line for each part of a model that the format cannot hold."""
        return missing_parts(config, self.title, self.missing)

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        """One line for each computation that the other system does differently with the same weights.

        folder: a config is written beside the weights; without it, the other system uses its defaults.
        """
        return numeric_differences(config, self.title, self.norm_eps, self.gelu)

    def minor_differences(self, config: ViTConfig) -> list[str]:
        """Differences too small to require `lossy`, for the report of `convert`."""
        return []

    def extra_tensors(self, config: ViTConfig) -> dict[str, Tensor]:
        """Tensors that the other system requires and our models do not have."""
        return {}

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        """Write tensors that have the other system's names into `path`, a folder or a file."""
        write_file(tensors, path / self.file_name if path.is_dir() else path)


class ConfigBuilder:
    """Collects the fields of a config, and the reasons for those that the checkpoint does not state."""

    def __init__(self, state: StateDict, overrides: Mapping[str, Any], new_head: bool = False):
        self.path, self.overrides = state.path, overrides
        self.new_head = new_head  # the caller is going to replace the classifier
        self.fields: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}
        self._uncertain: set[str] = set()

    @property
    def assumed(self) -> list[str]:
        """A line `field: reason` for each field that neither the checkpoint nor an override states."""
        return [f"{name}: {reason}" for name, reason in self._reasons.items() if name not in self.overrides]

    @property
    def warning(self) -> str | None:
        """One line with the uncertain fields and how to override them, or None."""
        names = [name for name in self._reasons if name in self._uncertain and name not in self.overrides]
        if not names:
            return None
        assumed = ", ".join(f"{name}={_short(self.fields[name])}" for name in names)
        return f"{self.path}: assumed {assumed}. If that is wrong, {how_to_set(names[0])}"

    def set(self, **fields: Any) -> None:
        """Set fields that the tensors or the file beside them state."""
        self.fields |= fields
        self._reasons = {name: reason for name, reason in self._reasons.items() if name not in fields}

    def default(self, reason: str, **fields: Any) -> None:
        """Set fields that are not stated, but equal in all models of the format."""
        self.fields |= fields
        self._reasons |= dict.fromkeys(fields, reason)
        self._uncertain -= fields.keys()

    def assume(self, reason: str, **fields: Any) -> None:
        """Set fields that are not stated and may differ to their usual values; loading warns."""
        self.default(reason, **fields)
        self._uncertain |= fields.keys()

    def assume_preprocessing(self, reason: str, preprocessing: Preprocessing, certain: bool = False) -> None:
        """Assume published preprocessing; its mean and std of three channels are averaged for other numbers of them."""
        if self.fields["channels"] != 3 and len(preprocessing.mean) == 3:
            mean, std = ((sum(numbers) / 3,) for numbers in (preprocessing.mean, preprocessing.std))
            preprocessing = dataclasses.replace(preprocessing, mean=mean, std=std)
            reason += ", averaged over its three channels"
        (self.default if certain else self.assume)(reason, preprocessing=preprocessing)

    def infer_heads(self, width: int, published: bool = False) -> None:
        """Set the number of heads by width, usually 64 dimensions each; certain for models of the system itself."""
        if "num_heads" in self.overrides:
            return
        if width not in HEADS and (width % 64 or not width):
            raise BadCheckpoint(
                f"{self.path} does not state its number of heads, and its width ({width}) is no multiple of 64: "
                f"{how_to_set('num_heads')}"
            )
        usual = "as in SO400M, ViT-H, ViT-g and ViT-G" if width in HEADS else "64 dimensions per head, the usual number"
        self.assume(usual, num_heads=HEADS.get(width, width // 64))
        if published:
            self.set(num_heads=self.fields["num_heads"])

    def infer_grid(
        self, positions: int, prefix_choices: Sequence[int], patch_stride: Size, wanted: Any = None, native: Any = None
    ) -> int:
        """Set the native image size from the number of positions; return how many of these are prefix tokens'.

        wanted, native: the size that the caller wants to use, and the one that the checkpoint states, if any.
        In this order: the native size, a square grid with the usual prefix, the wanted size, and, if no native size
        is stated, a square with another prefix. The last is uncertain: 15 x 15 positions may be 14 x 16 and a token.
        """
        native = self.overrides.get("image_size", native)
        if native is not None and (prefix := _fitting(positions, prefix_choices, patch_stride, native)) is not None:
            self.set(image_size=as_size(native))
            return prefix
        if side := _square_side(positions - prefix_choices[0]):
            self.default(
                "the number of positions is a square", image_size=(side * patch_stride[0], side * patch_stride[1])
            )
            if native is not None:
                reason = "stated is {} x {}, but the positions are for this size".format(*as_size(native))
                self.assume(reason, image_size=self.fields["image_size"])
            return prefix_choices[0]
        if wanted is not None and (prefix := _fitting(positions, prefix_choices, patch_stride, wanted)) is not None:
            self.default("the requested size fits the number of positions", image_size=as_size(wanted))
            return prefix
        for other in prefix_choices[1:]:
            if native is None and (side := _square_side(positions - other)):
                reason = f"a square, if of {positions} positions {other} are for tokens before the patches; "
                reason += f"if {prefix_choices[0]} are, the size must be given"
                self.assume(reason, image_size=(side * patch_stride[0], side * patch_stride[1]))
                return other
        given = native if native is not None else wanted
        unfit = f"; {tuple(as_size(given))} does not fit" if given is not None else ""
        raise BadCheckpoint(
            f"{self.path} has {positions} positions, {positions - prefix_choices[0]} without the prefix, which is no "
            f"square{unfit}: give the size it was made for, a multiple of {patch_stride[0]} x {patch_stride[1]}, "
            "as image_size"
        )


def how_to_set(*fields: str) -> str:
    """Advice to give fields that a file does not state, in Python and on the command line."""
    python = ", ".join(f'"{field}": ...' for field in fields)
    shell = " ".join(f"--set {field}=..." for field in fields)
    return f"give overrides={{{python}}}, or convert it once: vitreous convert SRC DST --to vitreous {shell}"


def _short(value: Any) -> str:
    """The repr of a field's value; of options with many fields, only those that are not the default."""
    if not dataclasses.is_dataclass(value) or len(dataclasses.fields(value)) <= 2:
        return repr(value)
    changed = [field.name for field in dataclasses.fields(value) if getattr(value, field.name) != field.default]
    return f"{type(value).__name__}({', '.join(f'{name}={getattr(value, name)!r}' for name in changed)})"


def _fitting(positions: int, prefix_choices: Sequence[int], patch_stride: Size, size: Any) -> int | None:
    """The choice that leaves as many positions as an image of this size has patches."""
    patches = math.prod(-(-side // stride) for side, stride in zip(as_size(size), patch_stride, strict=True))
    return next((prefix for prefix in prefix_choices if positions == prefix + patches), None)


def _square_side(patches: int) -> int:
    """The side of a square grid with this number of patches, or 0."""
    side = math.isqrt(max(patches, 0))
    return side if side**2 == patches else 0
