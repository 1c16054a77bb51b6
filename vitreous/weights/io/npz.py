"""Reads and writes `.npz` files: zip files of arrays, as written by `np.savez` and `np.savez_compressed`.

`np.load` trusts the sizes in array headers and accepts any compression ratio. This reader checks headers against the
zip directory before allocating memory, limits the ratio, and does not evaluate headers as Python. bfloat16 is stored as
two untyped bytes ('<V2'), as in jax and big_vision. The dtype and shape checks are also used for arrays in pickles.
"""

import math
import mmap
import os
import re
import reprlib
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from vitreous.weights.io.errors import InvalidFile, errors_for, shown
from vitreous.weights.io.safetensors_file import MAX_TENSORS, map_copy_on_write
from vitreous.weights.io.zip_directory import BROKEN, Member, opened_zip

# ---- Dtypes and shapes of arrays -------------------------------------------------------------------------------------


NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
CODES = {code: torch.from_numpy(np.empty(0, code)).dtype for code in NUMBERS}
CODES |= {"V2": torch.bfloat16, "bfloat16": torch.bfloat16}  # numpy stores jax's bfloat16 as two untyped bytes
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 1 << 48  # keeps products of untrusted sizes within 64 bits


class ArrayType(NamedTuple):
    """Dtype and byte order of an array."""

    dtype: torch.dtype
    big_endian: bool


def array_type(description: str) -> ArrayType:
    """Parse a numpy dtype string: byte order, kind and item size."""
    order, code = (description[0], description[1:]) if description[:1] in tuple("<>=|") else ("=", description)
    if code.startswith("O"):
        raise InvalidFile("contains an array of Python objects, not numbers (no code in it was executed)")
    if code not in CODES:
        raise InvalidFile(f"contains an array of unsupported dtype {shown(description)!r}; expected {', '.join(CODES)}")
    return ArrayType(CODES[code], order == ">" or (order == "=" and sys.byteorder == "big"))


def count_elements(shape: tuple[object, ...]) -> int:
    """Validate a shape and return its number of elements."""
    sides = [side for side in shape[:MAX_DIMENSIONS] if type(side) is int and 0 <= side <= MAX_ELEMENTS]
    if len(sides) != len(shape) or math.prod(filter(None, sides)) > MAX_ELEMENTS:
        raise InvalidFile(f"contains a tensor with the invalid shape {shown(reprlib.repr(shape))}")
    return math.prod(sides)


def as_tensor(flat: Tensor, kind: ArrayType, shape: tuple[int, ...], fortran: bool) -> Tensor:
    """Convert bytes to a contiguous tensor, which shares their memory unless bytes must be reordered."""
    if kind.big_endian:
        unit = kind.dtype.itemsize // (2 if kind.dtype.is_complex else 1)
        flat = flat.view(-1, unit).flip(1).flatten()
    numbers = flat.ne(0) if kind.dtype == torch.bool else flat.view(kind.dtype)  # torch requires bools to be 0 or 1
    if fortran and len(shape) > 1:
        return numbers.view(shape[::-1]).permute(*range(len(shape) - 1, -1, -1)).contiguous()
    return numbers.view(shape)


# ---- Files -----------------------------------------------------------------------------------------------------------

MAX_BYTES = 1 << 36  # 64 GiB for all arrays, fifteen times the size of a ViT-g in float32
# Trained weights hardly compress. Constant tensors, such as an untrained head, reach deflate's limit of 1032, but the
# ratio of a whole file stays far below 100. A zip bomb is near 1000. 64 MiB is harmless at any ratio.
MAX_RATIO = 100
HARMLESS_BYTES = 1 << 26
CHUNK = 1 << 20
MAX_HEADER = 10_000  # numpy's limit
HEADER = re.compile(  # Python dict literal that numpy always formats the same way
    r"\{ ?'descr': ?'(?P<type>[^']{1,80})', ?'fortran_order': ?(?P<fortran>True|False), ?"
    r"'shape': ?\((?P<shape>(?:\d{1,18}L?, ?)*(?:\d{1,18}L?)?)\),? ?\}\s*"
)
TYPES = {dtype: ("|" if dtype.itemsize == 1 else "<") + code for code, dtype in CODES.items() if code != "bfloat16"}


class Header(NamedTuple):
    """Header of an array. `start` is the offset of the data in its zip member."""

    kind: ArrayType
    shape: tuple[int, ...]
    fortran: bool
    start: int


