"""Reader for folders of images and masks in the layouts of layouts.py.

A mask is a PNG of class ids (files.py); `classes.txt` names the ids. Pascal VOC's image lists define its splits.
"""

import os
from collections.abc import Sequence
from pathlib import Path

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
from vitreous.data.masks.layouts import OTHER_VIEW, FolderPair, files_of, find_folders, key_of, match
from vitreous.data.sources.base import SPLITS, UNSPLIT, FileSource, FoundData, by_split
from vitreous.data.sources.folders import UNLABELLED

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
    """Open a folder of images and masks, and check every mask. Raise ValueError with all problems, one per line."""
    name, listing = root.resolve().name, root / FILE
    names = read_classes(listing) if listing.is_file() else None
    if names is not None:
        number_classes(names, ignore)  # check `ignore` before reading all masks
    folders, notes = find_folders(root)
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
        notes.append(f"ignored classes: {listed(ignore)}")
    try:
        source = MaskedFiles(root, pairs, *number_classes(names, ignore, order))
    except ValueError as error:
        raise type(error)(f"{name}: {error}") from None
    return FoundData(name, by_split(source, splits), notes, labelled=False)


def open_unmasked(root: Path) -> FoundData:
    """Open the images of a segmentation data set without their masks."""
    folders, notes = find_folders(root)
    items = [(pair.split, path) for pair in folders for path in files_of(root, pair)[0]]
    source = FileSource(root, [path for _, path in items], np.zeros(len(items), np.int64), (UNLABELLED,))
    return FoundData(root.resolve().name, by_split(source, (split for split, _ in items)), notes, labelled=False)


# ---- Pairs -----------------------------------------------------------------------------------------------------------


def _pair(root: Path, folders: Sequence[FolderPair], notes: list[str]) -> tuple[list[str], list[Pair], list[str]]:
    """Pair images with masks. Return the split of each pair, the pairs, and problems. A test split needs no masks."""
    splits, pairs = [], []
    missing, unpaired, not_png, total = [], [], [], 0
    lists, unlisted = _read_lists(root), 0
    for pair in folders:
        split, folder = pair.split, pair.masks
        images, masks = files_of(root, pair)
        if split == "test" and not masks and (pair.images == folder or not _has_files(root / folder)):
            notes.append(f"{pair.images} has no masks and is ignored")
            continue
        pngs = [path for path in masks if path.lower().endswith(".png")]
        not_png += [path for path in masks if not path.lower().endswith(".png")]
        mask_of = match(images, pngs, pair.images, folder)
        for path in images:
            key = key_of(path, pair.images)
            if lists and (key not in lists or (lists[key] == "test" and path not in mask_of)):
                unlisted += 1  # or listed in a test split without public masks
                continue
            total += 1
            if path in mask_of:
                splits.append(lists.get(key, split))
                pairs.append((path, mask_of[path]))
            else:
                ending = "_mask" if pair.images == folder else ""
                missing.append((path, os.path.join(folder, f"{key}{ending}.png")))
        used = set(mask_of.values())
        unpaired += [path for path in pngs if path not in used and not OTHER_VIEW.search(key_of(path, folder))]
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
    if unpaired:
        have = "has" if len(unpaired) == 1 else "have"
        problems.append(f"{plural(len(unpaired), 'mask')} {have} no image: {listed(unpaired, 3)}")
    if not_png:
        problems.append(f"masks must be PNG files, got {listed(not_png, 3)}")
    return splits, pairs, problems


def _read_lists(root: Path) -> dict[str, str]:
    """Return the split of each image from Pascal VOC's image lists, or an empty dictionary if there are no lists."""
    files = {split: root / LISTS / f"{split}.txt" for split in SPLITS}
    return {name: split for split, file in files.items() if file.is_file() for name in file.read_text().split()}


def _has_files(folder: Path) -> bool:
    """Return True if a folder contains any file that is not hidden."""
    return any(not name.startswith(".") for _, _, names in os.walk(folder) for name in names)
