"""What every format of another system must say of itself, and what was found in a checkpoint."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from vitreous.model.checks import as_size
from vitreous.model.config import ViTConfig
from vitreous.weights.mapping import Row
from vitreous.weights.tensors import BadCheckpoint

# What the heads of published models are, where they are not of 64 numbers each.
HEADS = {1280: 16, 1408: 16, 1664: 16}


@dataclass(frozen=True)
class Found:
    """A checkpoint of unknown origin: its tensors by their own names, and what else lay beside them."""

    path: Path
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)  # of a config.json, if there was one

    def count(self, pattern: str) -> int:
        """How many layers there are: `blocks.{i}.norm1.weight` for i from 0."""
        count = 0
        while pattern.replace("{i}", str(count)) in self.tensors:
            count += 1
        return count

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor that must be there."""
        if name not in self.tensors:
            raise BadCheckpoint(f"{self.path} has no tensor {name}")
        return tuple(self.tensors[name].shape)


class Inference:
    """The fields of a config as they are found out. What tensors cannot tell is taken by convention, and said."""

    def __init__(self, found: Found, overrides: Mapping[str, Any]):
        self.path, self.overrides = found.path, overrides
        self.fields: dict[str, Any] = {}
        self.assumed: list[str] = []

    def set(self, **fields: Any) -> None:
        """What the tensors, or the file beside them, say."""
        self.fields |= fields

    def assume(self, reason: str, **fields: Any) -> None:
        """What neither says, and why it is probably so."""
        self.fields |= fields
        self.assumed += [f"{name}: {reason}" for name in fields if name not in self.overrides]

    def heads(self, width: int) -> None:
        """By convention a head has 64 numbers."""
        if "num_heads" in self.overrides:
            return
        if width not in HEADS and (width % 64 or not width):
            raise BadCheckpoint(
                f"{self.path} does not say how many heads it has, and its width ({width}) is no multiple of 64: "
                'give overrides={"num_heads": ...}'
            )
        self.assume("as published models of this width have them", num_heads=HEADS.get(width, width // 64))

    def grid(self, places: int, prefix: int, unit: tuple[int, int], image_size: Any = None) -> int:
        """The native size from the number of positions. Returns how many of them belong to prefix tokens.

        `prefix` tokens may have entries or not: whichever leaves a square, unless a size is given.
        """
        given = self.overrides.get("image_size", image_size)
        if given is not None:
            size = as_size(given)
            patches = math.prod(-(-side // step) for side, step in zip(size, unit, strict=True))
            for entries in (prefix, 0):
                if places == entries + patches:
                    self.set(image_size=size)
                    return entries
        for entries in dict.fromkeys((prefix, 0)):
            side = math.isqrt(max(places - entries, 0))
            if side and side**2 == places - entries:
                self.assume("the number of positions is a square", image_size=(side * unit[0], side * unit[1]))
                return entries
        said = f"; {tuple(as_size(given))} does not fit" if given is not None else ""
        raise BadCheckpoint(
            f"{self.path} has {places} positions, {places - prefix} without the prefix, which is no square{said}: "
            f"give the size it was made for, a multiple of {unit[0]} x {unit[1]}, as image_size"
        )


class Format(ABC):
    """Another system's layout. One object for each; none of them has state."""

    name: ClassVar[str]
    title: ClassVar[str]  # what it is called on a model card
    dropped: ClassVar[Sequence[str]] = ()  # patterns of their names that we leave out on purpose

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

    def losses(self, config: ViTConfig) -> list[str]:
        """What would be computed otherwise by the other system, though all weights are held. Needs `lossy`."""
        return []

    def additions(self, config: ViTConfig) -> dict[str, Tensor]:
        """Tensors that the other system wants and a model of ours has no use for."""
        return {}

    @abstractmethod
    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        """Their tensors as their files: into `path` where it is a folder, as a file of this name where not."""
