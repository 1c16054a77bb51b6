"""Where the files inside a tar lie, from its headers alone. tarfile knows this too, at several times the cost each.

A tar is a row of 512-byte headers, each followed by its file's bytes. Three kinds of header only add to the next
one: a long name in GNU's way ("L"), or a list of `length key=value` lines in POSIX's way ("x"; "g" for all files).
"""

import mmap
import os
from pathlib import Path
from typing import NamedTuple

from vitreous.common.regular_files import open_regular

BLOCK = 512
PADDING = 1 << 16  # bytes after the end of an archive that are looked at: writers fill up to 10,240


class Member(NamedTuple):
    """A regular file in a tar. The bytes of the last one may end early, where the tar was cut."""

    name: str
    start: int
    size: int


class Listing(NamedTuple):
    """The files of a tar, in its order, and what is wrong with its end, if anything."""

    members: list[Member]
    damage: str | None = None


def list_members(tar: Path) -> Listing:
    """Name, start and size of every regular file. A tar that was cut short has those before the cut."""
    with open_regular(tar) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise ValueError(f"{tar} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            members: list[Member] = []
            try:
                damage = _walk(data, members)
            except ValueError as error:
                raise ValueError(f"{tar} cannot be read as a tar: {error}") from None
            return Listing(members, damage)


def _walk(data: mmap.mmap, members: list[Member]) -> str | None:
    """Append every file to `members`. Returns what is wrong with the end of the archive."""
    place, end = 0, len(data)
    long_name: str | None = None
    long_size: int | None = None
    while place + BLOCK <= end:
        header = data[place : place + BLOCK]
        if header[0] == 0 and not header.strip(b"\0"):
            more = data[place : place + PADDING].strip(b"\0")
            return "there is more after its end: were several archives joined?" if more else None
        kind, size, start = header[156:157], _number(header[124:136]), place + BLOCK
        if place == 0 and sum(header[:148]) + 8 * 32 + sum(header[156:]) != _number(header[148:156]):
            raise ValueError("its first header is damaged, or it is compressed")
        if kind not in b"xgL" and long_size is not None:
            size = long_size
        place = start + -(-size // BLOCK) * BLOCK
        if kind in (b"0", b"\0"):
            members.append(Member(long_name or _name(header), start, size))
        if start + size > end:
            inside = f"inside of {members[-1].name!r}" if kind in (b"0", b"\0") else "inside of a header"
            return f"it is cut short, {inside}"
        if kind == b"x":
            pairs = _pairs(data[start : start + size])
            long_name = pairs.get("path", long_name)
            long_size = int(pairs["size"]) if "size" in pairs else None
        elif kind == b"L":
            long_name = data[start : start + size].rstrip(b"\0").decode(errors="replace")
        elif kind != b"g":
            long_name = long_size = None
    after = f"after {members[-1].name!r}" if members else "before its first file"
    return f"it has no end, and is probably cut short {after}"


def _name(header: bytes) -> str:
    name = header[:100].split(b"\0")[0]
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].split(b"\0")[0] + b"/" + name
    return name.decode(errors="replace")


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # too big for octal digits
        return int.from_bytes(field[1:], "big")
    return int(field.strip(b"\0 ") or b"0", 8)


def _pairs(data: bytes) -> dict[str, str]:
    pairs = {}
    while data.strip(b"\0"):
        length = int(data.split(b" ", 1)[0])
        key, _, value = data[:length].split(b" ", 1)[1].rstrip(b"\n").partition(b"=")
        pairs[key.decode()] = value.decode(errors="replace")
        data = data[length:]
    return pairs
