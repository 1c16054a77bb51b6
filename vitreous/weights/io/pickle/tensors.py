"""What a pickle describes while it runs: so many bytes of a storage, a view of them, an array of these bytes.

Nothing is allocated here. Whether a description is possible is checked when it is made; whether the file really has the
bytes, by whoever knows the file (see pickles.py). Tensors are made of descriptions at the end (see pickle_result.py).
"""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vitreous.weights.io.errors import Refused, shown
from vitreous.weights.io.numpy_arrays import ArrayType, array_type, count
from vitreous.weights.io.pickle.allowed_names import Bystander, Function, StorageType, find
from vitreous.weights.io.pickle.machine import checked_key
from vitreous.weights.io.pickle.resolver import ADVICE, Ignored, Maker
from vitreous.weights.io.safetensors_file import MAX_TENSORS

MOST_PAIRS = 500_000
SHARING = 8  # tensors may share their bytes, but in all be no more than so many times the file
HARMLESS = 1 << 26


@dataclass(eq=False)
class Storage:
    """Bytes that tensors share: as many as the pickle says, at byte `start` of the file once that has been found."""

    key: str
    nbytes: int
    itemsize: int
    start: int | None = None


@dataclass(frozen=True)
class Elements:
    """A storage, and the type of number that it is said to hold."""

    storage: Storage
    dtype: torch.dtype


@dataclass(eq=False)
class View:
    """A tensor of torch's: some elements of a storage."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(eq=False, repr=False)
class Latin1:
    """Bytes as protocol 2 knows them: text, of which `_codecs.encode` makes bytes (and of no text, `bytes`)."""

    text: str


@dataclass(eq=False)
class NumpyType:
    """A type of numpy's, as `np.dtype` is told it; the order of bytes comes with BUILD."""

    code: str
    order: str = "="


@dataclass(eq=False, repr=False)
class Array:
    """A numpy array: made empty, filled by BUILD."""

    kind: ArrayType | None = None
    shape: tuple[int, ...] = ()
    fortran: bool = False
    data: memoryview | Latin1 | None = None


class Scalar(Array):
    """A number of numpy's, which is read as an array without dimensions."""


