"""The directory of a zip file that a stranger wrote, checked before anything in it is read or inflated.

Both torch's files and numpy's are zips. `zipfile` reads the directory; here it is made sure that the directory is of
a sane size, that every member lies inside the file, and that no two share a name or a byte: neither the same data
inflated a thousand times (an overlapping zip bomb) nor a member that two readers would take for two things.
"""

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from vitreous.weights.io.errors import Refused, shown

MOST_DIRECTORY_BYTES = 1 << 21  # some twenty thousand tensors; ten times those of a ViT-g with its optimizer
LOCAL = struct.Struct("<4s22xHH")  # a member's own header: signature, ..., lengths of its name and extra field
BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, NotImplementedError, EOFError, RuntimeError)


class Member(NamedTuple):
    """Where a member's data lies in the file, and how many bytes it has there and unpacked."""

    name: str
    start: int
    packed: int
    size: int
    stored: bool  # as it is, not compressed


class _Wary(io.FileIO):
    """A file that is not read in one go: `zipfile` would take a directory of any size."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MOST_DIRECTORY_BYTES:
            raise Refused(
                f"is a zip with a directory of {size:,} bytes, but must have at most {MOST_DIRECTORY_BYTES:,}"
            )
        return super().read(-1 if size is None else size)


@contextmanager
def opened_zip(file: BinaryIO) -> Iterator[tuple[zipfile.ZipFile, dict[str, Member]]]:
    """The zip in an open file, and its members by name, in their order."""
    wary = _Wary(file.fileno(), closefd=False)
    try:
        archive = zipfile.ZipFile(wary)
    except BROKEN as error:
        raise Refused(f"is not a whole zip file: {shown(error)}") from error
    with archive:
        yield archive, _members(archive, wary)


def _members(archive: zipfile.ZipFile, file: io.FileIO) -> dict[str, Member]:
    length = os.fstat(file.fileno()).st_size
    members: dict[str, Member] = {}
    end, last = 0, "the beginning"
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name = shown(info.filename)
        if info.filename in members:
            raise Refused(f"holds {name} twice")
        if info.header_offset < end:
            raise Refused(f"holds {name}, which overlaps {last}")
        end, last = _start(info, file) + info.compress_size, name
        if end > length:
            raise Refused(f"ends early: {name} would reach to byte {end:,}, but the file has {length:,}")
        stored = info.compress_type == zipfile.ZIP_STORED
        if not stored and info.compress_type != zipfile.ZIP_DEFLATED:  # others may ask for gigabytes to unpack
            raise Refused(f"holds {name}, which is compressed by method {info.compress_type}, but must be by deflate")
        if info.flag_bits & 0x1 or (stored and info.compress_size != info.file_size):
            raise Refused(f"holds {name}, which is encrypted or of two sizes at once")
        members[info.filename] = Member(
            info.filename, end - info.compress_size, info.compress_size, info.file_size, stored
        )
    return {info.filename: members[info.filename] for info in archive.infolist()}


def _start(info: zipfile.ZipInfo, file: io.FileIO) -> int:
    """Where the data begins: after the member's own header, whose length only that header says."""
    try:
        file.seek(info.header_offset)
        signature, name, extra = LOCAL.unpack(file.read(LOCAL.size))
    except (ValueError, OSError, struct.error):
        signature = b""
    if signature != b"PK\3\4":
        raise Refused(f"holds {shown(info.filename)} in its directory, but not at byte {info.header_offset:,}")
    return info.header_offset + LOCAL.size + name + extra
