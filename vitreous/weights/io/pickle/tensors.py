"""Descriptions of the values in a pickle: allowed globals, storages, tensor views and arrays.

A name in a pickle is never imported: allowed names map to descriptions, and all others are rejected. Nothing is
allocated here. Descriptions are validated when they are created. read.py checks that the file has enough bytes and
builds the tensors.
"""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vitreous.weights.io.errors import InvalidFile, shown
from vitreous.weights.io.npz import ArrayType, array_type, count_elements
from vitreous.weights.io.safetensors_file import MAX_TENSORS

ADVICE = "(no code in it was executed; use a file that contains only weights)"
MAX_PAIRS = 500_000
MAX_SHARING = 8  # limit on the total size of tensors, which may share bytes, relative to the file size
HARMLESS_BYTES = 1 << 26  # any file may unpack to this size
MAX_KEY = 1 << 60  # larger Python integers can be chosen to have the same hash

DTYPES = {
    str(dtype): dtype
    for dtype in [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.bool),
    ]
}
KINDS = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "ComplexDouble": "complex128",
    "ComplexFloat": "complex64", "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8",
    "Bool": "bool", "Untyped": "uint8",  # an untyped storage is counted in bytes; its tensors state a dtype
}  # fmt: skip
STORAGES = {f"torch.{name}Storage": getattr(torch, dtype) for name, dtype in KINDS.items()}
STORAGES["torch.storage.UntypedStorage"] = torch.uint8
NO_VIEW: tuple[list[None], ...] = ([], [None])  # legacy storages may be views of other storages, which is not supported
FUNCTIONS = {
    *("collections.OrderedDict", "collections.defaultdict", "collections.Counter", "torch.Size"),
    *("torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"),
    *("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state", "numpy.ndarray", "numpy.dtype"),
    *("numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar", "numpy.core.numeric._frombuffer"),
    *("builtins.tuple", "builtins.bytes", "_codecs.encode"),
    *(f"torch.jit._pickle.build_{kind}list" for kind in ("int", "double", "bool", "tensor")),
    "torch.jit._pickle.restore_type_tag",
}
SCRIPTED = "__torch__."  # prefix of the class names of TorchScript modules
# Classes of objects that training scripts save with the weights. Such objects are not created; their data is dropped.
IGNORED_CLASSES = {
    *("argparse.Namespace", "types.SimpleNamespace", "yacs.config.CfgNode"),  # settings
    *("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.base.ContainerMetadata"),
    *("omegaconf.base.Metadata", "omegaconf.nodes.AnyNode", "omegaconf.nodes.StringNode", "omegaconf.nodes.FloatNode"),
    *("omegaconf.nodes.IntegerNode", "omegaconf.nodes.BooleanNode", "typing.Any"),
    *(f"{package}.utilities.parsing.AttributeDict" for package in ("lightning.pytorch", "pytorch_lightning")),
    *(f"{package}.utilities.data.AttributeDict" for package in ("lightning.fabric", "lightning_fabric")),
    *("pathlib.PosixPath", "pathlib.WindowsPath", "pathlib.PurePosixPath", "pathlib.PureWindowsPath"),
    *("datetime.datetime", "datetime.date", "datetime.time", "datetime.timedelta", "datetime.timezone"),
    *("torch.device", "torch.torch_version.TorchVersion", "builtins.set", "builtins.frozenset"),
    # Types in settings and defaultdicts; `long` is from Python 2.
    *("builtins.bool", "builtins.int", "builtins.long", "builtins.float", "builtins.str"),
    *("builtins.list", "builtins.dict"),
}
# Module names used by numpy 2, Python 2 and Python 3.13, and their equivalents in the tables above.
RENAMED = {"numpy._core.": "numpy.core.", "__builtin__.": "builtins.", "pathlib._local.": "pathlib."}


@dataclass(frozen=True)
class Function:
    name: str  # an allowed function, which is never called


@dataclass(frozen=True)
class StorageType:
    dtype: torch.dtype  # element dtype of a torch storage class


@dataclass(frozen=True)
class IgnoredClass:
    name: str  # a class whose objects are ignored


@dataclass(frozen=True)
class ScriptedClass:
    name: str  # a class of a TorchScript program, which is never run


class ScriptedModule(dict[str, Any]):
    """Attributes of a TorchScript module by name: parameters, buffers and other modules."""


@dataclass(frozen=True)
class Ignored:
    """Placeholder for an object saved with the weights, such as training settings."""

    name: str


