"""Folders of images with masks: `images/[train|val|test/]...` beside `masks/[train|val|test/]...`, or
`train/images` beside `train/masks` and so on.

A mask is a PNG of class ids (files.py) with its image's path; `classes.txt` names the ids. Pascal VOC's
folder is accepted as it is: its lists name the images for segmentation, and their split.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vitreous.common.text import listed, plural
from vitreous.common.untrusted_files import read_regular
from vitreous.data.masks.files import (
    FILE,
    Pair,
    check_masks,
    found_classes,
    mask_problems,
    number_classes,
    read_classes,
    read_ids,
)
from vitreous.data.sources.base import SPLITS, UNSPLIT, FileSource, FoundData, by_split, split_folders
from vitreous.data.sources.folders import IMAGES, MASKS, UNLABELLED, images_below, list_folder

EXPECTED = "expected {0}/masks beside {0}/images, with a PNG of class ids for each image; or use shapes"
LISTS = "ImageSets/Segmentation"  # of Pascal VOC: train.txt, val.txt, ... with an image's name in each line


class MaskedFiles(FileSource):
    """One file per image and one for its mask. `table` maps the ids in masks to indices into mask_classes."""

    def __init__(
        self,
        root: Path,
        pairs: Sequence[Pair],
        mask_classes: tuple[str, ...],
        mask_ids: tuple[int, ...],
        table: np.ndarray,
    ):
        super().__init__(root, [image for image, _ in pairs], np.zeros(len(pairs), np.int64), (UNLABELLED,))
        self.masks = [mask for _, mask in pairs]
        self.mask_classes, self.mask_ids, self.table = mask_classes, mask_ids, table

    def mask(self, index: int) -> np.ndarray:
        return self.table.take(read_ids(read_regular(self.root / self.masks[index])))


def open_mask_folder(root: Path, ignore: Sequence[str] = (), order: Sequence[str] = ()) -> FoundData:
    """Open a folder and read every mask; raises every problem with them."""
    name, listing = root.resolve().name, root / FILE
    names = read_classes(listing) if listing.is_file() else None
    if names is not None:
        number_classes(names, ignore)  # report its problems before all masks are read
    folders, notes = _find_folders(root)
    splits, pairs, problems = _pair(root, folders, notes)
    checks = check_masks(root, pairs)
    if problems := problems + mask_problems(pairs, checks, names):
        raise ValueError("\n".join(f"{name}: {problem}" for problem in problems))
    present = {index for check in checks for index in check.ids}
    if names is None:
        names = found_classes(present)
        notes.append(f"there is no {FILE}: the classes are the ids found, {listed(list(names.values()), 10)}")
    elif unused := [name for index, name in names.items() if index not in present]:
        notes.append(f"no mask has {listed(unused)}")
    in_train = {
        i for split, check in zip(splits, checks, strict=True) if split in ("train", UNSPLIT) for i in check.ids
    }
    held = [name for index, name in names.items() if index in present - in_train and name not in ignore]
    if held and in_train:
        notes.append(f"no mask of train has {listed(held)}, which cannot be learned")
    if ignore:
        notes.append(f"{listed(ignore)} ignored")
    try:
        source = MaskedFiles(root, pairs, *number_classes(names, ignore, order))
    except ValueError as error:
        raise type(error)(f"{name}: {error}") from None
    return FoundData(name, by_split(source, splits), notes, labelled=False)


def open_unmasked(root: Path) -> FoundData:
    """Open the images alone, without their masks."""
    folders, notes = _find_folders(root)
    items = [(pair.split, path) for pair in folders for path in images_below(root, pair.images)]
    source = FileSource(root, [path for _, path in items], np.zeros(len(items), np.int64), (UNLABELLED,))
    return FoundData(root.resolve().name, by_split(source, (split for split, _ in items)), notes, labelled=False)


# ---- Folders ---------------------------------------------------------------------------------------------------------


class FolderPair(NamedTuple):
    """The folders of images and masks of one split, below the root."""

    split: str
    images: str
    masks: str


def count_pairs(root: Path) -> int:
    """Number of images with a mask of the same name, in a folder that `has_masks`."""

    def keys(folder: str) -> set[str]:
        return {_key(path, folder) for path in images_below(root, folder)}

    pairs = [pair for pair in _find_folders(root)[0] if (root / pair.masks).is_dir()]
    return sum(len(keys(pair.images) & keys(pair.masks)) for pair in pairs)


def _find_folders(root: Path) -> tuple[list[FolderPair], list[str]]:
    """Find the folders of images and masks, and note those that are ignored."""
    folders = list_folder(root)[0]
    images, masks = _find(root, folders, IMAGES), _find(root, folders, MASKS)
    if images and masks:
        return _find_splits(root, images, masks)
    found = []
    for folder, split in split_folders(folders, root).items():
        within = list_folder(root / folder)[0]
        images, masks = _find(root / folder, within, IMAGES), _find(root / folder, within, MASKS)
        if images and masks:
            found.append(FolderPair(split, os.path.join(folder, images), os.path.join(folder, masks)))
    if not found:
        inside = f"{listed(folders)}, but no images beside masks" if folders else "no folders"
        raise ValueError(f"{root} has {inside}: {EXPECTED.format('DIR')}")
    used = {os.path.dirname(pair.images) for pair in found}
    others = [folder for folder in folders if folder not in used]
    return found, [f"{listed(others)} ignored"] if others else []


def _find_splits(root: Path, images: str, masks: str) -> tuple[list[FolderPair], list[str]]:
    """Find the splits inside a folder of images and one of masks."""
    folders, loose, _ = list_folder(root / images)
    splits = split_folders(folders, root / images)
    if not splits or ("train" not in splits.values() and len(splits) < len(folders)):
        return [FolderPair(UNSPLIT, images, masks)], []
    of_masks = split_folders(list_folder(root / masks)[0], root / masks)
    by_name = {split: folder for folder, split in of_masks.items()}
    found = [
        FolderPair(split, os.path.join(images, folder), os.path.join(masks, by_name.get(split, folder)))
        for folder, split in splits.items()
    ]
    others = [os.path.join(images, name) for name in (*folders, *loose) if name not in splits]
    return found, [f"{listed(others)} ignored"] if others else []


def _find(root: Path, folders: list[str], names: Sequence[str]) -> str | None:
    found = [folder for folder in folders if folder.lower() in names]
    if len(found) > 1:  # one may hold something else, as the XML files in Annotations of Pascal VOC
        found = [folder for folder in found if images_below(root, folder)] or found
    if len(found) > 1:
        raise ValueError(f"{root} has {listed(found)}, which mean the same: keep one")
    return found[0] if found else None


# ---- Pairs -----------------------------------------------------------------------------------------------------------


def _pair(root: Path, folders: Sequence[FolderPair], notes: list[str]) -> tuple[list[str], list[Pair], list[str]]:
    """The split of each pair, the pairs, and problems with their names. A test split may lack masks altogether."""
    splits, pairs = [], []
    missing, alone, others, total = [], [], [], 0
    lists, unlisted = _read_lists(root), 0
    for split, images, masks in folders:
        files = images_below(root, masks) if (root / masks).is_dir() else []
        pngs = {path for path in files if path.lower().endswith(".png")}
        by_key = {_key(path, masks): path for path in sorted(pngs)}
        if split == "test" and not files and not _holds_files(root / masks):
            notes.append(f"{images} has no masks and is ignored")
            continue
        others += [path for path in files if path not in pngs]
        with_image = set()
        for path in images_below(root, images):
            key = _key(path, images)
            with_image.add(key)
            if lists and (key not in lists or (lists[key] == "test" and key not in by_key)):
                unlisted += 1  # or of a test split whose masks are secret
                continue
            total += 1
            if key in by_key:
                splits.append(lists.get(key, split))
                pairs.append((path, by_key[key]))
            else:
                missing.append((path, os.path.join(masks, f"{key}.png")))
        alone += [path for key, path in by_key.items() if key not in with_image]
    if not total:
        raise ValueError(f"{root} has no images in {listed([pair.images for pair in folders])}")
    problems = []
    if lists:
        notes.append(f"splits by {LISTS}, {plural(unlisted, 'image')} ignored")
    if missing:
        where = f"; expected {missing[0][1]!r} for {missing[0][0]!r}"
        have = "has" if len(missing) == 1 else "have"
        names = listed([path for path, _ in missing], 3)
        problems.append(f"{len(missing):,} of {plural(total, 'image')} {have} no mask: {names}{where}")
    if alone:
        problems.append(f"{plural(len(alone), 'mask')} without an image: {listed(alone, 3)}")
    if others:
        problems.append(f"{plural(len(others), 'mask')} not in PNG, which keeps ids as they are: {listed(others, 3)}")
    return splits, pairs, problems


def _read_lists(root: Path) -> dict[str, str]:
    """The split of every image that Pascal VOC's lists name; empty without lists."""
    files = {split: root / LISTS / f"{split}.txt" for split in SPLITS}
    return {name: split for split, file in files.items() if file.is_file() for name in file.read_text().split()}


def _holds_files(folder: Path) -> bool:
    """True if there is any file, in any format, except hidden ones."""
    return any(not name.startswith(".") for _, _, names in os.walk(folder) for name in names)


def _key(path: str, folder: str) -> str:
    """The path below its folder without the extension, which an image shares with its mask."""
    return os.path.splitext(os.path.relpath(path, folder))[0]