@dataclass
class TensorMaker(Maker):
    """Answers a pickle that comes from a file of `length` bytes."""

    length: int
    storages: dict[str, Storage] = field(default_factory=dict)
    _tensors: int = 0
    _tensor_bytes: int = 0
    _array_bytes: int = 0
    _pairs: int = 0

    def find(self, name: str) -> object:
        return find(name)

    def call(self, function: object, arguments: tuple[object, ...]) -> object:
        if isinstance(function, Bystander):
            return Ignored(function.name)
        if not isinstance(function, Function):
            raise Refused(f"calls a {type(function).__name__}: {ADVICE}")
        match function.name.rpartition(".")[2], arguments:
            case "OrderedDict", ():
                return {}
            case "OrderedDict", (list(pairs),):  # as Python 2 wrote it
                return self._dict(pairs)
            case "defaultdict", (_,):
                return {}
            case "Counter", (dict(counts),):
                return counts
            case "Size", (tuple(shape),):
                return shape
            case "_rebuild_tensor" | "_rebuild_tensor_v2", (Elements(storage, dtype), *place):
                return self._view(storage, dtype, place[:3], metadata=place[5:])
            case "_rebuild_tensor_v3", (Elements(storage), *place, dtype) if len(place) == 5:
                return self._view(storage, dtype, place[:3])
            case "_rebuild_tensor_v3", (Elements(storage), *place, dtype, metadata):
                return self._view(storage, dtype, place[:3], [metadata])
            case "_rebuild_parameter", (View() as view, _, _):
                return view
            case "_rebuild_parameter_with_state", (View() as view, _, _, _):
                return view
            case "dtype", (str(code), *_):
                return NumpyType(code)
            case "_reconstruct", (Function("numpy.ndarray"), *_):
                return Array()
            case "_frombuffer", (data, NumpyType() as kind, tuple(shape), "C" | "F" as order):
                return self._filled(Array(), kind, shape, order == "F", data)
            case "scalar", (NumpyType() as kind, data):
                return self._filled(Scalar(), kind, (), False, data)
            case "tuple", ((str(), Array() as array),):  # a tensor of Paddle's, with the name it had in the program
                return array
            case "tuple", (tuple(items),):
                return items
            case "encode", (str(text), "latin1" | "latin-1"):
                return Latin1(text)
            case "bytes", ():
                return Latin1("")
        raise Refused(f"calls {function.name} with arguments that it does not take: {ADVICE}")

    def new(self, kind: object) -> Ignored:
        if not isinstance(kind, Bystander):
            raise Refused(f"uses the pickle opcode NEWOBJ, which no tensor needs: {ADVICE}")
        return Ignored(kind.name)

    def fill(self, made: object, state: object) -> None:
        match made, state:
            case Ignored(), _:
                pass
            case Array(kind=None), (_, tuple(shape), NumpyType() as kind, fortran, data):
                self._filled(made, kind, shape, bool(fortran), data)
            case NumpyType(), (int(), "<" | ">" | "|" | "=" as order, None, None, None, *_):
                made.order = order
            case dict(), dict():
                pass  # an OrderedDict's attributes: the `_metadata` of a state dict, which says nothing of its tensors
            case _:
                raise Refused(f"sets the state of a {type(made).__name__}: {ADVICE}")

    def refer(self, identity: object) -> object:
        match identity:
            case ("storage", StorageType(dtype), str(key), str(), int(number)) if number >= 0:
                pass
            case ("storage", StorageType(dtype), str(key), str(), int(number), None) if number >= 0:
                pass
            case _:
                raise Refused(
                    f"refers to {shown(reprlib.repr(identity))}, which is not a storage of tensors as torch names it"
                )
        nbytes = number * dtype.itemsize
        storage = self.storages.setdefault(key, Storage(key, nbytes, dtype.itemsize))
        if storage.nbytes != nbytes:
            raise Refused(f"holds the storage {shown(key)} both with {storage.nbytes:,} and with {nbytes:,} bytes")
        return Elements(storage, dtype)

    def _dict(self, pairs: list[object]) -> dict[Any, Any]:
        self._pairs += len(pairs)
        if self._pairs > MOST_PAIRS:  # the same list again and again
            raise Refused(f"makes dicts of more than {MOST_PAIRS:,} pairs")
        made = {}
        for pair in pairs:
            match pair:
                case [key, value]:
                    made[checked_key(key)] = value
                case _:
                    raise Refused(f"makes a dict of a {type(pair).__name__}, which is not a pair: {ADVICE}")
        return made

    def _view(self, storage: Storage, dtype: object, place: list[object], metadata: Sequence[object] = ()) -> View:
        match dtype, place:
            case torch.dtype(), [int(offset), tuple(shape), tuple(stride)] if not any(metadata):
                numbers, held = count(shape), storage.nbytes // dtype.itemsize
            case _:  # metadata mark complex numbers that are to be conjugated or negated when they are used
                raise Refused(
                    f"describes a tensor of {shown(reprlib.repr(dtype))} by arguments or metadata unknown here"
                )
        steps = [step for step in stride[: len(shape)] if type(step) is int and step >= 0]
        possible = len(steps) == len(stride) == len(shape) and offset >= 0
        if not possible or (numbers and offset + sum((n - 1) * m for n, m in zip(shape, steps, strict=True)) >= held):
            raise Refused(
                f"holds a tensor of shape {list(shape)} at element {offset} and with steps of {steps}, "
                f"but its storage {shown(storage.key)} has {held:,} elements"
            )
        self._count_tensor()
        self._tensor_bytes += numbers * dtype.itemsize
        if self._tensor_bytes > (most := HARMLESS + SHARING * self.length):
            raise Refused(f"holds tensors of more than {most:,} bytes in all, but has only {self.length:,}")
        return View(storage, dtype, int(offset), shape, stride)

    def _count_tensor(self) -> None:
        self._tensors += 1
        if self._tensors > MAX_TENSORS:
            raise Refused(f"holds more than {MAX_TENSORS:,} tensors")

    def _filled(self, array: Array, kind: NumpyType, shape: tuple[Any, ...], fortran: bool, data: object) -> Array:
        match data:
            case memoryview():
                held = data.nbytes
            case str() | Latin1():
                data = Latin1(data) if isinstance(data, str) else data
                held = len(data.text)
            case list():
                raise Refused("holds an array of Python objects, which is not a tensor: nothing of it was executed")
            case _:
                raise Refused(f"holds an array whose bytes are a {type(data).__name__}")
        array.kind, array.shape, array.fortran, array.data = array_type(kind.order + kind.code), shape, fortran, data
        if held != (needed := count(shape) * array.kind.dtype.itemsize):
            raise Refused(f"holds an array of shape {list(shape)}, which takes {needed:,} bytes, but has {held:,}")
        self._count_tensor()
        self._array_bytes += needed
        if self._array_bytes > HARMLESS + self.length:  # each is copied out of the file; the same one, only once
            raise Refused(f"holds arrays of more than {self._array_bytes:,} bytes, but has only {self.length:,}")
        return array
