"""Reader for image folders: `class/...`, or `train/class/...` with `val` and optionally `test`.

Classes are the sorted names of the class folders, which may have nested subfolders.
"""

import os
from pathlib import Path

import numpy as np

from vitreous.common.text import listed, plural
from vitreous.data.sources.base import (
    UNSPLIT,
    FileSource,
    FoundData,
    by_split,
    is_image_file,
    split_folders,
    split_name,
)

Item = tuple[str, str, str]  # split, class, path relative to the root
# Common folder names for images and masks.
IMAGES = ("images", "image", "imgs", "img", "pictures", "jpegimages")
MASKS = ("masks", "mask", "labels", "label", "annotations", "annotation", "segmentationclass")
ACCEPTED = "supported: .jpg .png .webp .bmp .gif .tif .ppm"
UNLABELLED = "picture"  # class name for unlabelled images; existing run folders contain it


def open_folder(root: Path, labelled: bool = True) -> FoundData:
    """Open an image folder by listing it. With `labelled=False`, images may be outside class folders."""
    folders, images, others = list_folder(root)
    splits = [folder for folder in folders if split_name(folder)]
    if "train" in map(split_name, splits) and (len(splits) > 1 or len(folders) == 1):
        return _open_splits(root, split_folders(splits, root), labelled)
    if splits and len(splits) == len(folders):
        raise ValueError(f"{root} has {listed(folders)} but no 'train' folder")
    if not folders and (labelled or not images):
        raise ValueError(_no_classes(root, images, others))
    items, problems = _read_classes(root, "", UNSPLIT, folders)
    if not labelled:
        items, images = items + [(UNSPLIT, UNLABELLED, name) for name in images], []
    notes = [f"ignored {plural(len(images), 'image')} outside the class folders"] if images else []
    return _found(root, items, problems if labelled else [], notes)


def _open_splits(root: Path, splits: dict[str, str], labelled: bool) -> FoundData:
    items, problems, notes = [], [], []
    for folder, split in splits.items():
        classes, images, _ = list_folder(root / folder)
        if not labelled:
            items += [(split, UNLABELLED, path) for path in images_below(root, folder)]
        elif classes:
            more, wrong = _read_classes(root, folder, split, classes)
            items += more
            problems += wrong
        elif split == "test":
            notes.append(f"{folder} has no class folders and is ignored")
        else:
            inside = plural(len(images), "image") if images else "no images"
            raise ValueError(f"{root / folder} has {inside} and no class folders; expected {folder}/<class>/*.jpg")
    return _found(root, items, problems, notes)


def _read_classes(root: Path, below: str, split: str, folders: list[str]) -> tuple[list[Item], list[str]]:
    """List the images in class folders, and report empty folders as a problem."""
    items, empty = [], []
    for folder in folders:
        paths = images_below(root, os.path.join(below, folder))
        items += [(split, folder, path) for path in paths]
        if not paths:
            empty.append(os.path.join(below, folder))
    if not empty:
        return items, []
    noun = "class folder" if len(empty) == 1 else "class folders"
    return items, [f"empty {noun}: no images in {listed(empty)} ({ACCEPTED})"]


def _found(root: Path, items: list[Item], problems: list[str], notes: list[str]) -> FoundData:
    if not items:
        raise ValueError(f"no images in the folders of {root} ({ACCEPTED})")
    classes = tuple(sorted({label for _, label, _ in items}))
    index = {label: i for i, label in enumerate(classes)}
    labels = np.array([index[label] for _, label, _ in items], np.int64)
    source = FileSource(root, [path for _, _, path in items], labels, classes)
    splits = by_split(source, (split for split, _, _ in items))
    return FoundData(root.resolve().name, splits, notes, problems, same_classes=True)


def local_path(spec: str, root: Path | None) -> Path:
    """Resolve a path relative to `root` if it exists there, otherwise relative to the working directory."""
    path = Path(spec).expanduser()
    return root / path if root is not None and (root / path).exists() else path


def list_folder(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """List the subfolders, images and other files in a folder, sorted and without hidden ones."""
    folders: list[str] = []
    images: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__MACOSX")):
                continue
            kind = folders if entry.is_dir() else images if is_image_file(entry.name) else others
            kind.append(entry.name)
    return sorted(folders), sorted(images), sorted(others)


def images_below(root: Path, below: str, above: frozenset[tuple[int, int]] = frozenset()) -> list[str]:
    """List all images in a folder and its subfolders, following links but not link cycles."""
    stat = os.stat(root / below)
    if (stat.st_dev, stat.st_ino) in above:
        return []
    above |= {(stat.st_dev, stat.st_ino)}
    folders, images, _ = list_folder(root / below)
    found = [os.path.join(below, name) for name in images]
    for folder in folders:
        found += images_below(root, os.path.join(below, folder), above)
    return found


def _no_classes(root: Path, images: list[str], others: list[str]) -> str:
    if tables := [name for name in others if name.endswith((".csv", ".tsv", ".jsonl", ".ndjson", ".npz"))]:
        return f"{root} has no class folders; did you mean {str(root / tables[0])!r}?"
    if images:
        return f"{root} has {plural(len(images), 'image')} but no class folders; expected <class>/*.jpg"
    content = f"has no images, only {listed(others, 3)}" if others else "is empty"
    return f"{root} {content}; expected images in <class>/ ({ACCEPTED})"
