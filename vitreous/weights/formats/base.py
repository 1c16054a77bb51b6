"""What every format of another system must say of itself, and what was found in a checkpoint."""

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from vitreous.common.checks import as_size
from vitreous.common.codec import to_dict
from vitreous.model.config import ViTConfig
from vitreous.model.options import Preprocessing
from vitreous.weights.formats.mapping import Row
from vitreous.weights.io.safetensors_file import BadCheckpoint

# Published models whose heads are not of 64 dimensions, by width: SO400M, ViT-H, ViT-g, ViT-G.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}


class AssumptionWarning(UserWarning):
    """A checkpoint does not state something that its model depends on, and the usual value was taken."""


@dataclass(frozen=True)
class Found:
    """A checkpoint of unknown origin: its tensors by their own names, and what else lay beside them."""

    path: Path
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)  # of a config.json, if there was one
    forget: Callable[[], None] = lambda: None  # see Mapped
    inside: tuple[str, ...] = ()  # the keys under which the tensors were, where there may be others beside them
    left_out: tuple[str, ...] = ()  # tensors beside the model that was taken, many in one line
    model_name: str = ""  # from the file's metadata, if it has any

    def count(self, pattern: str) -> int:
        """How many layers there are: `blocks.{i}.norm1.weight` for i from 0."""
        count = 0
        while pattern.replace("{i}", str(count)) in self.tensors:
            count += 1
        return count

    def shape(self, name: str, dims: int | None = None) -> tuple[int, ...]:
        """Of a tensor that must be there, and have so many dimensions, none of them empty."""
        if name not in self.tensors:
            raise BadCheckpoint(f"{self.path} has no tensor {name}")
        shape = tuple(self.tensors[name].shape)
        if dims is not None and (len(shape) != dims or 0 in shape):
            raise BadCheckpoint(f"{self.path}: {name} is {list(shape)}, but must have {dims} dimensions")
        return shape


class Inference:
    """The fields of a config as they are found out, and the reasons for those that a checkpoint does not state."""

    def __init__(self, found: Found, overrides: Mapping[str, Any], new_head: bool = False):
        self.path, self.overrides = found.path, overrides
        self.new_head = new_head  # whether the classifier is going to be replaced, whatever it is
        self.fields: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}
        self._uncertain: set[str] = set()

    @property
    def assumed(self) -> list[str]:
        """One line for each field that the checkpoint does not state."""
        return [f"{name}: {reason}" for name, reason in self._reasons.items() if name not in self.overrides]

    @property
    def warning(self) -> str | None:
        """One line with the uncertain fields, the values assumed, and how to set the first; None if there are none."""
        names = [name for name in self._reasons if name in self._uncertain and name not in self.overrides]
        if not names:
            return None
        assumed = "; ".join(f"{name}={_as_json(self.fields[name])} ({self._reasons[name]})" for name in names)
        return (
            f"{self.path} does not state all of its model; assumed: {assumed}. If one is wrong, {must_give(names[0])}"
        )

    def set(self, **fields: Any) -> None:
        """Fields that the tensors, or the file beside them, state."""
        self.fields |= fields
        self._reasons = {name: reason for name, reason in self._reasons.items() if name not in fields}

    def follow(self, reason: str, **fields: Any) -> None:
        """Fields that are not stated, but the same in all models of the format. The last call for a field counts."""
        self.fields |= fields
        self._reasons |= dict.fromkeys(fields, reason)
        self._uncertain -= fields.keys()

    def assume(self, reason: str, **fields: Any) -> None:
        """Fields that are not stated and may well be otherwise: the usual value, and why. Loading warns of them."""
        self.follow(reason, **fields)
        self._uncertain |= fields.keys()

    def prepare(self, reason: str, how: Preprocessing, always: bool = False) -> None:
        """Assume preprocessing, or, if `always`, follow the format's.

        Published means and deviations are for three channels: other numbers of channels get their average.
        """
        if self.fields["channels"] != 3 and len(how.mean) == 3:
            mean, std = ((sum(numbers) / 3,) for numbers in (how.mean, how.std))
            how, reason = dataclasses.replace(how, mean=mean, std=std), f"{reason}, the mean of three channels for each"
        (self.follow if always else self.assume)(reason, preprocessing=how)

    def heads(self, width: int, published: bool = False) -> None:
        """The number of heads by width: usually a head has 64 dimensions.

        published: the checkpoint is known to be one of its system's own models, which all have these.
        """
        if "num_heads" in self.overrides:
            return
        if width not in HEADS and (width % 64 or not width):
            raise BadCheckpoint(
                f"{self.path} does not say how many heads it has, and its width ({width}) is no multiple of 64: "
                f"{must_give('num_heads')}"
            )
        if width in HEADS:
            heads, reason = HEADS[width], "as in SO400M, ViT-H, ViT-g and ViT-G"
        else:
            heads, reason = width // 64, "64 dimensions per head, the usual number"
        if published:
            self.set(num_heads=heads)
        else:
            self.assume(reason, num_heads=heads)

    def grid(
        self, places: int, entries: Sequence[int], unit: tuple[int, int], image_size: Any = None, native: Any = None
    ) -> int:
        """The native size from the number of positions. Returns how many of them belong to prefix tokens.

        `entries` is how many may, the usual number first. What a checkpoint says of its `native` size counts. If that
        does not fit, a square beside the usual number does; then `image_size`, where the model is going to be used.
        Another number comes last, and only where nothing was said: 15 x 15 patches may also be 14 x 16 and a token.
        """
        native = self.overrides.get("image_size", native)
        if native is not None and (fitting := _fitting(places, entries, unit, as_size(native))) is not None:
            self.set(image_size=as_size(native))
            return fitting
        if side := _side(places - entries[0]):
            covered = (side * unit[0], side * unit[1])
            if native is not None:
                height, width = as_size(native)
                self.assume(f"stated is {height} x {width}, but the positions are for this size", image_size=covered)
            else:
                self.follow("the number of positions is a square", image_size=covered)
            return entries[0]
        if image_size is not None and (fitting := _fitting(places, entries, unit, as_size(image_size))) is not None:
            self.follow("the requested size fits the number of positions", image_size=as_size(image_size))
            return fitting
        for other in entries[1:]:
            if native is None and (side := _side(places - other)):
                reason = f"a square, if of {places} positions {other} are for tokens before the patches; "
                reason += f"if {entries[0]} are, the size must be given"
                self.assume(reason, image_size=(side * unit[0], side * unit[1]))
                return other
        given = native if native is not None else image_size
        said = f"; {tuple(as_size(given))} does not fit" if given is not None else ""
        raise BadCheckpoint(
            f"{self.path} has {places} positions, {places - entries[0]} without the prefix, which is no square{said}: "
            f"give the size it was made for, a multiple of {unit[0]} x {unit[1]}, as image_size"
        )


