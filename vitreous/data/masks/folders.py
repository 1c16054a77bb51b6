"""Pictures with masks, for segmentation: a folder of pictures beside one of masks, or the built-in `shapes`.

`images/[train|val|test/]...` beside `masks/[train|val|test/]...`, or `train/images` beside `train/masks` and so on. A
mask is a PNG of class ids (mask_files.py) with its picture's path; `classes.txt` says what ids mean (mask_classes.py).
Pascal VOC's folder is taken as it is: its lists say which of its pictures are for segmentation, and in which part.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitreous.common.checks import check_real
from vitreous.common.regular_files import read_regular
from vitreous.data.masks.check import Pair, black_and_white, look_at_masks, mask_problems, smoothed, unknown_ids
from vitreous.data.masks.classes import FILE, found_classes, number_classes, read_classes
from vitreous.data.masks.files import read_ids
from vitreous.data.sources.base import DataSet
from vitreous.data.sources.builtin import NAMES, parse_options
from vitreous.data.sources.folders import list_folder, pictures_below
from vitreous.data.sources.shapes import open_shapes
from vitreous.data.sources.stored import FileSource
from vitreous.data.split import WHOLE, Found, arrange, by_part, listed, part_name, plural

# What people call the two folders.
PICTURES = ("images", "image", "imgs", "img", "pictures", "jpegimages")
MASKS = ("masks", "mask", "labels", "label", "annotations", "annotation", "segmentationclass")
LISTS = "ImageSets/Segmentation"  # of Pascal VOC: train.txt, val.txt, ... with a picture's name in each line
UNLABELLED = ("picture",)  # every picture's class, where only pixels have one that matters


def open_masked(
    spec: str,
    *,
    root: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    ignore: Sequence[str] = (),
    order: Sequence[str] = (),
) -> DataSet:
    """The pictures and masks that `spec` means, in parts. All that is wrong with them is said here, a line for each.

    `ignore` names classes whose pixels shall not count. `order` is that of a model that may know the same classes in
    another one. `root` is where a path is looked for first.

    >>> data = open_masked("shapes:size=32,count=12", ignore=("star",))
    >>> data.mask_classes[:2], data.train.mask(0).shape
    (('background', 'circle'), (32, 32))
    """
    check_real("val_fraction", val_fraction, 0, 1)
    name, _, options = spec.partition(":")
    if name == "shapes":
        return arrange(open_shapes(parse_options(name, options), seed, ignore), val_fraction, seed)
    if name in NAMES:
        raise ValueError(f"{name} has labels for its pictures, but no masks: {_wanted(f'./{name}')}")
    path = Path(spec).expanduser()
    if root is not None and (root / path).exists():
        path = root / path
    if not path.is_dir():
        raise ValueError(f"there is no folder {spec!r}: {_wanted('DIR')}")
    return arrange(open_mask_folder(path, ignore, order), val_fraction, seed)


class MaskedFiles(FileSource):
    """A file for each picture and one for its mask. `table` is from the ids in masks to indices into mask_classes."""

    def __init__(
        self,
        root: Path,
        pairs: Sequence[Pair],
        mask_classes: tuple[str, ...],
        mask_ids: tuple[int, ...],
        table: np.ndarray,
    ):
        super().__init__(root, [picture for picture, _ in pairs], np.zeros(len(pairs)), UNLABELLED)
        self.masks = [mask for _, mask in pairs]
        self.mask_classes, self.mask_ids, self.table = mask_classes, mask_ids, table

    def mask(self, index: int) -> np.ndarray:
        return self.table.take(read_ids(read_regular(self.root / self.masks[index])))


def open_mask_folder(root: Path, ignore: Sequence[str] = (), order: Sequence[str] = ()) -> Found:
    """What is in the folder. Every mask is read; raises everything that is wrong with them."""
    name, listing = root.resolve().name, root / FILE
    names = read_classes(listing) if listing.is_file() else None
    if names is not None:
        number_classes(names, ignore)  # what can be wrong with it is better said before all masks are read
    sides, notes = _sides(root)
    parts, pairs, problems = _pair(root, sides, notes)
    looks = look_at_masks(root, pairs)
    problems += mask_problems(pairs, looks)
    if names is None:
        problems += smoothed(looks)
    else:
        problems += unknown_ids(pairs, looks, names) + black_and_white(looks, names)
    if problems:
        raise ValueError("\n".join(f"{name}: {problem}" for problem in problems))
    occurring = {index for look in looks for index in look.ids}
    if names is None:
        names = found_classes(occurring)
        notes.append(f"there is no {FILE}: the classes are the ids found, {listed(list(names.values()), 10)}")
    elif unused := [name for index, name in names.items() if index not in occurring]:
        notes.append(f"no mask has {listed(unused)}")
    trained = {index for part, look in zip(parts, looks, strict=True) if part in ("train", WHOLE) for index in look.ids}
    held = [name for index, name in names.items() if index in occurring - trained and name not in ignore]
    if held and trained:
        notes.append(f"no mask of train has {listed(held)}, which cannot be learned then")
    if ignore:
        notes.append(f"{listed(ignore)} ignored")
    try:
        source = MaskedFiles(root, pairs, *number_classes(names, ignore, order))
    except ValueError as error:
        raise type(error)(f"{name}: {error}") from None
    return Found(name, by_part(source, parts), notes, labelled=False)


# ---- Folders ---------------------------------------------------------------------------------------------------------


def has_masks(root: Path) -> bool:
    """Whether a folder has one of pictures beside one of masks, in it or in its parts."""

    def names(folder: Path) -> set[str]:
        return {entry.name.lower() for entry in folder.iterdir() if entry.is_dir()}

    if not root.is_dir():
        return False
    inside = [root, *(entry for entry in root.iterdir() if entry.is_dir() and part_name(entry.name))]
    return any(names(folder) & set(PICTURES) and names(folder) & set(MASKS) for folder in inside)


def pairs_in(root: Path) -> int:
    """How many pictures have a mask of the same name, where `has_masks`."""
    return sum(
        len({_name(path, side.pictures) for path in pictures_below(root, side.pictures)}
            & {_name(path, side.masks) for path in pictures_below(root, side.masks)})
        for side in _sides(root)[0] if (root / side.masks).is_dir()
    )  # fmt: skip


def open_unmasked(root: Path) -> Found:
    """The pictures alone, for those who have no use for their masks."""
    sides, notes = _sides(root)
    items = [(side.part, path) for side in sides for path in pictures_below(root, side.pictures)]
    source = FileSource(root, [path for _, path in items], np.zeros(len(items), np.int64), UNLABELLED)
    return Found(root.resolve().name, by_part(source, (part for part, _ in items)), notes, labelled=False)


class Side(NamedTuple):
    """The folders of pictures and of masks that belong to one part, below the root."""

    part: str
    pictures: str
    masks: str


def _sides(root: Path) -> tuple[list[Side], list[str]]:
    """Where pictures and masks lie; and notes on what is left out."""
    folders = list_folder(root)[0]
    pictures, masks = _called(root, folders, PICTURES), _called(root, folders, MASKS)
    if pictures and masks:
        return _inside(root, pictures, masks)
    sides = []
    for folder, part in _parts(root, folders).items():
        within = list_folder(root / folder)[0]
        pictures, masks = _called(root / folder, within, PICTURES), _called(root / folder, within, MASKS)
        if pictures and masks:
            sides.append(Side(part, os.path.join(folder, pictures), os.path.join(folder, masks)))
    if not sides:
        inside = f"{listed(folders)}, but no pictures beside masks" if folders else "no folders"
        raise ValueError(f"{root} has {inside}: {_wanted('DIR')}")
    used = {os.path.dirname(side.pictures) for side in sides}
    others = [folder for folder in folders if folder not in used]
    return sides, [f"{listed(others)} left out"] if others else []


def _inside(root: Path, pictures: str, masks: str) -> tuple[list[Side], list[str]]:
    folders, loose, _ = list_folder(root / pictures)
    parts = _parts(root / pictures, folders)
    if not parts or ("train" not in parts.values() and len(parts) < len(folders)):
        return [Side(WHOLE, pictures, masks)], []
    theirs = {part: folder for folder, part in _parts(root / masks, list_folder(root / masks)[0]).items()}
    sides = [
        Side(part, os.path.join(pictures, folder), os.path.join(masks, theirs.get(part, folder)))
        for folder, part in parts.items()
    ]
    others = [os.path.join(pictures, name) for name in (*folders, *loose) if name not in parts]
    return sides, [f"{listed(others)} left out"] if others else []


def _called(root: Path, folders: list[str], names: Sequence[str]) -> str | None:
    found = [folder for folder in folders if folder.lower() in names]
    if len(found) > 1:  # one may hold something else, as the XML files in Annotations of Pascal VOC
        found = [folder for folder in found if pictures_below(root, folder)] or found
    if len(found) > 1:
        raise ValueError(f"{root} has {listed(found)}, which mean the same: keep one")
    return found[0] if found else None


def _parts(root: Path, folders: list[str]) -> dict[str, str]:
    parts = {folder: part for folder in folders if (part := part_name(folder))}
    if doubled := [folder for folder, part in parts.items() if list(parts.values()).count(part) > 1]:
        raise ValueError(f"{root} has {listed(doubled)}, which mean the same part: keep one")
    return parts


# ---- Pairs -----------------------------------------------------------------------------------------------------------


def _pair(root: Path, sides: Sequence[Side], notes: list[str]) -> tuple[list[str], list[Pair], list[str]]:
    """The part of each pair, the pairs, and what is wrong with their names. A test part may lack masks altogether."""
    parts, pairs = [], []
    missing, alone, others, total = [], [], [], 0
    lists, unlisted = _lists(root), 0
    for part, pictures, masks in sides:
        files = pictures_below(root, masks) if (root / masks).is_dir() else []
        pngs = {path for path in files if path.lower().endswith(".png")}
        by_name = {_name(path, masks): path for path in sorted(pngs)}
        if part == "test" and not files and not _holds_files(root / masks):
            notes.append(f"{pictures} has no masks and is left out")
            continue
        others += [path for path in files if path not in pngs]
        with_picture = set()
        for path in pictures_below(root, pictures):
            name = _name(path, pictures)
            with_picture.add(name)
            if lists and (name not in lists or (lists[name] == "test" and name not in by_name)):
                unlisted += 1  # or one of a test whose masks are kept from us
                continue
            total += 1
            if name in by_name:
                parts.append(lists.get(name, part))
                pairs.append((path, by_name[name]))
            else:
                missing.append((path, os.path.join(masks, f"{name}.png")))
        alone += [path for name, path in by_name.items() if name not in with_picture]
    if not total:
        raise ValueError(f"{root} has no pictures in {listed([side.pictures for side in sides])}")
    problems = []
    if lists:
        notes.append(f"parts by {LISTS}, {plural(unlisted, 'picture')} left out")
    if missing:
        where = f"; that of {missing[0][0]!r} would be {missing[0][1]!r}"
        have = "has" if len(missing) == 1 else "have"
        names = listed([path for path, _ in missing], 3)
        problems.append(f"{len(missing):,} of {plural(total, 'picture')} {have} no mask: {names}{where}")
    if alone:
        problems.append(f"{plural(len(alone), 'mask')} without a picture: {listed(alone, 3)}")
    if others:
        problems.append(f"{plural(len(others), 'mask')} not in PNG, which keeps ids as they are: {listed(others, 3)}")
    return parts, pairs, problems


def _lists(root: Path) -> dict[str, str]:
    """The part of every picture that Pascal VOC's lists name; nothing where there are no lists."""
    files = {part: root / LISTS / f"{part}.txt" for part in ("train", "val", "test")}
    return {name: part for part, file in files.items() if file.is_file() for name in file.read_text().split()}


def _holds_files(folder: Path) -> bool:
    """Whether there is anything at all, in whatever format, but hidden files."""
    return any(not name.startswith(".") for _, _, names in os.walk(folder) for name in names)


def _name(path: str, folder: str) -> str:
    """What a picture and its mask have in common: the path below their folder, without its ending."""
    return os.path.splitext(os.path.relpath(path, folder))[0]


def _wanted(where: str) -> str:
    return f"masks are in {where}/masks beside {where}/images, a PNG of class ids for each picture; or try shapes"
