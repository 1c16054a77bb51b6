"""Where the files inside a tar lie, from its headers alone. tarfile knows this too, at several times the cost each.

A tar is a row of 512-byte headers, each followed by its file's bytes. Three kinds of header only add to the next
one: a long name in GNU's way ("L"), or a list of `length key=value` lines in POSIX's way ("x"; "g" for all files).
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

BLOCK = 512


def members(tar: Path) -> Iterator[tuple[str, int, int]]:
    """Name, start and size of every regular file in a tar, in its order."""
    with open(tar, "rb") as file:
        if file.seek(0, 2) == 0:
            raise ValueError(f"{tar} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                yield from _walk(data)
            except ValueError as error:
                raise ValueError(f"{tar} cannot be read as a tar: {error}") from None


def _walk(data: mmap.mmap) -> Iterator[tuple[str, int, int]]:
    place, end = 0, len(data)
    long_name: str | None = None
    long_size: int | None = None
    while place + BLOCK <= end:
        header = data[place : place + BLOCK]
        if header[0] == 0 and not header.strip(b"\0"):
            return
        kind, size, start = header[156:157], _number(header[124:136]), place + BLOCK
        if place == 0 and sum(header[:148]) + 8 * 32 + sum(header[156:]) != _number(header[148:156]):
            raise ValueError("its first header is damaged, or it is compressed")
        if kind not in b"xgL" and long_size is not None:
            size = long_size
        if start + size > end:
            raise ValueError("it is cut short")
        place = start + -(-size // BLOCK) * BLOCK
        if kind == b"x":
            pairs = _pairs(data[start : start + size])
            long_name = pairs.get("path", long_name)
            long_size = int(pairs["size"]) if "size" in pairs else None
        elif kind == b"L":
            long_name = data[start : start + size].rstrip(b"\0").decode(errors="replace")
        elif kind != b"g":
            if kind in (b"0", b"\0"):
                yield long_name or _name(header), start, size
            long_name = long_size = None


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
