"""Reader for folders with `images/[train|val|test/]...` and `masks/[train|val|test/]...`, or with `train/images` and
`train/masks`, `val/images` and `val/masks`, and so on.

A mask is a PNG of class ids (files.py) with the same relative path as its image; `classes.txt` names the ids. Pascal
VOC's folder layout is also supported; its image lists define the splits.
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

EXPECTED = "expected {0}/images and {0}/masks, with one PNG of class ids per image (or use the built-in 'shapes')"
LISTS = "ImageSets/Segmentation"  # Pascal VOC: train.txt, val.txt, ... with one image name per line


class MaskedFiles(FileSource):
    """Images and masks in separate files. `table` maps mask ids to indices into mask_classes."""

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
    """Open a folder and check every mask; raises ValueError with all problems, one per line."""
    name, listing = root.resolve().name, root / FILE
    names = read_classes(listing) if listing.is_file() else None
    if names is not None:
        number_classes(names, ignore)  # fail before reading all masks
    folders, notes = _find_folders(root)
    splits, pairs, problems = _pair(root, folders, notes)
    checks = check_masks(root, pairs)
    if problems := problems + mask_problems(pairs, checks, names):
        raise ValueError("\n".join(f"{name}: {problem}" for problem in problems))
    present = {index for check in checks for index in check.ids}
    if names is None:
        names = found_classes(present)
        notes.append(f"no {FILE}, so the ids found in the masks are the classes: {listed(list(names.values()), 10)}")
    elif unused := [name for index, name in names.items() if index not in present]:
        notes.append(f"no mask contains {listed(unused)}")
    in_train = {
        i for split, check in zip(splits, checks, strict=True) if split in ("train", UNSPLIT) for i in check.ids
    }
    held = [name for index, name in names.items() if index in present - in_train and name not in ignore]
    if held and in_train:
        notes.append(f"classes that are missing from the train masks cannot be learned: {listed(held)}")
    if ignore:
        notes.append(f"{listed(ignore)} ignored")
    try:
        source = MaskedFiles(root, pairs, *number_classes(names, ignore, order))
    except ValueError as error:
        raise type(error)(f"{name}: {error}") from None
    return FoundData(name, by_split(source, splits), notes, labelled=False)


def open_unmasked(root: Path) -> FoundData:
    """Open the images without their masks."""
    folders, notes = _find_folders(root)
    items = [(pair.split, path) for pair in folders for path in images_below(root, pair.images)]
    source = FileSource(root, [path for _, path in items], np.zeros(len(items), np.int64), (UNLABELLED,))
    return FoundData(root.resolve().name, by_split(source, (split for split, _ in items)), notes, labelled=False)


# ---- Folders ---------------------------------------------------------------------------------------------------------


class FolderPair(NamedTuple):
    """Image and mask folders of one split, relative to the root."""

    split: str
    images: str
    masks: str


def count_pairs(root: Path) -> int:
    """Count the images that have a mask with the same name."""

    def keys(folder: str) -> set[str]:
        return {_key(path, folder) for path in images_below(root, folder)}

    pairs = [pair for pair in _find_folders(root)[0] if (root / pair.masks).is_dir()]
    return sum(len(keys(pair.images) & keys(pair.masks)) for pair in pairs)


def _find_folders(root: Path) -> tuple[list[FolderPair], list[str]]:
    """Find the image and mask folders; also return a note about ignored folders."""
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
        inside = f"only {listed(folders)}" if folders else "no folders"
        raise ValueError(f"{root} has {inside}; {EXPECTED.format('DIR')}")
    used = {os.path.dirname(pair.images) for pair in found}
    others = [folder for folder in folders if folder not in used]
    return found, [f"{listed(others)} ignored"] if others else []


def _find_splits(root: Path, images: str, masks: str) -> tuple[list[FolderPair], list[str]]:
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
    if len(found) > 1:  # one may have other files, e.g. XML files in Pascal VOC's Annotations
        found = [folder for folder in found if images_below(root, folder)] or found
    if len(found) > 1:
        raise ValueError(f"{root} has several folders for the same purpose: {listed(found)}; keep one")
    return found[0] if found else None


# ---- Pairs -----------------------------------------------------------------------------------------------------------


def _pair(root: Path, folders: Sequence[FolderPair], notes: list[str]) -> tuple[list[str], list[Pair], list[str]]:
    """Pair images with masks; return splits, pairs and problems. A test split without any masks is ignored."""
    splits, pairs = [], []
    missing, alone, others, total = [], [], [], 0
    lists, unlisted = _read_lists(root), 0
    for split, images, masks in folders:
        files = images_below(root, masks) if (root / masks).is_dir() else []
        pngs = {path for path in files if path.lower().endswith(".png")}
        by_key = {_key(path, masks): path for path in sorted(pngs)}
        if split == "test" and not files and not _has_files(root / masks):
            notes.append(f"{images} has no masks and is ignored")
            continue
        others += [path for path in files if path not in pngs]
        with_image = set()
        for path in images_below(root, images):
            key = _key(path, images)
            with_image.add(key)
            if lists and (key not in lists or (lists[key] == "test" and key not in by_key)):
                unlisted += 1  # or listed in a test split without public masks
                continue
            total += 1
            if key in by_key:
                splits.append(lists.get(key, split))
                pairs.append((path, by_key[key]))
            else:
                missing.append((path, os.path.join(masks, f"{key}.png")))
        alone += [path for key, path in by_key.items() if key not in with_image]
    if not total:
        raise ValueError(f"{root}: no images in {listed([pair.images for pair in folders])}")
    problems = []
    if lists:
        notes.append(f"splits from {LISTS}, {plural(unlisted, 'image')} ignored")
    if missing:
        where = f"; expected e.g. {missing[0][1]!r}"
        have = "has" if len(missing) == 1 else "have"
        names = listed([path for path, _ in missing], 3)
        problems.append(f"{len(missing):,} of {plural(total, 'image')} {have} no mask: {names}{where}")
    if alone:
        have = "has" if len(alone) == 1 else "have"
        problems.append(f"{plural(len(alone), 'mask')} {have} no image: {listed(alone, 3)}")
    if others:
        problems.append(f"masks must be PNG files, got {listed(others, 3)}")
    return splits, pairs, problems


def _read_lists(root: Path) -> dict[str, str]:
    """Return the split of each image in Pascal VOC's lists; empty if there are no lists."""
    files = {split: root / LISTS / f"{split}.txt" for split in SPLITS}
    return {name: split for split, file in files.items() if file.is_file() for name in file.read_text().split()}


def _has_files(folder: Path) -> bool:
    """True if a folder contains any file that is not hidden."""
    return any(not name.startswith(".") for _, _, names in os.walk(folder) for name in names)


def _key(path: str, folder: str) -> str:
    """Return the path relative to `folder`, without extension. An image and its mask have the same key."""
    return os.path.splitext(os.path.relpath(path, folder))[0]