def find(name: str) -> Function | StorageType | IgnoredClass | ScriptedClass | torch.dtype:
    """Map an allowed dotted name to its description. Raise InvalidFile for other names."""
    for new, old in RENAMED.items():
        name = old + name.removeprefix(new) if name.startswith(new) else name
    if name in STORAGES:
        return StorageType(STORAGES[name])
    if name in DTYPES:
        return DTYPES[name]
    if name in FUNCTIONS:
        return Function(name)
    if name in IGNORED_CLASSES:
        return IgnoredClass(name)
    if name.startswith(SCRIPTED):
        return ScriptedClass(name)
    raise InvalidFile(f"contains {shown(name)}, which is not a tensor {ADVICE}")


def checked_key(key: object) -> object:
    """Return `key` if it is safe to hash. Nested tuples take exponential time, and large integers can collide."""
    if type(key) not in (str, int, bool, float, type(None)) or (type(key) is int and abs(key) > MAX_KEY):
        raise InvalidFile(
            f"has an unsupported dict key of type {type(key).__name__}; expected a string or a small number"
        )
    return key


# ---- Descriptions ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Storage:
    """Bytes shared by tensors. `start` is the file offset of the bytes, or None until it is known."""

    key: str
    nbytes: int
    itemsize: int
    start: int | None = None


@dataclass(frozen=True)
class Elements:
    """A storage and its declared element dtype."""

    storage: Storage
    dtype: torch.dtype