def read_npz(path: Path, lazy: bool = False) -> dict[str, Tensor]:
    """Read the arrays into a dict, in file order, after checking every header.

    With `lazy`, uncompressed arrays are memory-mapped, without aligning them or verifying their checksums.
    """
    with errors_for(path), open(path, "rb") as file, opened_zip(file) as (archive, members):
        _check_sizes(list(members.values()), os.fstat(file.fileno()).st_size)
        headers = {name: _header(archive, member) for name, member in members.items()}
        mapped = map_copy_on_write(file) if lazy else None
        return {
            name.removesuffix(".npy"): _array(archive, members[name], header, mapped)
            for name, header in headers.items()
        }


def write_npz(tensors: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors as `np.savez` does (not atomically). The output is deterministic."""
    for name, tensor in tensors.items():
        if tensor.dtype not in TYPES:
            allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in TYPES)
            raise ValueError(f"{name} is {tensor.dtype}, which npz does not support; supported dtypes are {allowed}")
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, tensor in tensors.items():
            flat = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
            header = {"descr": TYPES[tensor.dtype], "fortran_order": False, "shape": tuple(tensor.shape)}
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as stream:
                npy.write_array_header_1_0(stream, header)
                stream.write(flat.numpy().data)


def _check_sizes(members: list[Member], length: int) -> None:
    if len(members) > MAX_TENSORS:
        raise InvalidFile(f"contains {len(members):,} arrays; the maximum is {MAX_TENSORS:,}")
    total = sum(member.size for member in members)
    if total > max(HARMLESS_BYTES, min(MAX_BYTES, MAX_RATIO * length)):
        accepted = f"the maximum is {MAX_RATIO} times the file size, up to {MAX_BYTES:,} bytes"
        raise InvalidFile(f"would unpack from {length:,} bytes to {total:,} bytes; {accepted}")
    for member in members:
        if not member.name.endswith(".npy"):
            raise InvalidFile(f"contains {shown(member.name)}; only arrays (.npy) are allowed")


def _header(archive: zipfile.ZipFile, member: Member) -> Header:
    name = shown(member.name)
    try:
        with archive.open(member.name) as stream:
            start = stream.read(8)
            wide = start[6:7] in (b"\2", b"\3")  # the length field has 2 bytes in version 1, 4 bytes in later versions
            length = int.from_bytes(stream.read(4 if wide else 2), "little")
            text = stream.read(min(length, MAX_HEADER + 1)).decode("latin-1")
    except BROKEN as error:
        raise InvalidFile(f"contains {name}, which is damaged: {shown(error)}") from error
    found = HEADER.fullmatch(text)
    if start[:6] != b"\x93NUMPY" or len(text) != length or found is None:
        raise InvalidFile(f"contains {name}, which is not a numeric array: its header is {shown(text.strip())!r}")
    try:
        kind = array_type(found["type"])
        shape = tuple(int(side) for side in re.findall(r"\d+", found["shape"]))
        header = Header(kind, shape, found["fortran"] == "True", 8 + (4 if wide else 2) + length)
        size = header.start + count_elements(shape) * kind.dtype.itemsize
    except InvalidFile as reason:
        raise InvalidFile(f"{reason} ({name})") from reason
    if size != member.size:
        raise InvalidFile(f"contains {name} with {member.size:,} bytes, but its shape {list(shape)} requires {size:,}")
    return header


def _array(archive: zipfile.ZipFile, member: Member, header: Header, mapped: mmap.mmap | None) -> Tensor:
    name, nbytes = shown(member.name), math.prod(header.shape) * header.kind.dtype.itemsize
    if mapped is not None and member.stored and nbytes:
        flat = torch.frombuffer(mapped, dtype=torch.uint8, count=nbytes, offset=member.start + header.start)
        return as_tensor(flat, header.kind, header.shape, header.fortran)
    flat = torch.empty(nbytes, dtype=torch.uint8)
    memory, at = flat.numpy().data, 0
    try:
        with archive.open(member.name) as stream:
            stream.read(header.start)
            while chunk := stream.read(CHUNK):
                memory[at : at + len(chunk)] = chunk
                at += len(chunk)
    except BROKEN as error:
        raise InvalidFile(f"contains {name}, which is damaged: {shown(error)}") from error
    if at != nbytes:
        raise InvalidFile(f"contains {name}, which is truncated: {at:,} of {nbytes:,} bytes")
    return as_tensor(flat, header.kind, header.shape, header.fortran)