def _as_json(value: Any) -> str:
    """A field's value as `--set` takes it."""
    return json.dumps(to_dict(value) if dataclasses.is_dataclass(value) else value)


def must_give(*fields: str) -> str:
    """How to give what a file does not state, in Python and on the command line."""
    python = ", ".join(f'"{field}": ...' for field in fields)
    shell = " ".join(f"--set {field}=..." for field in fields)
    return f"give overrides={{{python}}}, or convert it once: vitreous convert SRC DST --to vitreous {shell}"


def _fitting(places: int, entries: Sequence[int], unit: tuple[int, int], size: tuple[int, int]) -> int | None:
    """Which of `entries` leaves as many positions as an image of this size has patches."""
    patches = math.prod(-(-side // step) for side, step in zip(size, unit, strict=True))
    return next((count for count in entries if places == count + patches), None)


def _side(patches: int) -> int:
    """Of a square of so many patches; 0 where there is none."""
    side = math.isqrt(max(patches, 0))
    return side if side**2 == patches else 0


class Format(ABC):
    """Another system's layout. One object for each; none of them has state."""

    name: ClassVar[str]
    title: ClassVar[str]  # what it is called on a model card
    dropped: ClassVar[Sequence[str]] = ()  # patterns of their names that we leave out on purpose
    suffixes: ClassVar[Sequence[str]] = ()  # of the one file that it is written as; none: `write` decides

    @abstractmethod
    def recognises(self, found: Found) -> bool:
        """Whether these names are this system's."""

    def normalise(self, found: Found) -> Found:
        """The same under the names that `table` uses, where versions of a system differ."""
        return found

    @abstractmethod
    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        """Fill in the fields of a config. `image_size` is where the model is going to be used, a hint no more."""

    @abstractmethod
    def table(self, config: ViTConfig) -> list[Row]:
        """All tensors of a model, theirs and ours."""

    # ---- Writing ----

    def obstacles(self, config: ViTConfig) -> list[str]:
        """Parts of a model that this format has no place for. One line each; empty if it holds everything."""
        return []

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        """What would be computed otherwise by the other system, though all weights are held. Needs `lossy`.

        folder: whether a config lies beside the weights; without one, the other system computes as it does by default.
        """
        return []

    def remarks(self, config: ViTConfig) -> list[str]:
        """Differences too small to need `lossy`, one line each, for the report of `convert` on a folder."""
        return []

    def additions(self, config: ViTConfig) -> dict[str, Tensor]:
        """Tensors that the other system wants and a model of ours has no use for."""
        return {}

    @abstractmethod
    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        """Their tensors as their files: into `path` where it is a folder, as a file of this name where not."""
