"""Validates the directory of an untrusted zip file before its members are read.

`zipfile` parses the directory. The checks here limit its size and reject duplicate names, members that extend beyond
the end of the file, and members that share data (zip bombs).
"""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from vitreous.weights.io.errors import InvalidFile, shown

ZIP_START = b"PK\3\4"
MAX_DIRECTORY_BYTES = 1 << 21  # about 20,000 tensors, ten times a ViT-g with its optimizer
LOCAL = struct.Struct("<4s22xHH")  # local file header: signature, ..., lengths of name and extra field
BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, NotImplementedError, EOFError, RuntimeError)


class Member(NamedTuple):
    """A zip member: the offset of its data, and its packed and unpacked sizes."""

    name: str
    start: int
    packed: int
    size: int
    stored: bool  # not compressed


class _BoundedFile(io.FileIO):
    """File that rejects large reads, because `zipfile` reads a directory of any size at once."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_DIRECTORY_BYTES:
            raise InvalidFile(f"has a zip directory of {size:,} bytes; the maximum is {MAX_DIRECTORY_BYTES:,} bytes")
        return super().read(-1 if size is None else size)


@contextmanager
def opened_zip(file: BinaryIO) -> Iterator[tuple[zipfile.ZipFile, dict[str, Member]]]:
    """Open a zip file and yield it with its members by name, in directory order."""
    bounded = _BoundedFile(file.fileno(), closefd=False)
    try:
        archive = zipfile.ZipFile(bounded)
    except BROKEN as error:
        raise InvalidFile(f"is not a complete zip file: {shown(error)}") from error
    with archive:
        yield archive, _members(archive, bounded)


def _members(archive: zipfile.ZipFile, file: io.FileIO) -> dict[str, Member]:
    length = os.fstat(file.fileno()).st_size
    members: dict[str, Member] = {}
    end, last = 0, ""
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name = shown(info.filename)
        if info.filename in members:
            raise InvalidFile(f"contains {name} twice")
        if info.header_offset < end:
            raise InvalidFile(f"contains {name}, which overlaps {last}")
        end, last = _start(info, file) + info.compress_size, name
        if end > length:
            raise InvalidFile(f"is truncated: {name} ends at byte {end:,}, but the file has {length:,} bytes")
        stored = info.compress_type == zipfile.ZIP_STORED
        if not stored and info.compress_type != zipfile.ZIP_DEFLATED:  # other methods may need gigabytes
            raise InvalidFile(f"contains {name}, compressed by method {info.compress_type}; only deflate is supported")
        if info.flag_bits & 0x1 or (stored and info.compress_size != info.file_size):
            raise InvalidFile(f"contains {name}, which is encrypted or has inconsistent sizes")
        members[info.filename] = Member(
            info.filename, end - info.compress_size, info.compress_size, info.file_size, stored
        )
    return {info.filename: members[info.filename] for info in archive.infolist()}


def _start(info: zipfile.ZipInfo, file: io.FileIO) -> int:
    """Return the offset of a member's data, which follows a variable-length header."""
    try:
        file.seek(info.header_offset)
        signature, name, extra = LOCAL.unpack(file.read(LOCAL.size))
    except (ValueError, OSError, struct.error):
        signature = b""
    if signature != ZIP_START:
        raise InvalidFile(f"lists {shown(info.filename)} at byte {info.header_offset:,}, but no member starts there")
    return info.header_offset + LOCAL.size + name + extra