@dataclass(eq=False)
class View:
    """A torch tensor, described as a strided view of a storage."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(eq=False, repr=False)
class Latin1:
    """Bytes as pickled by protocol 2: text for `_codecs.encode`, or an empty `bytes()`."""

    text: str


@dataclass(eq=False)
class NumpyType:
    """A numpy dtype code; BUILD sets the byte order."""

    code: str
    order: str = "="


@dataclass(eq=False, repr=False)
class Array:
    """A numpy array, created empty and filled by BUILD."""

    kind: ArrayType | None = None
    shape: tuple[int, ...] = ()
    fortran: bool = False
    data: memoryview | Latin1 | None = None


class Scalar(Array):
    """A numpy scalar, read as a 0-d array."""


@dataclass
class TensorMaker:
    """Resolves the calls, states and storages of a pickle in a file with `length` bytes."""

    length: int
    storages: dict[str, Storage] = field(default_factory=dict)
    _tensors: int = 0
    _tensor_bytes: int = 0
    _array_bytes: int = 0
    _pairs: int = 0

    def call(self, function: object, arguments: tuple[object, ...]) -> object:
        """Resolve REDUCE: describe the result of an allowed function."""
        if isinstance(function, IgnoredClass):
            return Ignored(function.name)
        if not isinstance(function, Function):
            raise InvalidFile(f"calls an object of type {type(function).__name__} {ADVICE}")
        match function.name.rpartition(".")[2], arguments:
            case ("OrderedDict", ()) | ("defaultdict", (_,)):
                return {}
            case "OrderedDict", (list(pairs),):  # from Python 2
                return self._dict(pairs)
            case ("Counter", (dict(content),)) | ("Size", (tuple(content),)):
                return content
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
                return self._fill(Array(), kind, shape, order == "F", data)
            case "scalar", (NumpyType() as kind, data):
                return self._fill(Scalar(), kind, (), False, data)
            case "tuple", ((str(), Array() as array),):  # a Paddle parameter name and tensor
                return array
            case "tuple", (tuple(items),):
                return items
            case "encode", (str(text), "latin1" | "latin-1"):
                return Latin1(text)
            case "bytes", ():
                return Latin1("")
            case (("build_intlist" | "build_doublelist" | "build_boollist" | "build_tensorlist"), (list(items),)):
                return items
            case "restore_type_tag", (value, str()):
                return value
        raise InvalidFile(f"calls {function.name} with unsupported arguments {ADVICE}")

    def new(self, kind: object) -> Ignored | ScriptedModule:
        """Resolve NEWOBJ: return a TorchScript module without attributes, or a placeholder for an ignored object."""
        if isinstance(kind, ScriptedClass):
            return ScriptedModule()
        if not isinstance(kind, IgnoredClass):
            raise InvalidFile(f"uses the pickle opcode NEWOBJ, which tensors do not need {ADVICE}")
        return Ignored(kind.name)

    def set_state(self, made: object, state: object) -> None:
        """Resolve BUILD: complete an array or dtype."""
        match made, state:
            case Ignored(), _:
                pass
            case Array(kind=None), (_, tuple(shape), NumpyType() as kind, fortran, data):
                self._fill(made, kind, shape, bool(fortran), data)
            case NumpyType(), (int(), "<" | ">" | "|" | "=" as order, None, None, None, *_):
                made.order = order
            case ScriptedModule(), dict():
                made.update(state)
            case dict(), dict():
                pass  # attributes of an OrderedDict, such as a state dict's `_metadata`
            case _:
                raise InvalidFile(f"sets the state of an object of type {type(made).__name__} {ADVICE}")

    def storage(self, identity: object) -> Elements:
        """Resolve BINPERSID: describe a storage outside the pickle."""
        match identity:
            case ("storage", StorageType(dtype), str(key), str(), int(number), *rest) if (
                number >= 0 and rest in NO_VIEW
            ):
                pass
            case _:
                raise InvalidFile(f"refers to {shown(reprlib.repr(identity))}, which is not a torch storage")
        nbytes = number * dtype.itemsize
        storage = self.storages.setdefault(key, Storage(key, nbytes, dtype.itemsize))
        if storage.nbytes != nbytes:
            raise InvalidFile(f"declares the storage {shown(key)} with both {storage.nbytes:,} and {nbytes:,} bytes")
        return Elements(storage, dtype)

    def _dict(self, pairs: list[object]) -> dict[Any, Any]:
        self._pairs += len(pairs)
        if self._pairs > MAX_PAIRS:  # one list may be used many times
            raise InvalidFile(f"contains dicts with more than {MAX_PAIRS:,} entries in total")
        made = {}
        for pair in pairs:
            match pair:
                case [key, value]:
                    made[checked_key(key)] = value
                case _:
                    raise InvalidFile(f"contains a dict built from {type(pair).__name__} values, not pairs {ADVICE}")
        return made

    def _view(self, storage: Storage, dtype: object, place: list[object], metadata: Sequence[object] = ()) -> View:
        match dtype, place:
            case torch.dtype(), [int(offset), tuple(shape), tuple(stride)] if not any(metadata):
                numbers, held = count_elements(shape), storage.nbytes // dtype.itemsize
            case _:  # metadata marks lazily conjugated or negated complex tensors
                kind = shown(reprlib.repr(dtype))
                raise InvalidFile(f"contains a tensor of dtype {kind} with unsupported arguments or metadata")
        strides = [step for step in stride[: len(shape)] if type(step) is int and step >= 0]
        possible = len(strides) == len(stride) == len(shape) and offset >= 0
        if not possible or (numbers and offset + sum((n - 1) * m for n, m in zip(shape, strides, strict=True)) >= held):
            raise InvalidFile(
                f"contains a tensor of shape {list(shape)} at element {offset} with strides {strides}, "
                f"but its storage {shown(storage.key)} has {held:,} elements"
            )
        self._count_tensor()
        self._tensor_bytes += numbers * dtype.itemsize
        if self._tensor_bytes > (most := HARMLESS_BYTES + MAX_SHARING * self.length):
            raise InvalidFile(f"expands from {self.length:,} bytes to more than {most:,} bytes of tensors")
        return View(storage, dtype, int(offset), shape, stride)

    def _count_tensor(self) -> None:
        self._tensors += 1
        if self._tensors > MAX_TENSORS:
            raise InvalidFile(f"contains more than {MAX_TENSORS:,} tensors")

    def _fill(self, array: Array, kind: NumpyType, shape: tuple[Any, ...], fortran: bool, data: object) -> Array:
        match data:
            case memoryview():
                held = data.nbytes
            case str() | Latin1():
                data = Latin1(data) if isinstance(data, str) else data
                held = len(data.text)
            case list():
                raise InvalidFile("contains an array of Python objects, not numbers (no code in it was executed)")
            case _:
                raise InvalidFile(f"contains an array whose data has type {type(data).__name__}; expected bytes")
        array.kind, array.shape, array.fortran, array.data = array_type(kind.order + kind.code), shape, fortran, data
        if held != (needed := count_elements(shape) * array.kind.dtype.itemsize):
            raise InvalidFile(f"contains an array with {held:,} bytes, but its shape {list(shape)} requires {needed:,}")
        self._count_tensor()
        self._array_bytes += needed
        if self._array_bytes > (most := HARMLESS_BYTES + self.length):  # each array is copied from the file once
            raise InvalidFile(f"expands from {self.length:,} to more than {most:,} bytes of arrays")
        return array
