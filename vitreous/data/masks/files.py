"""Mask files, PNGs whose pixels are class ids, and the list of their classes; all are checked before training.

An id is a grey level of up to 16 bits or an index into a palette, whose colours do not matter. Grey levels saved as RGB
by mistake are accepted if nothing was lost: red, green and blue are then equal. Pillow decodes; the kind of PNG is read
from the first bytes, because Pillow stretches grey levels of 2 and 4 bits to 0..255, and ids must stay as they are.

The check reads every file, because one bad mask in a thousand stops a run hours later, or spoils it silently. Of images
only the header is read. Decoding releases the GIL, so threads use every core.
"""

import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.progress import track

from vitreous.common.checks import Size, fail, suggestion
from vitreous.common.text import SafeConsole, listed, plural
from vitreous.common.untrusted_files import open_regular, read_regular, read_regular_text
from vitreous.data.image.decoding import UnreadableImage, check_memory, decode_errors, open_image, size_of
from vitreous.model.options import IGNORED

FILE = "classes.txt"
MOST_IDS = 1 << 16  # a PNG has at most 16 bits per pixel
_LINE = re.compile(r"(\d+)(?:\s*[\s:,;]\s*|\.\s+)(\S.*)")  # "1 pet", "1, pet", "1: pet" or "1. pet"
_TURNED = re.compile(r"(.*[^\s:,;])\s*[\s:,;]\s*(\d+)")
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _PALETTE = 0, 3
_COLOURED = {2: "RGB", 4: "grey with alpha", 6: "RGB with alpha"}
_HEADER = 26  # bytes of a PNG's header
_START = 1 << 16  # the header of nearly every image lies within this many bytes
# More ids than there would be classes: COCO-Stuff has 182, ADE20K 150 and Cityscapes 34, and no image shows nearly all
# of them. Edges that were smoothed, or a JPEG, have most of the 256 levels, often in a single mask.
_MANY, _MANY_IN_ONE = 200, 100

Pair = tuple[str, str]  # paths of an image and its mask, below the root
Colour = tuple[int, ...]

T = TypeVar("T")
R = TypeVar("R")


# ---- Classes ---------------------------------------------------------------------------------------------------------
#
# `classes.txt` has a line for each class: `ID NAME`, or only `NAME`, and then the ids are 0, 1, 2, ...


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


# ---- One mask --------------------------------------------------------------------------------------------------------


class ColouredMask(UnreadableImage):
    """A mask that shows colours instead of holding ids."""


@dataclass(frozen=True)
class MaskHeader:
    """The kind of a PNG file."""

    size: Size
    bits: int  # of a pixel
    coloured: str | None  # the kind of its colours, if pixels are not ids
    palette: bool


