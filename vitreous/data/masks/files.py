"""Mask files (PNGs whose pixels are class ids), their class list, and a check of all masks before training.

An id is a grey level of up to 16 bits or a palette index; palette colours are ignored. RGB files are accepted if red,
green and blue are equal. Pillow decodes the pixels, but scales 2-bit and 4-bit grey levels to 0..255; the bit depth is
read from the PNG header to undo this.

The check reads every mask, because a single bad mask can stop a run after hours or silently corrupt it. For images,
only the headers are read. Decoding releases the GIL, so threads use all cores.
"""

import re
import struct
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from vitreous.common.checks import Size, fail, suggestion
from vitreous.common.text import first_few, listed, plural
from vitreous.common.threads import map_in_threads
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
_HEADER = 26  # size of a PNG header in bytes
_START = 1 << 16  # number of bytes to read first; they contain the header of nearly every image
# Maximum number of ids in all masks and in one mask. More ids indicate smoothed edges or JPEG compression, which
# produce most of the 256 levels. COCO-Stuff has 182 classes, ADE20K 150 and Cityscapes 34, and one image has only a few
# of them.
_MANY, _MANY_IN_ONE = 200, 100

Pair = tuple[str, str]  # image path and mask path, relative to the root
Colour = tuple[int, ...]

T = TypeVar("T")
R = TypeVar("R")


# ---- Classes ---------------------------------------------------------------------------------------------------------
#
# `classes.txt` has one line per class: `ID NAME`, or only `NAME` for the ids 0, 1, 2, ...


def read_classes(path: Path) -> dict[int, str]:
    """Read the class names by id from a class list, ignoring empty lines and lines that start with #."""
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
            raise ValueError(f"{path}, line {number}: expected 'ID NAME' or 'NAME', got {line!r}")
    _check_order(path, [line for _, line in lines])
    _check_once(path, [name for _, name in lines])
    return dict(enumerate(name for _, name in lines))


def _by_id(path: Path, lines: list[tuple[int, str]], matches: Sequence[re.Match[str] | None]) -> dict[int, str]:
    names: dict[int, str] = {}
    for (number, line), match in zip(lines, matches, strict=True):
        if match is None:
            raise ValueError(f"{path}, line {number}: expected 'ID NAME' as on the other lines, got {line!r}")
        index, name = int(match[1]), match[2]
        if index >= MOST_IDS:
            raise ValueError(f"{path}, line {number}: ids must be from 0 to {MOST_IDS - 1}, got {index}")
        if index in names:
            raise ValueError(f"{path}, line {number}: id {index} of {name!r} is already used by {names[index]!r}")
        names[index] = name
    _check_once(path, list(names.values()))
    return dict(sorted(names.items()))


def _check_order(path: Path, lines: list[str]) -> None:
    """Reject 'NAME ID' lines. Names that end in numbers, such as 'lane 1' and 'lane 2', are allowed."""
    turned = [match for line in lines if (match := _TURNED.fullmatch(line))]
    if lines and len({match[1] for match in turned}) == len(lines):
        name, index = turned[0].groups()
        raise ValueError(
            f"{path}: ids must precede names, got {lines[0]!r}; write '{index} {name}', "
            f"or '0 {lines[0]}' if the number is part of the name"
        )


def _check_once(path: Path, names: list[str]) -> None:
    if not names:
        raise ValueError(f"{path} lists no classes; expected one 'ID NAME' line per class")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{path} lists {listed(twice)} more than once")


def found_classes(ids: Collection[int]) -> dict[int, str]:
    """Return class names for data without a class list: the ids themselves."""
    return {index: str(index) for index in sorted(ids) if index != IGNORED}


def number_classes(
    names: Mapping[int, str], ignore: Sequence[str] = (), order: Sequence[str] = ()
) -> tuple[tuple[str, ...], tuple[int, ...], np.ndarray]:
    """Return the classes to learn, their ids, and a lookup table from id to class index or IGNORED.

    Classes are sorted by id, or follow `order` if it contains the same classes.
    """
    for name in ignore:
        if name not in names.values():
            known = listed(list(names.values()), 20)
            fail("ignore", name, f"one of the classes {known}{suggestion(name, names.values())}")
    kept = {index: name for index, name in names.items() if name not in ignore}
    if len(kept) < 2:
        remaining = f"only {listed(list(kept.values()))}" if kept else "none"
        hint = f" (id {IGNORED} is ignored unless {FILE} lists it)" if IGNORED not in names else ""
        raise ValueError(f"at least 2 classes are required, got {remaining}{hint}")
    if len(kept) > IGNORED:
        raise ValueError(f"at most {IGNORED} classes are supported, got {len(kept):,}")
    if set(order) == set(kept.values()):
        kept = dict(sorted(kept.items(), key=lambda item: list(order).index(item[1])))
    table = np.full(MOST_IDS, IGNORED, np.uint8)
    table[list(kept)] = np.arange(len(kept))
    return tuple(kept.values()), tuple(kept), table


# ---- One mask --------------------------------------------------------------------------------------------------------


class ColouredMask(UnreadableImage):
    """Raised for a mask that contains colours instead of ids."""


@dataclass(frozen=True)
class MaskHeader:
    """Header of a PNG file."""

    size: Size
    bits: int  # per channel
    coloured: str | None  # colour type, if pixels are not ids
    palette: bool


