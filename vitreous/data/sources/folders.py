"""A folder of pictures: `class/...`, or `train/class/...` beside `val` and perhaps `test`.

Classes are the sorted names of the folders that hold them; below a class, folders may be nested as one likes.
"""

import os
from pathlib import Path

import numpy as np

from vitreous.data.sources.stored import FileSource, is_picture
from vitreous.data.split import WHOLE, Found, by_part, listed, part_name, plural

Item = tuple[str, str, str]  # part, class, path below the root
LOOSE = "picture"  # the class of a picture that needs none


def open_folder(root: Path, labelled: bool = True) -> Found:
    """What is in the folder. Only names are read. Pictures that need no label may lie outside of class folders."""
    folders, pictures, others = list_folder(root)
    parts = {folder: part for folder in folders if (part := part_name(folder))}
    if "train" in parts.values() and (len(parts) > 1 or len(folders) == 1):
        return _open_parts(root, parts, labelled)
    if parts and len(parts) == len(folders):
        raise ValueError(f"{root} has {listed(folders)}, but no folder train")
    if not folders and (labelled or not pictures):
        raise ValueError(_no_classes(root, pictures, others))
    items, problems = _classes(root, "", WHOLE, folders)
    if not labelled:
        items, pictures = items + [(WHOLE, LOOSE, name) for name in pictures], []
    found = _found(root, items, problems if labelled else [])
    if pictures:
        found.notes.append(f"{plural(len(pictures), 'picture')} outside the class folders left out")
    return found


def _open_parts(root: Path, parts: dict[str, str], labelled: bool) -> Found:
    doubled = [folder for folder, part in parts.items() if list(parts.values()).count(part) > 1]
    if doubled:
        raise ValueError(f"{root} has {listed(doubled)}, which mean the same part: keep one")
    items, problems, notes = [], [], []
    for folder, part in parts.items():
        classes, pictures, _ = list_folder(root / folder)
        if not labelled:
            items += [(part, LOOSE, path) for path in pictures_below(root, folder)]
        elif classes:
            more, wrong = _classes(root, folder, part, classes)
            items += more
            problems += wrong
        elif part == "test":
            notes.append(f"{folder} has no class folders and is left out")
        else:
            inside = plural(len(pictures), "picture") if pictures else "nothing"
            raise ValueError(
                f"{root / folder} has {inside} but no class folders: pictures belong into {folder}/<class>/"
            )
    found = _found(root, items, problems)
    found.notes += notes
    return found


def _classes(root: Path, below: str, part: str, folders: list[str]) -> tuple[list[Item], list[str]]:
    items, empty = [], []
    for folder in folders:
        paths = pictures_below(root, os.path.join(below, folder))
        items += [(part, folder, path) for path in paths]
        if not paths:
            empty.append(os.path.join(below, folder))
    if not empty:
        return items, []
    verb = "is an empty class: it has" if len(empty) == 1 else "are empty classes: they have"
    return items, [f"{listed(empty)} {verb} no pictures"]


def _found(root: Path, items: list[Item], problems: list[str]) -> Found:
    name = root.resolve().name
    if not items:
        raise ValueError(f"{root} has folders, but no pictures in them")
    # A class that is empty is a class all the same: the problem says so.
    classes = tuple(sorted({label for _, label, _ in items}))
    index = {label: i for i, label in enumerate(classes)}
    labels = np.array([index[label] for _, label, _ in items], np.int64)
    source = FileSource(root, [path for _, _, path in items], labels, classes)
    return Found(name, by_part(source, (part for part, _, _ in items)), problems=problems, same_classes=True)


def list_folder(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Sorted names of the folders, pictures and other files in a folder, without hidden ones."""
    folders: list[str] = []
    pictures: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__MACOSX")):
                continue
            kind = folders if entry.is_dir() else pictures if is_picture(entry.name) else others
            kind.append(entry.name)
    return sorted(folders), sorted(pictures), sorted(others)


def pictures_below(root: Path, below: str, above: frozenset[tuple[int, int]] = frozenset()) -> list[str]:
    """Paths of all pictures in a folder and its folders; links are followed, but not in circles."""
    stat = os.stat(root / below)
    if (stat.st_dev, stat.st_ino) in above:
        return []
    above |= {(stat.st_dev, stat.st_ino)}
    folders, pictures, _ = list_folder(root / below)
    found = [os.path.join(below, name) for name in pictures]
    for folder in folders:
        found += pictures_below(root, os.path.join(below, folder), above)
    return found


def _no_classes(root: Path, pictures: list[str], others: list[str]) -> str:
    tables = [name for name in others if name.endswith((".csv", ".tsv", ".jsonl", ".ndjson", ".npz"))]
    if tables:
        return f"{root} has no class folders; is {str(root / tables[0])!r} the data set?"
    if pictures:
        return f"{root} has {plural(len(pictures), 'picture')} but no class folders: pictures belong into <class>/"
    return f"{root} has no pictures"
