"""An opened checkpoint of another system, before its format is known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.weights.io.errors import BadCheckpoint


@dataclass(frozen=True)
class StateDict:
    """Tensors under their own names, and the config.json beside them.

    inside: the keys under which a training script stored the tensors, if it stored others too.
    ignored: tensors beside the model, summarised for the provenance.
    model_name: the architecture that the file's metadata name, or "".
    """

    path: Path
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any] = field(default_factory=dict)
    forget: Callable[[], None] = lambda: None  # see Mapped
    inside: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    model_name: str = ""

    def count(self, pattern: str) -> int:
        """Number of layers: tensors `blocks.{i}.norm1.weight` for i = 0, 1, ..."""
        count = 0
        while pattern.replace("{i}", str(count)) in self.tensors:
            count += 1
        return count

    def shape(self, name: str, dims: int | None = None) -> tuple[int, ...]:
        """Shape of a required tensor, checked to have `dims` dimensions, none of them 0."""
        if name not in self.tensors:
            raise BadCheckpoint(f"{self.path} has no tensor {name}")
        shape = tuple(self.tensors[name].shape)
        if dims is not None and (len(shape) != dims or 0 in shape):
            raise BadCheckpoint(f"{self.path}: {name} is {list(shape)}, but must have {dims} dimensions")
        return shape