def read_header(data: bytes) -> MaskHeader:
    if not data:
        raise UnreadableImage("the file is empty")
    if not data.startswith(_SIGNATURE) or len(data) < _HEADER or data[12:16] != b"IHDR":
        raise UnreadableImage("not a PNG file")
    width, height, bits, kind = struct.unpack_from(">IIBB", data, 16)
    if kind not in (_GREY, _PALETTE, *_COLOURED) or not width or not height:
        raise UnreadableImage("the PNG header is invalid")
    # Memory for three copies: Pillow's, NumPy's, and one during the conversion.
    check_memory((height, width), height * width * (12 if kind in _COLOURED else 3 * max(bits // 8, 1)))
    return MaskHeader((height, width), bits, _COLOURED.get(kind), kind == _PALETTE)


def read_ids(data: bytes) -> np.ndarray:
    """Decode a mask to ids, uint8 or uint16 [h, w]. Raise UnreadableImage if that fails."""
    header = read_header(data)
    with decode_errors():
        ids = np.asarray(open_image(data))
    if header.coloured is not None:
        if not header.coloured.startswith("RGB") or header.bits != 8 or not _is_grey(ids):
            raise ColouredMask(f"contains colours ({header.coloured}) instead of class ids")
        return ids[..., 0]
    if header.bits == 16:
        return ids.astype(np.uint16)
    if header.bits in (2, 4) and not header.palette:
        return ids // np.uint8(255 // (2**header.bits - 1))
    return ids.astype(np.uint8)  # 1-bit masks are decoded to bool


def _is_grey(pixels: np.ndarray) -> bool:
    levels, alpha = pixels[..., :3], pixels[..., 3:]
    return bool((levels == levels[..., :1]).all() and (alpha == 255).all())


def ids_in(ids: np.ndarray) -> list[int]:
    """List the ids that occur in a mask. For uint8, bincount is ten times faster than unique."""
    if ids.dtype == np.uint8:
        return np.flatnonzero(np.bincount(ids.ravel(), minlength=256)).tolist()
    return np.unique(ids).tolist()


def colours_in(data: bytes, most: int = 4) -> list[Colour]:
    """List up to `most` RGB colours of an image, the most frequent first."""
    with decode_errors():
        image = open_image(data).convert("RGB")
        counts = image.getcolors(image.width * image.height) or []
    often = sorted(counts, key=lambda pair: pair[0], reverse=True)[:most]
    return [colour for _, colour in often if isinstance(colour, tuple)]


# ---- All masks of a data set -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MaskCheck:
    """Ids in a mask, or the problem with the mask or its image."""

    ids: tuple[int, ...] = ()
    image_error: str | None = None
    mask_error: str | None = None
    colours: tuple[Colour, ...] = ()  # of a coloured mask
    size_error: str | None = None  # image and mask have different sizes


def check_masks(root: Path, pairs: Sequence[Pair]) -> list[MaskCheck]:
    """Check every mask and the size of its image. The results are in the order of `pairs`."""
    return list(map_in_threads(lambda pair: _check(root, pair), pairs, "reading masks"))


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
        return MaskCheck(size_error=f"mask {size[0]} x {size[1]}, image {image[0]} x {image[1]}")
    try:
        return MaskCheck(ids=tuple(ids_in(read_ids(data))))
    except ColouredMask:
        return MaskCheck(colours=tuple(colours_in(data)))
    except UnreadableImage as error:
        return MaskCheck(mask_error=reason(error))


def _image_size(path: Path, expected: Size) -> Size:
    """Read the size of an image. If the first bytes of the file do not confirm `expected`, read the whole file."""
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
    """Describe each kind of problem in one line. `names`: Class names by id, or None if there is no class list."""
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
        differ = "mask differs in size from its image" if len(sizes) == 1 else "masks differ in size from their images"
        problems.append(f"{len(sizes):,} {differ}: {_with_reasons(sizes)}")
    if names is None and (len(found) > _MANY or any(len(check.ids) > _MANY_IN_ONE for check in checks)):
        problems.append(
            f"the masks have {len(found):,} different ids, probably because the masks were smoothed or saved as JPEG; "
            f"export them as PNG without smoothing, and list the true ids in {FILE}"
        )
    if names is not None:
        problems += _unlisted_ids(pairs, checks, names)
        unused = [name for index, name in names.items() if index not in found]
        if found == {0, IGNORED} and IGNORED not in names and unused:  # 255 is probably a class
            add = f'if {IGNORED} is a class, add "{IGNORED} {unused[0]}" to {FILE}'
            problems.append(f"the masks contain only the ids 0 and {IGNORED}, and {IGNORED} is ignored; {add}")
    return problems


def _unlisted_ids(pairs: Sequence[Pair], checks: Sequence[MaskCheck], known: Collection[int]) -> list[str]:
    allowed = {*known, IGNORED}
    counts = Counter(index for check in checks for index in check.ids if index not in allowed)
    if not counts:
        return []
    masks = [mask for (_, mask), check in zip(pairs, checks, strict=True) if not allowed.issuperset(check.ids)]
    ids = first_few([f"{index} (in {plural(count, 'mask')})" for index, count in counts.most_common()])
    have = "has ids" if len(masks) == 1 else "have ids"
    hint = '; if 0 means unlabelled, add the line "0 unlabelled" and use --ignore unlabelled' if 0 in counts else ""
    return [f"{plural(len(masks), 'mask')} {have} that are not in {FILE}: {ids}; see {listed(masks, 3)}{hint}"]


def _colour_problem(masks: list[str], checks: Sequence[MaskCheck]) -> str:
    counts = Counter(colour for check in checks for colour in check.colours)
    colours = ", ".join(str(colour) for colour, _ in counts.most_common(5))
    contain = "mask contains" if len(masks) == 1 else "masks contain"
    return (
        f"{len(masks):,} {contain} colours such as {colours} instead of class ids: {listed(masks, 3)}; convert each "
        "colour to an id, and save the ids as a grey or palette PNG"
    )


def _with_reasons(files: list[tuple[str, str]]) -> str:
    return first_few([f"{path!r} ({reason})" for path, reason in files], 3, "; ")
