"""From `--data` to a data set in splits: a folder, a table, shards, arrays, a data set of the hub, or a built-in name.

A reader returns a `FoundData` with everything it found and every problem. `make_splits` turns it into a `DataSet` or
raises the first problem; `vitreous data check` reports all of them. No image is decoded here.
"""

import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from vitreous.common.checks import check_real, fail, path_suggestion, suggestion
from vitreous.common.rng import SampleRng
from vitreous.common.text import listed
from vitreous.data.masks.folders import EXPECTED, count_pairs, open_mask_folder, open_unmasked
from vitreous.data.sources.arrays import open_arrays
from vitreous.data.sources.base import SPLITS, UNSPLIT, DataSet, FoundData, is_image_file, label_problems, pick
from vitreous.data.sources.folders import has_masks, local_path, open_folder
from vitreous.data.sources.hub import open_hub
from vitreous.data.sources.named import NAMES, open_named, parse_options
from vitreous.data.sources.shapes import open_shapes
from vitreous.data.sources.shards import open_shards
from vitreous.data.sources.tables import SUFFIXES, choose_files, open_parquet, open_table


def open_data(
    spec: str, *, root: Path | None = None, val_fraction: float = 0.2, seed: int = 0, labelled: bool = True
) -> DataSet:
    """Open the data set that `spec` names, in splits; raises ValueError for the first problem with it.

    A built-in name takes precedence over a folder: write `./digits` for the folder. `root` is the folder of a local
    copy of a published set, of the paths in a table, and the first place to search any other path. With
    `labelled=False` only images are needed, and classes are ignored.
    """
    check_real("val_fraction", val_fraction, 0, 1)
    found = find_data(spec, root, seed, labelled)
    found.labelled = found.labelled and labelled
    return make_splits(found, val_fraction, seed)


def open_masked(
    spec: str,
    *,
    root: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    ignore: Sequence[str] = (),
    order: Sequence[str] = (),
) -> DataSet:
    """Open the images and masks that `spec` names, in splits; raises ValueError with a line for every problem.

    `ignore` names classes whose pixels do not count. `order` is the order of a model that may have the same classes.
    `root` is the first place to search a path.
    """
    check_real("val_fraction", val_fraction, 0, 1)
    name, _, options = spec.partition(":")
    if name == "shapes":
        return make_splits(open_shapes(parse_options(name, options), seed, ignore), val_fraction, seed)
    if name in NAMES:
        raise ValueError(f"{name} has labels for its images, but no masks: {EXPECTED.format(f'./{name}')}")
    path = local_path(spec, root)
    if not path.is_dir():
        raise ValueError(f"there is no folder {spec!r}{path_suggestion(path)}: {EXPECTED.format('DIR')}")
    return make_splits(open_mask_folder(path, ignore, order), val_fraction, seed)


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


# ---- Splits ----------------------------------------------------------------------------------------------------------


def make_splits(found: FoundData, val_fraction: float, seed: int) -> DataSet:
    """Make the data set to train on; raises the first problem of what was found."""
    if problems := found.problems + label_problems(found):
        raise ValueError(f"{found.name}: {problems[0]}")
    splits, notes = dict(found.splits), [*found.notes, *(f"damaged: {line}" for line in found.damaged)]
    if UNSPLIT in splits and len(splits) > 1:  # x and y beside x_test and y_test: train on the rest
        splits["train"] = splits.pop(UNSPLIT)
    val_drawn = not {"val", "test"} & splits.keys()
    if val_drawn:
        whole = splits.pop(UNSPLIT) if UNSPLIT in splits else splits["train"]
        labels, classes = (whole.labels, whole.classes) if found.labelled else (np.zeros(len(whole), np.int64), ("",))
        train, val = stratified(labels, classes, val_fraction, seed, found.name)
        splits["train"], splits["val"] = pick(whole, train), pick(whole, val)
        whose = "every class" if found.labelled else "the images"
        notes.insert(0, f"val is {val_fraction:.0%} of {whose}, drawn by seed {seed}")
    elif "val" not in splits:
        splits["val"] = splits.pop("test")
        notes.insert(0, "the test split is used as val, so its metrics also choose the best epoch")
    counts = ", ".join(f"{split} {len(splits[split]):,}" for split in SPLITS if split in splits)
    note = "; ".join([counts, *notes])
    return DataSet(found.name, splits["train"], splits["val"], splits.get("test"), note, val_drawn)


def stratified(
    labels: np.ndarray, classes: Sequence[str], fraction: float, seed: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Indices to keep and to hold out: the given fraction of every class, at least one image and not all."""
    if not 0 < fraction < 1:
        fail("val_fraction", fraction, "more than 0 and less than 1")
    counts = np.bincount(labels, minlength=len(classes))
    if single := [classes[c] for c in np.flatnonzero(counts == 1).tolist()]:
        raise ValueError(
            f"{name}: {listed(single)} {'has' if len(single) == 1 else 'have'} only one image, "
            "which cannot be in both train and val: add more images, or a val split"
        )
    numbers = SampleRng(seed, 0, torch.arange(len(labels))).uniform("split").numpy()
    order = np.lexsort((numbers, labels))  # class by class, within each in random order
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[order]]
    quota = np.clip(np.floor(counts * fraction + 0.5).astype(np.int64), 1, np.maximum(counts - 1, 1))
    held = rank < quota[labels]
    return np.flatnonzero(~held), np.flatnonzero(held)
