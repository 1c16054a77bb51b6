"""Readers of the formats that the well-known data sets are published in: plain bytes, every one of them."""

import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]  # pictures and labels


def read_cifar(files: Sequence[Path], label_bytes: int) -> Arrays:
    """CIFAR's binary version: records of labels, the fine one last, and 32 x 32 red, green and blue values."""
    record = label_bytes + 3 * 32 * 32
    for file in files:
        if file.stat().st_size == 0 or file.stat().st_size % record:
            raise ValueError(
                f"{file} has {file.stat().st_size:,} bytes, which is no whole number of {record}-byte records"
            )
    rows = np.concatenate([np.fromfile(file, np.uint8) for file in files]).reshape(-1, record)
    images = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), rows[:, label_bytes - 1].copy()


def read_idx(path: Path) -> np.ndarray:
    """MNIST's format, gzipped or not: two zeros, the type (8: uint8), how many dimensions, these, the values."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} cannot be unpacked: {error}") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path} is not an IDX file of bytes")
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape))
    if values.size != math.prod(shape):
        raise ValueError(f"{path} has {values.size:,} values, but {' x '.join(map(str, shape))} are announced")
    return values.reshape(shape)


# The numeric types of MATLAB's format, by their code.
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _COMPRESSED = 14, 15


def read_mat(path: Path) -> dict[str, np.ndarray]:
    """The real arrays of a MATLAB 5 file, flattened, by name."""
    data = path.read_bytes()
    if not data.startswith(b"MATLAB 5.0") or data[126:128] != b"IM":
        raise ValueError(f"{path} is not a MATLAB 5 file of little-endian numbers")
    found = {}
    try:
        for kind, body in _elements(data[128:]):
            for inner, matrix in _elements(zlib.decompress(body)) if kind == _COMPRESSED else [(kind, body)]:
                if inner == _MATRIX:
                    _, _, (_, name), (code, values) = list(_elements(matrix))[:4]  # flags, dimensions, name, values
                    found[name.decode()] = np.frombuffer(values, f"<{_NUMBERS[code]}")
    except (struct.error, zlib.error, ValueError, KeyError) as error:
        raise ValueError(f"{path} cannot be read as a MATLAB file: {error}") from None
    return found


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and bytes of each element. One of up to 4 bytes is packed into its own head; others are padded to 8."""
    place = 0
    while place < len(data):
        kind, size = struct.unpack_from("<II", data, place)
        if kind >> 16:
            yield kind & 0xFFFF, data[place + 4 : place + 4 + (kind >> 16)]
            place += 8
        else:
            yield kind, data[place + 8 : place + 8 + size]
            place += 8 + size + (-size % 8 if kind != _COMPRESSED else 0)
