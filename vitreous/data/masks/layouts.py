"""Finds the image and mask folders of a segmentation data set. `train` stands for any split; all splits are optional.

    images/train/x.jpg            masks/train/x.png              or other folder names (IMAGES, MASKS), as in Pascal VOC
    train/images/x.jpg            train/masks/x.png
    train/x.png                   trainannot/x.png               CamVid; also train_masks/, train_labels/, ...
    train/x.jpg                   train/x_mask.png               masks beside the images
    leftImg8bit/train/x_leftImg8bit.png   gtFine/train/x_gtFine_labelIds.png   Cityscapes

In all layouts, mask names may have one of the ENDINGS, such as `x_mask.png` or `x_L.png`.
"""

import os
import re
import shlex
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

from vitreous.common.text import listed
from vitreous.data.image.decoding import UnreadableImage
from vitreous.data.masks.files import read_header
from vitreous.data.sources.base import UNSPLIT, split_folders, split_name
from vitreous.data.sources.folders import IMAGES, MASKS, images_below, list_folder

EXPECTED = "expected {0}/images and {0}/masks, with one PNG of class ids per image (or use the built-in 'shapes')"
IMAGE_FOLDERS = (*IMAGES, "leftimg8bit")
MASK_FOLDERS = (*MASKS, "gtfine", "gtcoarse")
BESIDE = (*MASKS, "annot", "annots", "gt", "seg")  # added to the name of a split folder: trainannot, train_masks, ...
# Endings of mask names, in order of preference: the first two are Cityscapes masks with training ids and all ids.
CITYSCAPES = tuple(f"_gt{kind}_{ids}" for kind in ("Fine", "Coarse") for ids in ("labelTrainIds", "labelIds"))
ENDINGS = (
    *CITYSCAPES, "_mask", "_masks", "_label", "_labels", "_L", "_seg", "_segmentation", "_gt", "_annotation",
)  # fmt: skip
IMAGE_ENDINGS = ("_leftImg8bit", "_image", "_img", "_sat")
OTHER_VIEW = re.compile(r"_gt(Fine|Coarse)_\w+$")  # Cityscapes has several masks per image


class FolderPair(NamedTuple):
    """Image and mask folders of one split, relative to the root. They are equal if images and masks share a folder."""

    split: str
    images: str
    masks: str


def has_masks(root: Path) -> bool:
    """Return True if the names of folders or files in `root` suggest a segmentation data set."""
    if not root.is_dir():
        return False
    folders = list_folder(root)[0]
    candidates = [root, *(root / folder for folder in folders if split_name(folder))]
    for inside in candidates:
        names = {folder.lower() for folder in list_folder(inside)[0]}
        if names & set(IMAGE_FOLDERS) and names & set(MASK_FOLDERS):
            return True
    if any(count(root, pair) for pair in _beside_splits(root, folders)):
        return True
    return any(_are_beside(list_folder(inside)[1]) for inside in candidates)


def parent_hint(folder: Path) -> str:
    """Suggest the parent of a folder of images, such as CamVid's train/, if the parent also contains their masks."""
    parent = folder.parent
    try:
        pairs = find_folders(parent)[0] if folder.name not in ("", "..") and has_masks(parent) else []
    except (OSError, ValueError):  # the parent cannot be listed, or has other problems
        return ""
    masks = [pair.masks for pair in pairs if pair.images == folder.name != pair.masks]
    return (
        f"its masks are in {parent / masks[0]}: use {str(parent)!r}, with --task segment for training" if masks else ""
    )


def count_pairs(root: Path) -> int:
    """Count the images in `root` that have a mask."""
    return sum(count(root, pair) for pair in find_folders(root)[0] if (root / pair.masks).is_dir())


def mask_files(root: Path) -> set[str]:
    """Return the paths of all masks, relative to `root`, or an empty set if `root` is not a segmentation data set."""
    if not has_masks(root):
        return set()
    try:
        pairs = find_folders(root)[0]
    except ValueError:  # several folders with masks
        named = [folder for folder in list_folder(root)[0] if folder.lower() in MASK_FOLDERS]
        return {path for folder in named for path in images_below(root, folder)}
    return {mask for pair in pairs if count(root, pair) for mask in files_of(root, pair)[1]}


def find_folders(root: Path) -> tuple[list[FolderPair], list[str]]:
    """Find the image and mask folders of each split. Also return notes about ignored folders."""
    folders = list_folder(root)[0]
    images, masks = _find(root, folders, IMAGE_FOLDERS), _find(root, folders, MASK_FOLDERS)
    if images and masks:
        return _find_splits(root, images, masks)
    pairs = []
    for folder, split in split_folders(folders, root).items():
        within = list_folder(root / folder)[0]
        images, masks = _find(root / folder, within, IMAGE_FOLDERS), _find(root / folder, within, MASK_FOLDERS)
        if images and masks:
            pairs.append(FolderPair(split, os.path.join(folder, images), os.path.join(folder, masks)))
    pairs = pairs or _beside_splits(root, folders) or _find_beside(root, folders)
    if not pairs:
        inside = f"only {listed(folders)}" if folders else "no folders"
        hint = _suggest(root, folders) or parent_hint(root) or EXPECTED.format("DIR")
        raise ValueError(f"{root} has {inside}; {hint}")
    used = {folder.split(os.sep)[0] for pair in pairs for folder in (pair.images, pair.masks)}
    unused = [folder for folder in folders if folder not in used and used != {""}]
    return pairs, [f"ignored folders: {listed(unused)}"] if unused else []