def read_header(data: bytes) -> MaskHeader:
    """Read the header of a mask file."""
    if not data:
        raise UnreadableImage("the file is empty")
    if not data.startswith(_SIGNATURE) or len(data) < _HEADER or data[12:16] != b"IHDR":
        raise UnreadableImage("not a PNG file")
    width, height, bits, kind = struct.unpack_from(">IIBB", data, 16)
    if kind not in (_GREY, _PALETTE, *_COLOURED) or not width or not height:
        raise UnreadableImage("a PNG file with a broken header")
    # Pillow's copy, numpy's, and a third while one is converted to the other
    check_memory((height, width), height * width * (12 if kind in _COLOURED else 3 * max(bits // 8, 1)))
    return MaskHeader((height, width), bits, _COLOURED.get(kind), kind == _PALETTE)


def read_ids(data: bytes) -> np.ndarray:
    """Decode the ids of a mask, [h, w] of uint8 or uint16; raises UnreadableImage."""
    header = read_header(data)
    with decode_errors():
        ids = np.asarray(open_image(data))
    if header.coloured is not None:
        if not header.coloured.startswith("RGB") or header.bits != 8 or not _is_grey(ids):
            raise ColouredMask(f"shows colours ({header.coloured}), but a mask holds class ids")
        return ids[..., 0]
    if header.bits == 16:
        return ids.astype(np.uint16)
    if header.bits in (2, 4) and not header.palette:
        return ids // np.uint8(255 // (2**header.bits - 1))
    return ids.astype(np.uint8)  # one bit comes as True and False


def _is_grey(pixels: np.ndarray) -> bool:
    levels, alpha = pixels[..., :3], pixels[..., 3:]
    return bool((levels == levels[..., :1]).all() and (alpha == 255).all())


def ids_in(ids: np.ndarray) -> list[int]:
    """The ids that occur. Counting bytes is ten times as fast as sorting them."""
    if ids.dtype == np.uint8:
        return np.flatnonzero(np.bincount(ids.ravel(), minlength=256)).tolist()
    return np.unique(ids).tolist()


def colours_in(data: bytes, most: int = 4) -> list[Colour]:
    """The most frequent colours of an image, as (red, green, blue)."""
    with decode_errors():
        image = open_image(data).convert("RGB")
        counts = image.getcolors(image.width * image.height) or []
    often = sorted(counts, key=lambda pair: pair[0], reverse=True)[:most]
    return [colour for _, colour in often if isinstance(colour, tuple)]


# ---- All masks of a data set -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskCheck:
    """The ids of one mask, or one problem with it."""

    ids: tuple[int, ...] = ()
    image_error: str | None = None
    mask_error: str | None = None
    colours: tuple[Colour, ...] = ()  # of a mask without ids
    size_error: str | None = None  # the image and the mask differ in size


def check_masks(root: Path, pairs: Sequence[Pair]) -> list[MaskCheck]:
    """Check every mask with its image, in order."""
    return list(map_in_threads(lambda pair: _check(root, pair), pairs, "reading masks"))


def map_in_threads(function: Callable[[T], R], items: Sequence[T], title: str) -> Iterator[R]:
    """Map in threads with a progress bar; decoding releases the GIL, so threads use every core."""
    console = SafeConsole(stderr=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        chunks = (items[start : start + 4096] for start in range(0, len(items), 4096))  # map submits all it is given
        results = (result for chunk in chunks for result in pool.map(function, chunk))
        yield from track(results, title, len(items), console=console, disable=not console.is_terminal)


def _check(root: Path, pair: Pair) -> MaskCheck:
    def reason(error: Exception) -> str:
        return (error.strerror if isinstance(error, OSError) else None) or str(error)

    try:
        data = read_regular(root / pair[1])
        size = read_header(data).size
    except (UnreadableImage, OSError) as error:
        return MaskCheck(mask_error=reason(error))
    try:
        image = _image_size(root / pair[0], size)
    except (UnreadableImage, OSError) as error:
        return MaskCheck(image_error=reason(error))
    if image != size:
        return MaskCheck(size_error=f"the mask is {size[0]} x {size[1]}, the image {image[0]} x {image[1]}")
    try:
        return MaskCheck(ids=tuple(ids_in(read_ids(data))))
    except ColouredMask:
        return MaskCheck(colours=tuple(colours_in(data)))
    except UnreadableImage as error:
        return MaskCheck(mask_error=reason(error))


def _image_size(path: Path, expected: Size) -> Size:
    """Read the size from the first bytes if they confirm the expected one; they may lack EXIF, or be too few."""
    with open_regular(path) as file:
        start = file.read(_START)
        if len(start) == _START:
            try:
                if size_of(start) == expected:
                    return expected
            except UnreadableImage:
                pass
            start += file.read()
    return size_of(start)


def mask_problems(pairs: Sequence[Pair], checks: Sequence[MaskCheck], names: Mapping[int, str] | None) -> list[str]:
    """One line for each kind of problem; `names` are the classes by id, None if there is no list of them."""
    checked = list(zip(pairs, checks, strict=True))
    unreadable = [(mask, check.mask_error) for (_, mask), check in checked if check.mask_error]
    images = [(image, check.image_error) for (image, _), check in checked if check.image_error]
    sizes = [(mask, check.size_error) for (_, mask), check in checked if check.size_error]
    coloured = [mask for (_, mask), check in checked if check.colours]
    found = {index for check in checks for index in check.ids}
    problems = []
    if images:
        problems.append(f"{plural(len(images), 'image')} cannot be read: {_with_reasons(images)}")
    if unreadable:
        problems.append(f"{plural(len(unreadable), 'mask')} cannot be read: {_with_reasons(unreadable)}")
    if coloured:
        problems.append(_colour_problem(coloured, checks))
    if sizes:
        problems.append(f"{plural(len(sizes), 'mask')} of another size than the image: {_with_reasons(sizes)}")
    if names is None and (len(found) > _MANY or any(len(check.ids) > _MANY_IN_ONE for check in checks)):
        problems.append(
            f"the masks have {len(found):,} different ids, more than there would be classes: they seem to be smoothed, "
            f"or saved as JPEG once; write them again without that, and list the true ids in {FILE}"
        )
    if names is not None:
        problems += _unlisted_ids(pairs, checks, names)
        unused = [name for index, name in names.items() if index not in found]
        if found == {0, IGNORED} and IGNORED not in names and unused:  # all pixels of 255 would be ignored
            listing = f'"{IGNORED} {unused[0]}"'
            problems.append(
                f"the masks hold only 0 and {IGNORED}, which means ignored unless {FILE} lists it: {listing}"
            )
    return problems


def _unlisted_ids(pairs: Sequence[Pair], checks: Sequence[MaskCheck], known: Collection[int]) -> list[str]:
    allowed = {*known, IGNORED}
    counts = Counter(index for check in checks for index in check.ids if index not in allowed)
    if not counts:
        return []
    masks = [mask for (_, mask), check in zip(pairs, checks, strict=True) if not allowed.issuperset(check.ids)]
    ids = ", ".join(f"{index} (in {plural(count, 'mask')})" for index, count in counts.most_common(5))
    more = f" and {len(counts) - 5} more" if len(counts) > 5 else ""
    have = "has ids" if len(masks) == 1 else "have ids"
    hint = '; if 0 means unlabelled, list it as "0 unlabelled" and add --ignore unlabelled' if 0 in counts else ""
    return [f"{plural(len(masks), 'mask')} {have} that {FILE} does not list: {ids}{more}; see {listed(masks, 3)}{hint}"]


def _colour_problem(masks: list[str], checks: Sequence[MaskCheck]) -> str:
    counts = Counter(colour for check in checks for colour in check.colours)
    colours = ", ".join(str(colour) for colour, _ in counts.most_common(5))
    have = "mask has" if len(masks) == 1 else "masks have"
    return (
        f"{len(masks):,} {have} colours, as {colours}, but a mask holds class ids, as grey levels or as indices into "
        f"a palette: {listed(masks, 3)}; give each colour a number, and save the numbers as grey PNG"
    )


def _with_reasons(files: list[tuple[str, str]], limit: int = 3) -> str:
    shown = "; ".join(f"{path!r} ({reason})" for path, reason in files[:limit])
    return shown + (f" and {len(files) - limit} more" if len(files) > limit else "")
