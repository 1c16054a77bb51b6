"""Reads pickled checkpoints (`.pt`, `.pth`, `.bin`, `.pdparams`) without executing code in them.

The first bytes distinguish three containers:

- torch's zip file (since 1.6): `<name>/data.pkl` refers to storages, whose bytes are the members `<name>/data/<key>`.
  The storages are not compressed, so tensors are memory-mapped, as with `torch.load(mmap=True)`. A TorchScript program,
  such as OpenAI's CLIP, is such a file whose data.pkl contains modules; its code is not run.
- torch's legacy file: five consecutive pickles (magic number, version, system info, data, storage keys), followed by
  each storage as an element count and its bytes.
- a plain pickle of numpy arrays, as written by Paddle (see the end of this file).
"""

import os
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from vitreous.weights.io.errors import InvalidFile, errors_for, shown
from vitreous.weights.io.npz import as_tensor, count_elements
from vitreous.weights.io.pickle.machine import interpret
from vitreous.weights.io.pickle.tensors import (
    HARMLESS_BYTES,
    Array,
    Function,
    Ignored,
    IgnoredClass,
    Latin1,
    Scalar,
    ScriptedModule,
    Storage,
    TensorMaker,
    View,
)
from vitreous.weights.io.safetensors_file import ALIGNMENT, map_copy_on_write
from vitreous.weights.io.zip_directory import ZIP_START, Member, opened_zip

MAGIC = 0x1950A86A20F9469CFC6C  # of torch's legacy files
VERSION = 1001
COUNT = struct.Struct("<q")
BIG_ENDIAN = "is stored in big-endian byte order; only little-endian is supported"
MAX_VALUES = 500_000  # shared values count each time, which stops "billion laughs" files
MAX_DEPTH = 64
MAX_PREFIX = 400


def read_pickle(path: Path, lazy: bool = False) -> Any:
    """Read tensors and plain values. Other objects become `Ignored`. With `lazy`, also map unaligned arrays."""
    with errors_for(path), open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise InvalidFile("is empty")
        data = memoryview(map_copy_on_write(file))
        if data[: len(ZIP_START)] == ZIP_START:
            return _read_zip(file, data)
        value, end = interpret(data, TensorMaker(len(data)))
        if value == MAGIC:
            return _read_old(data, end)
        _check_end(data, end)
        return from_paddle(_Builder(data, uint16=torch.bfloat16, lazy=lazy).build(value))