def _find_splits(root: Path, images: str, masks: str) -> tuple[list[FolderPair], list[str]]:
    folders, loose, _ = list_folder(root / images)
    splits = split_folders(folders, root / images)
    if not splits or ("train" not in splits.values() and len(splits) < len(folders)):
        return [FolderPair(UNSPLIT, images, masks)], []
    of_masks = split_folders(list_folder(root / masks)[0], root / masks)
    by_name = {split: folder for folder, split in of_masks.items()}
    pairs = [
        FolderPair(split, os.path.join(images, folder), os.path.join(masks, by_name.get(split, folder)))
        for folder, split in splits.items()
    ]
    unused = [os.path.join(images, name) for name in (*folders, *loose) if name not in splits]
    return pairs, [f"ignored folders: {listed(unused)}"] if unused else []


def _find(root: Path, folders: list[str], names: Sequence[str]) -> str | None:
    matches = [folder for folder in folders if folder.lower() in names]
    if len(matches) > 1:  # some folders may have no images, e.g. Pascal VOC's Annotations, which has XML files
        matches = [folder for folder in matches if images_below(root, folder)] or matches
    if len(matches) > 1:
        kind = "image" if names is IMAGE_FOLDERS else "mask"
        raise ValueError(f"{root} has several {kind} folders: {listed(matches)}; keep one")
    return matches[0] if matches else None


def _beside_splits(root: Path, folders: Sequence[str]) -> list[FolderPair]:
    """Find pairs such as train/ and trainannot/. If one split has a mask folder, splits without one are included."""
    splits, siblings = {folder: split for folder in folders if (split := split_name(folder))}, {}
    for folder in splits:
        for other in folders:
            ending = other.lower().removeprefix(folder.lower()).lstrip("_- ")
            if other.lower().startswith(folder.lower()) and ending in BESIDE:
                siblings[folder] = other
    if not siblings:
        return []
    split_folders(folders, root)  # raises if two folders are the same split
    return [FolderPair(split, folder, siblings.get(folder, f"{folder}_masks")) for folder, split in splits.items()]


def _find_beside(root: Path, folders: Sequence[str]) -> list[FolderPair]:
    """Find folders that contain both images and masks. The names of masks have one of the ENDINGS."""
    if splits := {folder: split for folder in folders if (split := split_name(folder))}:
        pairs = [FolderPair(split, folder, folder) for folder, split in splits.items()]
        return pairs if any(count(root, pair) for pair in pairs) else []
    return [FolderPair(UNSPLIT, "", "")] if _are_beside(images_below(root, "")) else []


def _are_beside(files: Sequence[str]) -> bool:
    """Return True if at least half of the files belong to a pair of image and mask."""
    images, masks = _separated(files)
    return bool(masks) and len(files) <= 4 * len(match(images, masks, "", ""))


def _suggest(root: Path, folders: Sequence[str]) -> str:
    """Suggest a subfolder to open, or folders to rename, for an unknown layout. Return "" if nothing fits."""
    for folder in folders:
        if has_masks(root / folder):
            return f"did you mean {str(root / folder)!r}?"
    for images, masks in permutations(folders, 2):
        pair = FolderPair(UNSPLIT, images, masks)
        files = images_below(root, images)
        if files and 2 * count(root, pair) > len(files) and _has_ids(root / images_below(root, masks)[0]):
            renamed = ((images, "images"), (masks, "masks"))
            commands = [f"mv {shlex.quote(str(root / old))} {shlex.quote(str(root / new))}" for old, new in renamed]
            return f"{masks!r} has masks for {images!r}: rename the folders with `{' && '.join(commands)}`"
    return ""


def _has_ids(path: Path) -> bool:
    """Return True if a file is a PNG of class ids, not of colours."""
    try:
        with open(path, "rb") as file:
            return read_header(file.read(64)).coloured is None
    except (UnreadableImage, OSError):
        return False


# ---- Names -----------------------------------------------------------------------------------------------------------


def files_of(root: Path, pair: FolderPair) -> tuple[list[str], list[str]]:
    """List the images and the masks of a split."""
    images = images_below(root, pair.images)
    if pair.images == pair.masks:
        return _separated(images)
    return images, images_below(root, pair.masks) if (root / pair.masks).is_dir() else []


def _separated(files: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate images from masks by the endings of their names."""
    images: list[str] = []
    masks: list[str] = []
    for path in files:
        (masks if os.path.splitext(path)[0].endswith(ENDINGS) else images).append(path)
    return images, masks


def count(root: Path, pair: FolderPair) -> int:
    """Count the images of a split that have a mask."""
    return len(match(*files_of(root, pair), pair.images, pair.masks))


def match(images: Sequence[str], masks: Sequence[str], image_folder: str, mask_folder: str) -> dict[str, str]:
    """Map images to masks. A mask has the same name as its image, optionally followed by one of the ENDINGS."""
    by_key = {key_of(path, mask_folder): path for path in sorted(masks)}
    pairs = {}
    for image in images:
        key = key_of(image, image_folder)
        stems = [key, *(key.removesuffix(ending) for ending in IMAGE_ENDINGS if key.endswith(ending))]
        names = [key, *(stem + ending for stem in stems for ending in ENDINGS)]
        if mask := next((by_key[name] for name in names if name in by_key), None):
            pairs[image] = mask
    return pairs


def key_of(path: str, folder: str) -> str:
    """Return the path relative to `folder`, without extension."""
    return os.path.splitext(os.path.relpath(path, folder) if folder else path)[0]
