"""Every mask beside its picture, before training: what is wrong with them, each kind in one line, named and counted.

All files are looked at, because one bad mask in a thousand stops a run hours later, or spoils it unseen. Of pictures
only the header is read. Decoding releases Python's lock, so threads use every core.
"""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

from vitreous.common.checks import Size
from vitreous.common.regular_files import open_regular, read_regular
from vitreous.common.text import SafeConsole
from vitreous.data.image.decode import UnreadableImage, size_of
from vitreous.data.masks.classes import FILE
from vitreous.data.masks.files import ColouredMask, colours_in, ids_in, read_header, read_ids
from vitreous.data.split import listed, plural
from vitreous.model.options import IGNORED

_HEAD = 1 << 16  # the header of nearly every picture lies within this many bytes
# More ids than there would be classes: COCO-Stuff has 182, ADE20K 150 and Cityscapes 34, and no picture shows nearly
# all of them. Edges that were smoothed, or a JPEG, have most of the 256 levels, often in a single mask.
_MANY, _MANY_IN_ONE = 200, 100

Pair = tuple[str, str]  # paths of a picture and its mask, below the root
Colour = tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """What there is to say about one mask: its ids, or one thing that is wrong."""

    ids: tuple[int, ...] = ()
    picture: str | None = None  # why the picture cannot be read
    unreadable: str | None = None  # why the mask cannot
    colours: tuple[Colour, ...] = ()  # what it shows instead of ids
    sizes: str | None = None  # how picture and mask differ


def look_at_masks(root: Path, pairs: Sequence[Pair]) -> list[Look]:
    """All of them, in order."""
    console = SafeConsole(stderr=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        some = (pairs[start : start + 4096] for start in range(0, len(pairs), 4096))  # a pool takes all it is given
        stream = (look for chunk in some for look in pool.map(lambda pair: _look(root, pair), chunk))
        return list(track(stream, "reading masks", len(pairs), console=console, disable=not console.is_terminal))


def _look(root: Path, pair: Pair) -> Look:
    try:
        data = read_regular(root / pair[1])
        size = read_header(data).size
    except (UnreadableImage, OSError) as error:
        return Look(unreadable=_reason(error))
    try:
        picture = _picture_size(root / pair[0], size)
    except (UnreadableImage, OSError) as error:
        return Look(picture=_reason(error))
    if picture != size:
        return Look(sizes=f"the mask is {size[0]} x {size[1]}, the picture {picture[0]} x {picture[1]}")
    try:
        return Look(ids=tuple(ids_in(read_ids(data))))
    except ColouredMask:
        return Look(colours=tuple(colours_in(data)))
    except UnreadableImage as error:
        return Look(unreadable=_reason(error))


def _picture_size(path: Path, expected: Size) -> Size:
    """From the first bytes, if they already say what is expected; they may lack a turn by EXIF, or be too few."""
    with open_regular(path) as file:
        head = file.read(_HEAD)
        if len(head) == _HEAD:
            try:
                if size_of(head) == expected:
                    return expected
            except UnreadableImage:
                pass
            head += file.read()
    return size_of(head)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def mask_problems(pairs: Sequence[Pair], looks: Sequence[Look]) -> list[str]:
    """What is wrong whatever the ids mean."""
    seen = list(zip(pairs, looks, strict=True))
    unread = [(mask, look.unreadable) for (_, mask), look in seen if look.unreadable]
    pictures = [(picture, look.picture) for (picture, _), look in seen if look.picture]
    sizes = [(mask, look.sizes) for (_, mask), look in seen if look.sizes]
    coloured = [mask for (_, mask), look in seen if look.colours]
    problems = []
    if pictures:
        problems.append(f"{plural(len(pictures), 'picture')} cannot be read: {_explained(pictures)}")
    if unread:
        problems.append(f"{plural(len(unread), 'mask')} cannot be read: {_explained(unread)}")
    if coloured:
        problems.append(_colours(coloured, looks))
    if sizes:
        problems.append(f"{plural(len(sizes), 'mask')} of another size than the picture: {_explained(sizes)}")
    return problems


def unknown_ids(pairs: Sequence[Pair], looks: Sequence[Look], known: Collection[int]) -> list[str]:
    """Ids that no class has, and the masks that have them."""
    allowed = {*known, IGNORED}
    counts = Counter(index for look in looks for index in look.ids if index not in allowed)
    if not counts:
        return []
    masks = [mask for (_, mask), look in zip(pairs, looks, strict=True) if not allowed.issuperset(look.ids)]
    ids = ", ".join(f"{index} (in {plural(count, 'mask')})" for index, count in counts.most_common(5))
    more = f" and {len(counts) - 5} more" if len(counts) > 5 else ""
    have = "has ids" if len(masks) == 1 else "have ids"
    hint = '; if 0 means unlabelled, list it as "0 unlabelled" and give --ignore unlabelled' if 0 in counts else ""
    return [f"{plural(len(masks), 'mask')} {have} that {FILE} does not list: {ids}{more}; see {listed(masks, 3)}{hint}"]


def black_and_white(looks: Sequence[Look], names: Mapping[int, str]) -> list[str]:
    """Masks of 0 and 255 with a list that has no 255: all that 255 marks would be ignored, and nothing learned."""
    found = {index for look in looks for index in look.ids}
    unused = [name for index, name in names.items() if index not in found]
    if found != {0, IGNORED} or IGNORED in names or not unused:
        return []
    return [f'the masks hold only 0 and {IGNORED}, which means ignored unless {FILE} lists it: "{IGNORED} {unused[0]}"']


def smoothed(looks: Sequence[Look]) -> list[str]:
    """Where no list says which ids are meant: so many that most of them cannot be."""
    found = {index for look in looks for index in look.ids}
    if len(found) <= _MANY and all(len(look.ids) <= _MANY_IN_ONE for look in looks):
        return []
    return [
        f"the masks have {len(found):,} different ids, more than there would be classes: they look smoothed, or saved "
        f"as JPEG once; write them anew without that, and list the true ids in {FILE}"
    ]


def _colours(masks: list[str], looks: Sequence[Look]) -> str:
    counts = Counter(colour for look in looks for colour in look.colours)
    colours = ", ".join(str(colour) for colour, _ in counts.most_common(5))
    are = "mask shows" if len(masks) == 1 else "masks show"
    return (
        f"{len(masks):,} {are} colours, as {colours}, but a mask holds class ids, as grey levels or as indices into "
        f"a palette: {listed(masks, 3)}; give each colour a number, and save the numbers as grey PNG"
    )


def _explained(files: list[tuple[str, str]], limit: int = 3) -> str:
    shown = "; ".join(f"{path!r} ({reason})" for path, reason in files[:limit])
    return shown + (f" and {len(files) - limit} more" if len(files) > limit else "")
