"""What a pickle has described, made: tensors mapped from the file or copied out of it, in plain dicts and lists."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitreous.weights.io.errors import Refused, shown
from vitreous.weights.io.numpy_arrays import as_tensor
from vitreous.weights.io.pickle.allowed_names import Bystander, Function
from vitreous.weights.io.pickle.resolver import Ignored
from vitreous.weights.io.pickle.tensors import HARMLESS, Array, Latin1, Scalar, Storage, View
from vitreous.weights.io.safetensors_file import ALIGNMENT

MOST_VALUES = 500_000  # what is reached on two ways counts twice: a billion laughs are few bytes, but no weights
DEEPEST = 64


@dataclass
class Result:
    """`data` is the file, as memory that may be written to without changing the file.

    `uint16` is what an array of numpy's uint16 holds: Paddle knows no such numbers, and stores bfloat16 as them.
    """

    data: memoryview
    uint16: torch.dtype = torch.uint16
    _made: dict[Array | View | Storage, Tensor] = field(default_factory=dict)
    _values: int = 0
    _copied: int = 0

    def of(self, value: object, depth: int = 0) -> Any:
        """The value that a pickle left, with tensors for their descriptions: the same one for the same description."""
        self._values += 1
        if self._values > MOST_VALUES or depth > DEEPEST:
            raise Refused(f"holds more than {MOST_VALUES:,} values, or more than {DEEPEST} of them inside each other")
        match value:
            case None | bool() | int() | float() | str():
                return value
            case dict():
                return {key: self.of(item, depth + 1) for key, item in value.items()}
            case list():
                return [self.of(item, depth + 1) for item in value]
            case tuple():
                return tuple([self.of(item, depth + 1) for item in value])
            case Scalar():
                return self._array(value).item()
            case Array():
                return self._array(value)
            case View():
                return self._view(value)
            case memoryview() | Latin1():
                return self._bytes(value)
            case torch.dtype():
                return str(value).removeprefix("torch.")
            case Ignored(name) | Bystander(name):
                return Ignored(name)
            case Function(name):
                raise Refused(f"holds {name} where a value must be")
        raise Refused(f"holds a bare {type(value).__name__} where a value must be")

    def _view(self, view: View) -> Tensor:
        if view not in self._made:
            if 0 in view.shape:
                self._made[view] = torch.empty(view.shape, dtype=view.dtype)
            else:
                memory = self._memory(view.storage).untyped_storage()
                self._made[view] = torch.empty(0, dtype=view.dtype).set_(memory, view.offset, view.shape, view.stride)
        return self._made[view]

    def _memory(self, storage: Storage) -> Tensor:
        """Mapped from the file; a copy only where torch could not compute well with it (as in tensors.py)."""
        if storage not in self._made:
            if storage.start is None:
                raise Refused(f"does not hold the storage {shown(storage.key)}")
            data = self.data[storage.start : storage.start + storage.nbytes]
            mapped = torch.frombuffer(data, dtype=torch.uint8)
            self._made[storage] = _copied(data) if mapped.data_ptr() % ALIGNMENT else mapped
        return self._made[storage]

    def _array(self, array: Array) -> Tensor:
        if array not in self._made:
            if array.kind is None or array.data is None:
                raise Refused("holds an array without numbers")
            kind = array.kind._replace(dtype=self.uint16) if array.kind.dtype == torch.uint16 else array.kind
            flat = _copied(array.data if isinstance(array.data, memoryview) else _encoded(array.data))
            self._made[array] = as_tensor(flat, kind, array.shape, array.fortran)
            array.data = None  # text as large as the array
        return self._made[array]

    def _bytes(self, value: memoryview | Latin1) -> bytes:
        self._copied += len(value) if isinstance(value, memoryview) else len(value.text)
        if self._copied > HARMLESS + len(self.data):  # the same bytes again and again
            raise Refused(f"holds more than {self._copied:,} bytes outside of tensors, but has only {len(self.data):,}")
        return bytes(value) if isinstance(value, memoryview) else _encoded(value)


def _copied(data: memoryview | bytes) -> Tensor:
    """Measured with a ViT-B, ten times as fast as torch's `clone` is on a mapped file."""
    copy = torch.empty(len(data), dtype=torch.uint8)
    copy.numpy().data[:] = data
    return copy


def _encoded(latin1: Latin1) -> bytes:
    try:
        return latin1.text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise Refused("holds bytes that are none: letters beyond Latin-1") from error
