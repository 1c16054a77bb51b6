"""Reader for WebDataset shards: tar files with `KEY.jpg` and `KEY.cls` (an index) or `KEY.json` ({"label": ...}).

Opening reads only tar headers and labels; images are then read by their offset, which allows random access without
keeping tars in memory. Shards given by URL are downloaded once.
"""

import glob
import hashlib
import mmap
import os
import re
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitreous.common.text import plural
from vitreous.common.untrusted_files import open_regular, parse_json
from vitreous.data.sources.base import (
    UNSPLIT,
    FoundData,
    Rows,
    Source,
    SpanSource,
    class_labels,
    from_rows,
    readable_extensions,
    split_name,
)
from vitreous.data.sources.download import cache_folder, fetch

NAMES = ("classnames.txt", "classes.txt")  # files beside the shards with one class per line
BLOCK = 512
PADDING = 1 << 16  # bytes to check after the end of an archive; writers pad to a multiple of 10,240


class Member(NamedTuple):
    """A regular file in a tar. In a truncated tar, the last member may be incomplete."""

    name: str
    start: int
    size: int


def open_shards(spec: str, root: Path | None = None) -> FoundData:
    """Open shards. `spec` is `x-{000..009}.tar`, `{train,val}.tar`, `*.tar`, a folder, or these joined by `::`."""
    patterns = [expanded for pattern in spec.split("::") for expanded in expand(pattern)]
    addresses = [address for pattern in patterns for address in _matches(pattern, root or Path())]
    shards = [_local(address) for address in addresses]
    names = _class_names(shards[0].parent)
    spans, images, labels, splits, damaged = [], [], [], [], []
    for number, (shard, split) in enumerate(zip(shards, _splits(addresses), strict=True)):
        items, damage = index(shard)
        if damage:
            damaged.append(f"{shard.name}: {damage}")
        for member, label in items:
            spans.append((number, member.start, member.size))
            images.append(f"{shard.name}/{member.name}")
            labels.append(label)
            splits.append(split)
    if not labels:
        why = f" ({damaged[0]})" if damaged else ""
        raise ValueError(f"{spec}: no images found in {plural(len(shards), 'shard')}{why}")

    def make(keep: list[int], numbers: np.ndarray, classes: tuple[str, ...]) -> Source:
        return SpanSource(shards, np.array(spans, np.int64)[keep], [images[row] for row in keep], numbers, classes)

    found = from_rows(spec, Rows(class_labels(labels, names), splits, names), make, [])
    found.damaged = damaged
    return found


def expand(pattern: str) -> list[str]:
    """Expand braces such as `{000..009}` or `{train,val}` like a shell."""
    choices = []
    for place, piece in enumerate(re.split(r"\{([^{}]*)\}", pattern)):
        if place % 2 == 0:
            choices.append([piece])
        elif numbers := re.fullmatch(r"(\d+)\.\.(\d+)", piece):
            first, last = numbers.groups()
            choices.append([str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)])
        else:
            choices.append(piece.split(","))
    return ["".join(choice) for choice in product(*choices)]


def _matches(pattern: str, root: Path) -> list[str]:
    if pattern.startswith(("http://", "https://")):
        return [pattern]
    pattern = str(root / Path(pattern).expanduser())
    if Path(pattern).is_dir():
        return sorted(str(path) for path in Path(pattern).rglob("*.tar") if not path.name.startswith("."))
    found = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
    if not found or not Path(found[0]).is_file():
        raise ValueError(f"shard {pattern!r} not found")
    return found


def _local(address: str) -> Path:
    if not address.startswith(("http://", "https://")):
        return Path(address)
    folder, _, name = address.split("?")[0].rpartition("/")
    return fetch(address, cache_folder("shards", hashlib.sha256(folder.encode()).hexdigest()[:16]) / name)


def _splits(addresses: list[str]) -> list[str]:
    """Infer the split of each shard from its name or folder. If only some shards name a split, the others are train."""
    found = []
    for address in addresses:
        folder, name = Path(address).parent.name, Path(address).name
        words = [word for piece in (name, folder) for word in re.split(r"[^A-Za-z]+", piece)]
        found.append(next((split for word in words if (split := split_name(word))), None))
    if "train" in found or (None in found and any(found)):
        return [split or "train" for split in found]
    return [UNSPLIT] * len(found)