def _read_zip(file: BinaryIO, data: memoryview) -> Any:
    with opened_zip(file) as (_, members):
        pass
    folders = [name.removesuffix("data.pkl") for name in members if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(folders) != 1:
        raise InvalidFile(f"is a zip file with {len(folders)} data.pkl members; torch writes exactly one")
    folder = folders[0]
    if (order := members.get(f"{folder}byteorder")) and bytes(_stored(order, data)[:9]) != b"little":
        raise InvalidFile(BIG_ENDIAN)
    maker, program = TensorMaker(len(data)), _stored(members[f"{folder}data.pkl"], data)
    value, end = interpret(program, maker)
    _check_end(program, end)
    for key, storage in maker.storages.items():
        member = members.get(f"{folder}data/{key}")
        held = len(_stored(member, data)) if member else 0
        if member is None or held < storage.nbytes:
            raise InvalidFile(f"has {held:,} bytes for the storage {shown(key)}; expected {storage.nbytes:,}")
        storage.start = member.start
    built = _Builder(data).build(value)
    return state_dict_of(built) if isinstance(value, ScriptedModule) else built


def state_dict_of(module: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Return the state dict of a TorchScript module, given its nested attributes. Its program is ignored."""
    if len(prefix) > MAX_PREFIX:
        raise InvalidFile(f"contains a module whose name is longer than {MAX_PREFIX} characters: {shown(prefix)}")
    tensors: dict[str, Tensor] = {}
    for name, value in module.items():
        if isinstance(value, Tensor):
            tensors[f"{prefix}{name}"] = value
        elif isinstance(value, Mapping):
            tensors |= state_dict_of(value, f"{prefix}{name}.")
    return tensors


def _stored(member: Member, data: memoryview) -> memoryview:
    if not member.stored:
        raise InvalidFile(f"contains {shown(member.name)} in compressed form; torch stores it uncompressed")
    return data[member.start : member.start + member.size]


def _read_old(data: memoryview, at: int) -> Any:
    """Read the rest of a legacy file. The magic number ends at byte `at`."""
    maker, values = TensorMaker(len(data)), []
    for _ in range(4):
        value, at = interpret(data, maker, at)
        values.append(value)
    version, machine, value, keys = values
    if version != VERSION:
        raise InvalidFile(f"has an unsupported version of torch's legacy file format; expected {VERSION}")
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise InvalidFile(BIG_ENDIAN)
    if not isinstance(keys, list) or {type(key) for key in keys} - {str} or sorted(keys) != sorted(maker.storages):
        raise InvalidFile("lists storages other than those that its tensors use")
    for key in keys:
        storage = maker.storages[key]
        if at + COUNT.size > len(data):
            raise InvalidFile(f"is truncated at byte {len(data):,}: storage {shown(key)} should start at byte {at:,}")
        (number,) = COUNT.unpack_from(data, at)
        storage.start = at + COUNT.size
        at = storage.start + storage.nbytes
        if number * storage.itemsize != storage.nbytes or at > len(data):
            raise InvalidFile(
                f"has {len(data) - storage.start:,} bytes for the storage {shown(key)} of {number:,} elements; "
                f"expected {storage.nbytes:,}"
            )
    return _Builder(data).build(value)


def _check_end(data: memoryview, end: int) -> None:
    if more := len(data) - end:
        raise InvalidFile(f"has {more:,} extra bytes after the end of its pickle")


# ---- From descriptions to tensors ------------------------------------------------------------------------------------


@dataclass
class _Builder:
    """Builds the tensors that a pickle describes. Their data is mapped or copied from the file."""

    data: memoryview  # the file, mapped copy-on-write
    uint16: torch.dtype = torch.uint16  # dtype used for numpy's uint16 arrays
    lazy: bool = False  # map arrays even if they are not aligned
    _built: dict[Array | View | Storage, Tensor] = field(default_factory=dict)
    _values: int = 0
    _copied: int = 0

    def build(self, value: object, depth: int = 0) -> Any:
        """Replace descriptions with tensors. References to one description share a tensor."""
        self._values += 1
        if self._values > MAX_VALUES or depth > MAX_DEPTH:
            raise InvalidFile(f"has more than {MAX_VALUES:,} values or nests them more than {MAX_DEPTH} levels deep")
        match value:
            case None | bool() | int() | float() | str():
                return value
            case dict():
                return {key: self.build(item, depth + 1) for key, item in value.items()}
            case list():
                return [self.build(item, depth + 1) for item in value]
            case tuple():
                return tuple([self.build(item, depth + 1) for item in value])
            case Array():
                return self._array(value).item() if isinstance(value, Scalar) else self._array(value)
            case View():
                return self._view(value)
            case memoryview() | Latin1():
                return self._bytes(value)
            case torch.dtype():
                return str(value).removeprefix("torch.")
            case Ignored(name) | IgnoredClass(name):
                return Ignored(name)
            case Function(name):
                raise InvalidFile(f"contains the function {name} where a value is expected")
        raise InvalidFile(f"contains an incomplete object ({type(value).__name__}) where a value is expected")

    def _view(self, view: View) -> Tensor:
        if view not in self._built:
            if 0 in view.shape:
                self._built[view] = torch.empty(view.shape, dtype=view.dtype)
            else:
                memory = self._memory(view.storage).untyped_storage()
                self._built[view] = torch.empty(0, dtype=view.dtype).set_(memory, view.offset, view.shape, view.stride)
        return self._built[view]

    def _memory(self, storage: Storage) -> Tensor:
        """Map a storage from the file. Copy a storage that is not aligned."""
        if storage not in self._built:
            if storage.start is None:
                raise InvalidFile(f"does not contain the storage {shown(storage.key)}")
            data = self.data[storage.start : storage.start + storage.nbytes]
            mapped = torch.frombuffer(data, dtype=torch.uint8)
            self._built[storage] = _copy(data) if mapped.data_ptr() % ALIGNMENT else mapped
        return self._built[storage]

    def _array(self, array: Array) -> Tensor:
        if array not in self._built:
            if array.kind is None or array.data is None:
                raise InvalidFile("contains an array without data")
            kind = array.kind._replace(dtype=self.uint16) if array.kind.dtype == torch.uint16 else array.kind
            data = array.data if isinstance(array.data, memoryview) else _encode(array.data)
            mapped = self.lazy and isinstance(data, memoryview) and data.nbytes
            flat = torch.frombuffer(data, dtype=torch.uint8) if mapped else _copy(data)
            self._built[array] = as_tensor(flat, kind, array.shape, array.fortran)
            array.data = None  # frees text as large as the array
        return self._built[array]

    def _bytes(self, value: memoryview | Latin1) -> bytes:
        self._copied += len(value) if isinstance(value, memoryview) else len(value.text)
        if self._copied > (most := HARMLESS_BYTES + len(self.data)):  # the same bytes may be used many times
            raise InvalidFile(f"expands from {len(self.data):,} to more than {most:,} bytes of non-tensor data")
        return bytes(value) if isinstance(value, memoryview) else _encode(value)


def _copy(data: memoryview | bytes) -> Tensor:
    """Copy bytes to a tensor. For a mapped ViT-B, this is ten times as fast as `Tensor.clone`."""
    copy = torch.empty(len(data), dtype=torch.uint8)
    copy.numpy().data[:] = data
    return copy


def _encode(latin1: Latin1) -> bytes:
    try:
        return latin1.text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise InvalidFile("contains text that is not Latin-1 where bytes are expected") from error


# ---- Paddle ----------------------------------------------------------------------------------------------------------

# Paddle 3.3 writes a dict of arrays; in nested dicts, a tensor is `tuple((name, array))`. bfloat16 is stored as uint16.
NAMES = "StructuredToParameterName@@"  # parameter names; Paddle identifies a state dict by this entry
PARTS = "UnpackBigParamInfor@@"  # arrays above 1 GiB, split into flat parts "<key>@@.<i>" by protocols 2 and 3
NUMPY_CODES = {torch.float64: "f8", torch.float32: "f4", torch.float16: "f2", torch.bfloat16: "u2"}


def from_paddle(content: Any) -> Any:
    """Drop Paddle's metadata and join arrays that were split, as `paddle.load` does."""
    if not isinstance(content, dict):
        return content
    content.pop(NAMES, None)
    parts = content.pop(PARTS, {})
    for key, part in parts.items() if isinstance(parts, dict) else ():
        match part:
            case {"OriginShape": tuple(shape), "slices": list(names)} if all(type(name) is str for name in names):
                found = [content.pop(name, None) for name in names]  # each part is used only once
                flat = [piece for piece in found if isinstance(piece, Tensor) and piece.ndim == 1]
                numbers, dtypes = sum(piece.numel() for piece in flat), {piece.dtype for piece in flat}
                if len(flat) == len(names) and len(dtypes) == 1 and numbers == count_elements(shape):
                    content[key] = torch.cat(flat).view(shape)
                    continue
        raise InvalidFile(f"contains {shown(key)} in parts that do not match its shape")
    return content


def write_pdparams(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write a state dict for `paddle.load`, using module names that numpy 1 can also import."""
    with open(file, "wb") as stream:
        stream.write(pickle.PROTO + bytes([4]) + pickle.EMPTY_DICT + pickle.MARK)
        for name, tensor in tensors.items():
            numbers = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            stream.write(_text(name) + _array_head(tensor))
            stream.write(pickle.BINBYTES8 + struct.pack("<Q", len(numbers)))
            stream.write(numbers.numpy().data)
            stream.write(pickle.TUPLE + pickle.BUILD)
        names = b"".join(_text(name) + _text(name) for name in tensors)
        stream.write(_text(NAMES) + pickle.EMPTY_DICT + pickle.MARK + names + pickle.SETITEMS)
        stream.write(pickle.SETITEMS + pickle.STOP)


def _array_head(tensor: Tensor) -> bytes:
    """Encode an empty array and its state up to the data: version, shape, dtype, C order."""
    empty = _tuple(_global("numpy", "ndarray"), _tuple(_int(0)), pickle.SHORT_BINBYTES + b"\x01b")
    array = _global("numpy.core.multiarray", "_reconstruct") + empty + pickle.REDUCE
    kind = _tuple(_text(NUMPY_CODES[tensor.dtype]), pickle.NEWFALSE, pickle.NEWTRUE)
    little_endian = _tuple(_int(3), _text("<"), *[pickle.NONE] * 3, _int(-1), _int(-1), _int(0))
    dtype = _global("numpy", "dtype") + kind + pickle.REDUCE + little_endian + pickle.BUILD
    return array + pickle.MARK + _int(1) + _tuple(*map(_int, tensor.shape)) + dtype + pickle.NEWFALSE


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    return pickle.BINUNICODE + struct.pack("<I", len(text.encode())) + text.encode()


def _int(number: int) -> bytes:
    return pickle.BININT + struct.pack("<i", number)


def _tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE
