"""WebDataset shards: tar files in which `KEY.jpg` lies beside `KEY.cls` (an index) or `KEY.json` ({"label": ...}).

Only headers and labels are read, once; a picture is then read from its place in the tar, so that access is random
and no tar is kept in memory. Shards at an address are downloaded once.
"""

import glob
import hashlib
import json
import re
from itertools import product
from pathlib import Path

import numpy as np

from vitreous.common.regular_files import open_regular
from vitreous.data.sources.base import Source
from vitreous.data.sources.download import cache_folder, fetch
from vitreous.data.sources.rows import Rows, assemble, class_labels
from vitreous.data.sources.stored import EXTENSIONS, SpanSource
from vitreous.data.sources.tars import Member, list_members
from vitreous.data.split import WHOLE, Found, part_name, plural

Item = tuple[Member, object]  # an image and its label
NAMES = ("classnames.txt", "classes.txt")  # one class a line, beside the shards


def open_shards(spec: str, root: Path | None = None) -> Found:
    """The data set in some shards: `x-{000..009}.tar`, `{train,val}.tar`, `*.tar`, a folder, or joined by `::`."""
    patterns = [one for pattern in spec.split("::") for one in expand(pattern)]
    addresses = [address for pattern in patterns for address in _matches(pattern, root or Path())]
    shards = [_local(address) for address in addresses]
    names = _class_names(shards[0].parent)
    spans, pictures, labels, parts, damaged = [], [], [], [], []
    for number, (shard, part) in enumerate(zip(shards, _parts(addresses), strict=True)):
        items, damage = index(shard)
        if damage:
            damaged.append(f"{shard.name}: {damage}")
        for member, label in items:
            spans.append((number, member.start, member.size))
            pictures.append(f"{shard.name}/{member.name}")
            labels.append(label)
            parts.append(part)
    if not labels:
        why = f" ({damaged[0]})" if damaged else ""
        raise ValueError(f"{spec}: no pictures in {plural(len(shards), 'shard')}{why}")

    def make(keep: list[int], numbers: np.ndarray, classes: tuple[str, ...]) -> Source:
        return SpanSource(shards, np.array(spans, np.int64)[keep], [pictures[row] for row in keep], numbers, classes)

    found = assemble(spec, Rows(class_labels(labels, names), parts, names), make, [])
    found.damaged = damaged
    return found


def expand(pattern: str) -> list[str]:
    """A pattern's braces, as a shell would expand them.

    >>> expand("data-{08..10}.tar"), expand("{train,val}.tar")
    (['data-08.tar', 'data-09.tar', 'data-10.tar'], ['train.tar', 'val.tar'])
    """
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


def index(shard: Path) -> tuple[list[Item], str | None]:
    """Every image of a shard with its label, in the shard's order, and what is wrong with the end of the shard.

    Where a shard is cut short, its last image may lack its label, and is then left out.
    """
    images: dict[str, Member] = {}
    labels: dict[str, object] = {}
    listing, key = list_members(shard), ""
    with open_regular(shard) as file:
        for member in listing.members:
            folder, _, base = member.name.rpartition("/")
            stem, _, extension = base.partition(".")  # at the first dot: x.seg.png is not the picture of x
            key, extension = f"{folder}/{stem}", extension.lower()
            if stem and extension in EXTENSIONS:
                images[key] = member
            elif stem and extension in ("cls", "json"):
                file.seek(member.start)
                content = file.read(member.size)
                if len(content) < member.size:  # cut short: half a label may be another one
                    continue
                label = _label(f"{shard}: {member.name}", extension, content)
                labels[key] = labels.get(key) if label is None else label
    damage = listing.damage
    if damage and key in images and labels and labels.get(key) is None:
        damage += f"; {images.pop(key).name!r} has lost its label and is left out"
    return [(member, labels.get(key)) for key, member in images.items()], damage


def _label(where: str, extension: str, data: bytes) -> object:
    try:
        if extension == "cls":
            return int(data)
        row = json.loads(data)
    except ValueError:
        raise ValueError(
            f"{where} is {data[:40]!r}, but must be {'an index' if extension == 'cls' else 'JSON'}"
        ) from None
    return row.get("label") if isinstance(row, dict) else None


def _matches(pattern: str, root: Path) -> list[str]:
    """The shards that a pattern without braces stands for."""
    if pattern.startswith(("http://", "https://")):
        return [pattern]
    pattern = str(root / Path(pattern).expanduser())
    if Path(pattern).is_dir():
        return sorted(str(path) for path in Path(pattern).rglob("*.tar") if not path.name.startswith("."))
    found = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
    if not found or not Path(found[0]).is_file():
        raise ValueError(f"there is no shard {pattern!r}")
    return found


def _local(address: str) -> Path:
    if not address.startswith(("http://", "https://")):
        return Path(address)
    folder, _, name = address.split("?")[0].rpartition("/")
    return fetch(address, cache_folder("shards", hashlib.sha256(folder.encode()).hexdigest()[:16]) / name)


def _parts(addresses: list[str]) -> list[str]:
    """Shards say their part in their name or their folder's; those that do not, belong to train if others do."""
    found = []
    for address in addresses:
        folder, name = Path(address).parent.name, Path(address).name
        words = [word for piece in (name, folder) for word in re.split(r"[^A-Za-z]+", piece)]
        found.append(next((part for word in words if (part := part_name(word))), None))
    if "train" in found or (None in found and any(found)):
        return [part or "train" for part in found]
    return [WHOLE] * len(found)


def _class_names(folder: Path) -> tuple[str, ...] | None:
    for name in NAMES:
        if (folder / name).is_file():
            return tuple(line.strip() for line in (folder / name).read_text().splitlines() if line.strip())
    return None
