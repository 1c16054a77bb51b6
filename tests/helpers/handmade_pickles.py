"""Hand-made pickles and torch files, and a check that they are rejected."""

import contextlib
import io
import os
import pickle
import resource
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.weights.io.errors import BadCheckpoint
from vitreous.weights.io.pickle.read import read_pickle

RECONSTRUCT, FROM_BUFFER = np.zeros(1).__reduce__()[0], np.zeros(1).__reduce_ex__(5)[0]


class Call:
    """An object that is pickled as a function call, with an optional state for the result."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


class Outside:
    """An object that is pickled as a persistent reference."""

    def __init__(self, *identity: Any) -> None:
        self.identity = identity


class Pickler(pickle.Pickler):
    def persistent_id(self, value: object) -> Any:
        return value.identity if isinstance(value, Outside) else None


def pickled(value: Any, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    Pickler(stream, protocol).dump(value)
    return stream.getvalue()


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return stream.getvalue()


def torch_zip(value: Any, storage: bytes = bytes(24), **members: bytes) -> bytes:
    data = value if isinstance(value, bytes) else pickled(value)
    return zip_of({"x/data.pkl": data, "x/data/0": storage} | {f"x/{name}": data for name, data in members.items()})


def torch_old(value: Any, keys: Any = ("0",), count: int = 6, version: int = 1001, little_endian: bool = True) -> bytes:
    parts = (0x1950A86A20F9469CFC6C, version, {"little_endian": little_endian}, value, list(keys))
    return b"".join(map(pickled, parts)) + struct.pack("<q", count) + bytes(24)


def view(shape: Any = (2, 3), stride: Any = (3, 1), offset: Any = 0, elements: Any = 6, metadata: Any = None) -> Call:
    storage = Outside("storage", torch.FloatStorage, "0", "cpu", elements)
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, stride, False, OrderedDict(), metadata)


def array(shape: Any = (2,), code: str = "f4", data: Any = bytes(8), names: Any = None) -> Call:
    kind = Call(np.dtype, code, False, True, state=(3, "<", None, names, None, -1, -1, 0))
    return Call(RECONSTRUCT, np.ndarray, (0,), b"b", state=(1, shape, kind, False, data))


def doubled(first: bytes, join: Callable[[bytes], bytes]) -> bytes:
    """Return a pickle that joins the last value with itself a hundred times: 2 ** 100 values in half a kilobyte."""
    return b"\x80\2" + first + b"q\0" + b"".join(join(b"h" + bytes([i])) + b"q" + bytes([i + 1]) for i in range(100))


def shifted(data: bytes, field: bytes, at: int, form: str, value: int) -> bytes:
    """Return a zip file with one number changed, `at` bytes after the last occurrence of `field`."""
    whole = bytearray(data)
    struct.pack_into(form, whole, data.rindex(field) + at, value)
    return bytes(whole)


def repeated(function: Callable[..., Any], *arguments: Any, times: int = 100) -> bytes:
    """Return a pickle that calls a function many times with the same arguments."""
    call = b"j" + struct.pack("<I", 1000) + b"j" + struct.pack("<I", 1001) + b"R"
    held = [pickled(part)[2:-1] + b"r" + struct.pack("<I", 1000 + i) for i, part in enumerate((function, arguments))]
    return b"\x80\2" + b"".join(held) + b"](" + call * times + b"e."


@contextlib.contextmanager
def little_memory(spare: int = 1 << 28) -> Iterator[None]:
    """Raise MemoryError for allocations of more than `spare` bytes."""
    if not (statm := Path("/proc/self/statm")).exists():
        yield
        return
    pages = int(statm.read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_rejected(folder: Path, data: bytes, reason: str) -> None:
    """Assert that a file is rejected with a one-line message, using little memory and creating no files."""
    with contextlib.chdir(folder):
        Path("x.pth").write_bytes(data)
        with little_memory(), pytest.raises(BadCheckpoint, match=f"^x.pth .*({reason})") as error:
            read_pickle(Path("x.pth"))
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 300
        assert os.listdir() == ["x.pth"]