def _class_names(folder: Path) -> tuple[str, ...] | None:
    for name in NAMES:
        if (folder / name).is_file():
            return tuple(line.strip() for line in (folder / name).read_text().splitlines() if line.strip())
    return None


# ---- One shard -------------------------------------------------------------------------------------------------------


def index(shard: Path) -> tuple[list[tuple[Member, object]], str | None]:
    """List the images of a shard with their labels, and describe any damage at the end of the shard.

    In a truncated shard, the last image is skipped if its label is missing.
    """
    images: dict[str, Member] = {}
    labels: dict[str, object] = {}
    members, damage = list_members(shard)
    key = ""
    with open_regular(shard) as file:
        for member in members:
            folder, _, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")  # split at the first dot; x.seg.png is not the image of x
            key, extension = f"{folder}/{stem}", extension.lower()
            if stem and extension in readable_extensions():
                images[key] = member
            elif stem and extension in ("cls", "json"):
                file.seek(member.start)
                content = file.read(member.size)
                if len(content) < member.size:  # truncated, so the label may be wrong
                    continue
                label = _label(f"{shard}: {member.name}", extension, content)
                labels[key] = labels.get(key) if label is None else label
    if damage and key in images and labels and labels.get(key) is None:
        damage += f"; skipped {images.pop(key).name!r}, whose label is missing"
    return [(member, labels.get(key)) for key, member in images.items()], damage


def _label(where: str, extension: str, data: bytes) -> object:
    try:
        if extension == "cls":
            return int(data)
        row = parse_json(data, where)
    except ValueError:
        kind = "an integer" if extension == "cls" else "valid JSON"
        raise ValueError(f"{where} must be {kind}, got {data[:40]!r}") from None
    return row.get("label") if isinstance(row, dict) else None


# ---- Tar headers, parsed several times faster than by tarfile --------------------------------------------------------
#
# A tar is a sequence of 512-byte headers, each followed by the content of its file. Three header types only contain
# metadata: the long name of the next file ("L", GNU), and `length key=value` records for the next file ("x") or all
# files ("g").


def list_members(tar: Path) -> tuple[list[Member], str | None]:
    """List the regular files of a tar, even if it is truncated, and describe any damage at its end."""
    with open_regular(tar) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise ValueError(f"{tar} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _parse(data)
            except ValueError as error:
                raise ValueError(f"{tar} cannot be read as a tar: {error}") from None


def _parse(data: mmap.mmap) -> tuple[list[Member], str | None]:
    members: list[Member] = []
    at, end = 0, len(data)
    long_name: str | None = None
    long_size: int | None = None
    while at + BLOCK <= end:
        header = data[at : at + BLOCK]
        if header[0] == 0 and not header.strip(b"\0"):
            more = data[at : at + PADDING].strip(b"\0")
            return members, "data after the end of the archive, e.g. a second archive" if more else None
        kind, size, start = header[156:157], _number(header[124:136]), at + BLOCK
        if at == 0 and sum(header[:148]) + 8 * 32 + sum(header[156:]) != _number(header[148:156]):
            raise ValueError("the first header is invalid, or the file is compressed")
        if kind not in b"xgL" and long_size is not None:
            size = long_size
        at = start + -(-size // BLOCK) * BLOCK
        if kind in (b"0", b"\0"):
            members.append(Member(long_name or _name(header), start, size))
        if start + size > end:
            inside = f"inside {members[-1].name!r}" if kind in (b"0", b"\0") else "inside a header"
            return members, f"truncated {inside}"
        if kind == b"x":
            pairs = _pairs(data[start : start + size])
            long_name = pairs.get("path", long_name)
            long_size = int(pairs["size"]) if "size" in pairs else None
        elif kind == b"L":
            long_name = data[start : start + size].rstrip(b"\0").decode(errors="replace")
        elif kind != b"g":
            long_name = long_size = None
    after = f"after {members[-1].name!r}" if members else "before the first file"
    return members, f"no end-of-archive marker, probably truncated {after}"


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
