"""Classes of pixels: their ids in mask files, from a list of classes, and their indices in a model's output.

`classes.txt` has a line for each class: `ID NAME`, or only `NAME`, and then the ids are 0, 1, 2, ...
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitreous.common.checks import fail, suggestion
from vitreous.common.text import listed
from vitreous.common.untrusted_files import read_regular_text
from vitreous.model.options import IGNORED

FILE = "classes.txt"
MOST_IDS = 1 << 16  # a PNG has at most 16 bits per pixel
_LINE = re.compile(r"(\d+)(?:\s*[\s:,;]\s*|\.\s+)(\S.*)")  # "1 pet", "1, pet", "1: pet" or "1. pet"
_TURNED = re.compile(r"(.*[^\s:,;])\s*[\s:,;]\s*(\d+)")


def read_classes(path: Path) -> dict[int, str]:
    """Read names by id, ignoring empty lines and lines that begin with #."""
    try:
        text = read_regular_text(path, encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    with_id = [_LINE.fullmatch(line) for _, line in lines]
    if any(with_id):
        return _by_id(path, lines, with_id)
    for number, line in lines:
        if line.isdecimal():
            raise ValueError(f"{path}, line {number} is {line!r}, a number without a name: write 'ID NAME' or 'NAME'")
    _check_order(path, [line for _, line in lines])
    _check_once(path, [name for _, name in lines])
    return dict(enumerate(name for _, name in lines))


def _by_id(path: Path, lines: list[tuple[int, str]], matches: Sequence[re.Match[str] | None]) -> dict[int, str]:
    names: dict[int, str] = {}
    for (number, line), match in zip(lines, matches, strict=True):
        if match is None:
            raise ValueError(f"{path}, line {number} is {line!r}, but others are 'ID NAME': give every class its id")
        index, name = int(match[1]), match[2]
        if index >= MOST_IDS:
            raise ValueError(f"{path}, line {number} has the id {index}, but a PNG holds ids from 0 to {MOST_IDS - 1}")
        if index in names:
            raise ValueError(f"{path}, line {number} gives {name!r} the id {index}, which {names[index]!r} has")
        names[index] = name
    _check_once(path, list(names.values()))
    return dict(sorted(names.items()))


def _check_order(path: Path, lines: list[str]) -> None:
    """Reject 'NAME ID': names may end in numbers, as 'lane 1' and 'lane 2', unless they differ without them."""
    turned = [match for line in lines if (match := _TURNED.fullmatch(line))]
    if lines and len({match[1] for match in turned}) == len(lines):
        name, index = turned[0].groups()
        raise ValueError(
            f"{path} has names before ids, as {lines[0]!r}, but the id comes first: write '{index} {name}' "
            f"(or '0 {lines[0]}', if the number belongs to the name)"
        )


def _check_once(path: Path, names: list[str]) -> None:
    if not names:
        raise ValueError(f"{path} lists no class: it needs a line 'ID NAME' for each")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path} has {listed(twice)} more than once")


def found_classes(ids: Collection[int]) -> dict[int, str]:
    """Name classes by their ids if there is no list of names."""
    return {index: str(index) for index in sorted(ids) if index != IGNORED}


def number_classes(
    names: Mapping[int, str], ignore: Sequence[str] = (), order: Sequence[str] = ()
) -> tuple[tuple[str, ...], tuple[int, ...], np.ndarray]:
    """The classes to learn, their ids, and a table from ids to class indices; every other id becomes IGNORED.

    Classes are sorted by id, or in the given `order` of a model with the same classes.

    >>> classes, ids, table = number_classes({1: "pet", 2: "background", 3: "border"}, ignore=("border",))
    >>> classes, ids, table[[1, 2, 3, 77]].tolist()
    (('pet', 'background'), (1, 2), [0, 1, 255, 255])
    """
    for name in ignore:
        if name not in names.values():
            known = listed(list(names.values()), 20)
            fail("ignore", name, f"one of the classes {known}{suggestion(name, names.values())}")
    kept = {index: name for index, name in names.items() if name not in ignore}
    if len(kept) < 2:
        left = f"only {listed(list(kept.values()))} is" if kept else "no class is"
        also = f" (id {IGNORED} means ignored, unless {FILE} lists it)" if IGNORED not in names else ""
        raise ValueError(f"{left} left to learn, but at least 2 classes are needed{also}")
    if len(kept) > IGNORED:
        raise ValueError(f"there are {len(kept):,} classes, but at most {IGNORED} can be learned")
    if set(order) == set(kept.values()):
        kept = dict(sorted(kept.items(), key=lambda one: list(order).index(one[1])))
    table = np.full(MOST_IDS, IGNORED, np.uint8)
    table[list(kept)] = np.arange(len(kept))
    return tuple(kept.values()), tuple(kept), table
