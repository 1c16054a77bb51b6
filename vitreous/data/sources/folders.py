"""Reader for image folders: `class/...`, or `train/class/...` with `val` and optionally `test`.

Classes are the sorted names of the class folders, which may have nested subfolders.
"""

import os
from collections import Counter
from pathlib import Path

import numpy as np

from vitreous.common.text import listed, plural
from vitreous.data.sources.base import (
    HEIF,
    UNSPLIT,
    FileSource,
    FoundData,
    by_split,
    extension,
    is_image_file,
    split_folders,
    split_name,
    supported_extensions,
)

Item = tuple[str, str, str]  # split, class, path relative to the root
# Common folder names for images and masks.
IMAGES = ("images", "image", "imgs", "img", "pictures", "jpegimages")
MASKS = ("masks", "mask", "labels", "label", "annotations", "annotation", "segmentationclass")
# Files that are expected beside images, such as annotations, and are ignored without a note.
SIDECARS = frozenset(
    ["csv", "db", "html", "ini", "json", "jsonl", "log", "md", "npy", "npz", "tsv", "txt", "xml", "yaml"]
)
UNLABELLED = "picture"  # class name for unlabelled images; existing run folders contain it


def open_folder(root: Path, labelled: bool = True) -> FoundData:
    """Open an image folder by listing it. With `labelled=False`, images may be outside class folders."""
    folders, images, other_files = list_folder(root)
    splits = [folder for folder in folders if split_name(folder)]
    if "train" in map(split_name, splits) and (len(splits) > 1 or len(folders) == 1):
        return _open_splits(root, split_folders(splits, root), labelled)
    if splits and len(splits) == len(folders):
        raise ValueError(f"{root} has {listed(folders)} but no 'train' folder")
    if not folders and (labelled or not images):
        raise ValueError(_no_classes(root, images, other_files))
    items, problems, ignored = _read_classes(root, "", UNSPLIT, folders)
    if not labelled:
        items, images, ignored = items + [(UNSPLIT, UNLABELLED, name) for name in images], [], ignored + other_files
    notes = [f"ignored {plural(len(images), 'image')} outside the class folders"] if images else []
    return _found(root, items, problems if labelled else [], notes, ignored)


def _open_splits(root: Path, splits: dict[str, str], labelled: bool) -> FoundData:
    items, problems, notes, ignored = [], [], [], []
    for folder, split in splits.items():
        classes, images, _ = list_folder(root / folder)
        if not labelled:
            paths, other_files = files_below(root, folder)
            items += [(split, UNLABELLED, path) for path in paths]
            ignored += other_files
        elif classes:
            more, wrong, other_files = _read_classes(root, folder, split, classes)
            items += more
            problems += wrong
            ignored += other_files
        elif split == "test":
            notes.append(f"{folder} has no class folders and is ignored")
        else:
            inside = plural(len(images), "image") if images else "no images"
            raise ValueError(f"{root / folder} has {inside} but no class folders; expected {folder}/<class>/*.jpg")
    return _found(root, items, problems, notes, ignored)


def _read_classes(root: Path, below: str, split: str, folders: list[str]) -> tuple[list[Item], list[str], list[str]]:
    """Return the images in class folders, a list with a problem if class folders are empty, and the other files."""
    items, empty, ignored = [], [], []
    for folder in folders:
        paths, other_files = files_below(root, os.path.join(below, folder))
        items += [(split, folder, path) for path in paths]
        ignored += other_files
        if not paths:
            empty.append(os.path.join(below, folder))
    if not empty:
        return items, [], ignored
    noun = "class folder" if len(empty) == 1 else "class folders"
    return items, [f"empty {noun}: no images in {listed(empty)} ({supported_extensions()})"], ignored


def _found(root: Path, items: list[Item], problems: list[str], notes: list[str], ignored: list[str]) -> FoundData:
    if note := ignored_note(ignored):
        notes = [*notes, note]
    if not items:
        raise ValueError(f"no images in the folders of {root} ({supported_extensions()}){f'; {note}' if note else ''}")
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
    """List the subfolders, images and other files in a folder, sorted and without hidden entries."""
    folders: list[str] = []
    images: list[str] = []
    other_files: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__MACOSX")):
                continue
            kind = folders if entry.is_dir() else images if is_image_file(entry.name) else other_files
            kind.append(entry.name)
    return sorted(folders), sorted(images), sorted(other_files)


def images_below(root: Path, below: str) -> list[str]:
    """List all images in a folder and its subfolders."""
    return files_below(root, below)[0]


def files_below(root: Path, below: str, above: frozenset[tuple[int, int]] = frozenset()) -> tuple[list[str], list[str]]:
    """List all images and all other files in a folder and its subfolders, following links but not link cycles."""
    stat = os.stat(root / below)
    if (stat.st_dev, stat.st_ino) in above:
        return [], []
    above |= {(stat.st_dev, stat.st_ino)}
    folders, images, other_files = (
        [os.path.join(below, name) for name in names] for names in list_folder(root / below)
    )
    for folder in folders:
        more_images, more_files = files_below(root, folder, above)
        images, other_files = images + more_images, other_files + more_files
    return images, other_files


def ignored_note(paths: list[str]) -> str:
    """Describe the ignored files that may be images but have an unsupported or missing extension."""
    paths = [path for path in paths if extension(path) not in SIDECARS]
    if not paths:
        return ""
    counts = Counter(extension(path) for path in paths).most_common()
    kinds = ", ".join(f"{count:,} {f'.{suffix}' if suffix else 'without extension'}" for suffix, count in counts[:5])
    hint = '; for HEIC, pip install "vitreous[heic]"' if HEIF & {suffix for suffix, _ in counts} else ""
    return f"ignored {plural(len(paths), 'file')} with an unsupported extension ({kinds}), e.g. {paths[0]}{hint}"


def _no_classes(root: Path, images: list[str], other_files: list[str]) -> str:
    if tables := [name for name in other_files if name.endswith((".csv", ".tsv", ".jsonl", ".ndjson", ".npz"))]:
        return f"{root} has no class folders; did you mean {str(root / tables[0])!r}?"
    if images:
        expected = "expected <class>/*.jpg; to train without labels, use --task mae or distil"
        return f"{root} has {plural(len(images), 'image')} but no class folders; {expected}"
    content = f"has no images, only {listed(other_files, 3)}" if other_files else "is empty"
    return f"{root} {content}; expected images in <class>/ ({supported_extensions()})"
