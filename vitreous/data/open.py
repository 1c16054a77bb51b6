"""Resolve `--data`: a folder, a table, shards, arrays, a data set of the hub, or a built-in name."""

import os
from itertools import islice
from pathlib import Path

from vitreous.common.checks import check_real, path_suggestion, suggestion
from vitreous.data.masks.folders import count_pairs, open_unmasked
from vitreous.data.sources.arrays import open_arrays
from vitreous.data.sources.base import DataSet, is_image_file
from vitreous.data.sources.folders import has_masks, local_path, open_folder
from vitreous.data.sources.hub import open_hub
from vitreous.data.sources.named import NAMES, open_named
from vitreous.data.sources.shards import open_shards
from vitreous.data.sources.tables import SUFFIXES, choose_files, open_parquet, open_table
from vitreous.data.split import FoundData, make_splits


def open_data(
    spec: str, *, root: Path | None = None, val_fraction: float = 0.2, seed: int = 0, labelled: bool = True
) -> DataSet:
    """Open the data set that `spec` names, in splits; raises ValueError for the first problem with it.

    A built-in name takes precedence over a folder: write `./digits` for the folder. `root` is the folder of a local
    copy of a published set, of the paths in a table, and the first place to search any other path. With
    `labelled=False` only images are needed, and classes are ignored.

    >>> data = open_data("digits")
    >>> len(data.train), len(data.val), data.classes[:3]
    (1438, 359, ('0', '1', '2'))
    """
    check_real("val_fraction", val_fraction, 0, 1)
    found = find_data(spec, root, seed, labelled)
    found.labelled = found.labelled and labelled
    return make_splits(found, val_fraction, seed)


def find_data(spec: str, root: Path | None = None, seed: int = 0, labelled: bool = True) -> FoundData:
    """Find the data set that `spec` names, with its problems, not yet divided."""
    name, _, options = spec.partition(":")
    if name in NAMES:
        return open_named(name, options, root, seed)
    if spec.startswith("hf:"):
        return open_hub(spec)
    path = local_path(spec, root)
    if path.is_dir():
        return _open_directory(path, labelled)
    if ".tar" in spec and (spec.startswith(("http://", "https://")) or not path.is_file() or path.suffix == ".tar"):
        return open_shards(spec, root)
    kinds = f"a folder, {', '.join(SUFFIXES)}, .npz, .tar, hf:owner/name, or one of {', '.join(NAMES)}"
    if not path.exists():
        hint = suggestion(spec, NAMES) or path_suggestion(path)
        raise ValueError(f"there is no data set {spec!r}{hint}: it must be {kinds}")
    if path.suffix.lower() in SUFFIXES:
        return open_table(path, root)
    if path.suffix.lower() == ".npz":
        return open_arrays(path)
    if is_image_file(path.name):
        raise ValueError(f"{spec} is a single image, but a data set is a folder of images, in a folder for each class")
    raise ValueError(f"{spec} is not a data set: it must be {kinds}")


def _open_directory(path: Path, labelled: bool) -> FoundData:
    """Open a folder of class folders, of shards, or of Parquet files."""
    if has_masks(path) and count_pairs(path):
        if not labelled:
            return open_unmasked(path)
        raise ValueError(f"{path} has images and masks, but no class folders: use --task segment")
    suffixes = _suffixes(path, depth=2)
    if ".tar" in suffixes:
        return open_shards(str(path))
    if ".parquet" in suffixes:
        files = [file.relative_to(path).as_posix() for file in path.rglob("*.parquet")]
        splits = choose_files(str(path), files, None)
        return open_parquet(path.name, {split: [path / file for file in inside] for split, inside in splits.items()})
    return open_folder(path, labelled)


def _suffixes(path: Path, depth: int) -> set[str]:
    """Suffixes of the first few files in a folder and its subfolders, which may have millions of images."""
    found: set[str] = set()
    with os.scandir(path) as entries:
        for entry in entries if depth == 2 else islice(entries, 20):
            if entry.name.startswith("."):
                continue
            if not entry.is_dir():
                found.add(os.path.splitext(entry.name)[1].lower())
            elif depth:
                found |= _suffixes(Path(entry.path), depth - 1)
    return found
