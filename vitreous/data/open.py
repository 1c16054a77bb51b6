"""Opens the data set given by `--data`: a folder, table, shards, arrays, Hugging Face data set or built-in name.

Every reader returns a `FoundData` with the images and problems it found. `make_splits` converts it to a `DataSet`, or
raises ValueError for the first problem; `vitreous data check` reports all problems. Images are not decoded.
"""

import difflib
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from vitreous.common.checks import check_real, fail, path_suggestion
from vitreous.common.rng import SampleRng
from vitreous.common.text import listed
from vitreous.data.masks.folders import open_mask_folder, open_unmasked
from vitreous.data.masks.layouts import EXPECTED, count_pairs, has_masks, parent_hint
from vitreous.data.sources.arrays import open_arrays
from vitreous.data.sources.base import (
    SPLITS,
    UNSPLIT,
    DataSet,
    FoundData,
    Source,
    is_image_file,
    label_problems,
    pick,
    without_labels,
)
from vitreous.data.sources.folders import list_folder, local_path, open_folder
from vitreous.data.sources.hub import open_hub
from vitreous.data.sources.named import NAMES, open_named, parse_options
from vitreous.data.sources.shapes import open_shapes
from vitreous.data.sources.shards import open_shards
from vitreous.data.sources.tables import SUFFIXES, choose_files, open_parquet, open_table
from vitreous.data.sources.targets import TargetKind


def open_data(
    spec: str,
    *,
    root: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    labelled: bool = True,
    targets: TargetKind | None = None,
) -> DataSet:
    """Open a data set and split it into train, val and test. Raise ValueError for the first problem.

    Args:
        spec: Path, `hf:owner/name` or built-in name. A folder of the same name takes precedence over a built-in data
            set; with a colon, as in `digits:`, the name always means the built-in one.
        root: Local copy of a published data set, or the base folder for relative paths.
        val_fraction: Fraction of each class to hold out if there is no val or test split.
        seed: Seed for the random split and for generated data.
        labelled: False to ignore classes.
        targets: Several labels or numbers to read from a table, instead of one class per image.
    """
    check_real("val_fraction", val_fraction, 0, 1)
    found = find_data(spec, root, seed, labelled) if targets is None else find_targets(spec, root, targets)
    found.labelled = found.labelled and labelled
    return make_splits(found, val_fraction, seed)


def open_unlabelled(spec: str, root: Path | None = None, seed: int = 0) -> Source:
    """Return the images of a data set without their labels: its train split, or all images if it has no splits."""
    found = find_data(spec, root, seed, labelled=False)
    split = next((split for split in ("train", UNSPLIT) if split in found.splits), None)
    if split is None:
        raise ValueError(f"{found.name}: no train split, only {listed(found.splits)}")
    return without_labels(found.splits[split])


def open_masked(
    spec: str,
    *,
    root: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    ignore: Sequence[str] = (),
    order: Sequence[str] = (),
) -> DataSet:
    """Open a segmentation data set and split it. `spec`, `root`, `val_fraction` and `seed` are as in `open_data`.

    Args:
        ignore: Classes to exclude from the loss and the metrics.
        order: Class order of an existing model, used if the data set has the same classes.
    """
    check_real("val_fraction", val_fraction, 0, 1)
    name, _, options = spec.partition(":")
    if not (shadowing := is_shadowed(spec, root)):
        if name == "shapes":
            return make_splits(open_shapes(parse_options(name, options), seed, ignore), val_fraction, seed)
        if name in NAMES:
            raise ValueError(f"{name} has image labels but no masks; {EXPECTED.format(f'./{name}')}")
    path = local_path(spec, root)
    if not path.is_dir():
        raise ValueError(f"folder {spec!r} not found{_suggest(path)}; {EXPECTED.format('DIR')}")
    found = open_mask_folder(path, ignore, order)
    found.notes += [SHADOWED.format(spec)] if shadowing else []
    return make_splits(found, val_fraction, seed)


def is_same_data(one: str, other: str, root: Path | None = None) -> bool:
    """Return True if two specs are equal, or are paths of the same existing file or folder."""
    paths = [local_path(spec, root) for spec in (one, other)]
    return one == other or (all(path.exists() for path in paths) and paths[0].samefile(paths[1]))


SHADOWED = "using the folder {0!r}, not the built-in data set ({0}:)"


def is_shadowed(spec: str, root: Path | None) -> bool:
    """Return True if a built-in name is also a folder. With `root`, the name always means the built-in data set."""
    return spec in NAMES and root is None and Path(spec).is_dir()


def find_data(spec: str, root: Path | None = None, seed: int = 0, labelled: bool = True) -> FoundData:
    """Read a data set and collect its problems, without splitting it."""
    name, _, options = spec.partition(":")
    if is_shadowed(spec, root):
        found = _open_directory(Path(spec), labelled)
        found.notes.append(SHADOWED.format(spec))
        return found
    if name in NAMES:
        return open_named(name, options, root, seed)
    if spec.startswith("hf:"):
        return open_hub(spec)
    path = local_path(spec, root)
    if path.is_dir():
        return _open_directory(path, labelled)
    if ".tar" in spec and (spec.startswith(("http://", "https://")) or not path.is_file() or path.suffix == ".tar"):
        return open_shards(spec, root)
    kinds = f"a folder, a {', '.join(SUFFIXES)}, .npz or .tar file, hf:owner/name, or one of {', '.join(NAMES)}"
    if not path.exists():
        raise ValueError(f"data set {spec!r} not found{_suggest(path, NAMES)}; expected {kinds}")
    if path.suffix.lower() in SUFFIXES:
        return open_table(path, root)
    if path.suffix.lower() == ".npz":
        return open_arrays(path)
    if is_image_file(path.name):
        raise ValueError(f"{spec} is a single image; expected a folder with one subfolder of images per class")
    raise ValueError(f"{spec} is not a data set; expected {kinds}")


def find_targets(spec: str, root: Path | None, targets: TargetKind) -> FoundData:
    """Read the images of a table with several labels or numbers per image."""
    path = local_path(spec, root)
    if spec.startswith("hf:"):
        return open_hub(spec, targets)
    if path.suffix.lower() in SUFFIXES and path.is_file():
        return open_table(path, root, targets)
    if path.is_dir() and ".parquet" in _suffixes(path, depth=2):
        return open_parquet(path.name, _parquet_files(path), None, targets)
    kinds = f"a {', '.join(SUFFIXES)} file, a folder of Parquet files, or hf:owner/name"
    known = path.exists() or spec.partition(":")[0] in NAMES
    raise ValueError(
        f"data set {spec!r} {'is not a table' if known else f'not found{_suggest(path)}'}; expected {kinds}"
    )


def _suggest(path: Path, names: Sequence[str] = ()) -> str:
    """Suggest the existing path or built-in name that is most similar to a missing path."""
    if not path.parent.is_dir():
        return path_suggestion(path)
    near = {name: name for name in names if path.parent == Path()}
    with suppress(OSError):
        siblings = [sibling for sibling in path.parent.iterdir() if sibling.name != path.name]  # may be a dangling link
        near |= {sibling.name.lower(): f"{sibling}{'/' * sibling.is_dir()}" for sibling in siblings}
    close = difflib.get_close_matches(path.name.lower(), list(near), n=1)
    return f" (did you mean {near[close[0]]!r}?)" if close else ""


def _open_directory(path: Path, labelled: bool) -> FoundData:
    if has_masks(path) and count_pairs(path):
        if not labelled:
            return open_unmasked(path)
        raise ValueError(f"{path} has images and masks but no class folders; to train a segmenter, use --task segment")
    suffixes = _suffixes(path, depth=2)
    if ".tar" in suffixes:
        return open_shards(str(path))
    if ".parquet" in suffixes:
        return open_parquet(path.name, _parquet_files(path))
    if labelled and not list_folder(path)[0] and (hint := parent_hint(path)):
        raise ValueError(f"{path} has no class folders; {hint}")
    return open_folder(path, labelled)


def _parquet_files(path: Path) -> dict[str, list[Path]]:
    """Return the Parquet files in a folder by split."""
    files = [file.relative_to(path).as_posix() for file in path.rglob("*.parquet")]
    splits = choose_files(str(path), files, None)
    return {split: [path / file for file in inside] for split, inside in splits.items()}


def _suffixes(path: Path, depth: int) -> set[str]:
    """Collect the file suffixes in a folder. Subfolders may be huge, so only their first 20 entries are examined."""
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
    """Split a data set into train, val and test. Raise ValueError for its first problem."""
    if problems := found.problems + label_problems(found):
        raise ValueError(f"{found.name}: {problems[0]}")
    splits, notes = dict(found.splits), [*found.notes, *(f"damaged: {line}" for line in found.damaged)]
    if UNSPLIT in splits and len(splits) > 1:  # e.g. arrays x and y beside x_test and y_test
        splits["train"] = splits.pop(UNSPLIT)
    val_drawn = not {"val", "test"} & splits.keys()
    if val_drawn:
        whole = splits.pop(UNSPLIT) if UNSPLIT in splits else splits["train"]
        labels, classes = _strata(whole) if found.labelled else (np.zeros(len(whole), np.int64), ("",))
        train, val = stratified(labels, classes, val_fraction, seed, found.name)
        splits["train"], splits["val"] = pick(whole, train), pick(whole, val)
        drawn_from = "each class" if found.labelled else "the images"
        notes.insert(0, f"val is {val_fraction:.0%} of {drawn_from}, drawn with seed {seed}")
    elif "val" not in splits:
        splits["val"] = splits.pop("test")
        notes.insert(0, "the test split is used as val, so the best epoch is selected on the test split")
    counts = ", ".join(f"{split} {len(splits[split]):,}" for split in SPLITS if split in splits)
    note = "; ".join([counts, *notes])
    return DataSet(found.name, splits["train"], splits["val"], splits.get("test"), note, val_drawn)


def _strata(source: Source) -> tuple[np.ndarray, Sequence[str]]:
    """Return the classes of the images or, if an image can have several, the rarest of its classes."""
    if source.targets is None:
        return source.labels, source.classes
    count, k = source.targets.shape
    rarity = np.where(source.targets, source.targets.sum(0), count + 1)
    groups = np.where(source.targets.any(1), rarity.argmin(1), k)
    for merged in (k, None):  # a single image cannot be split
        sizes = np.bincount(groups, minlength=k + 1)
        groups = np.where(sizes[groups] == 1, sizes.argmax() if merged is None else merged, groups)
    return groups, [*source.classes, "no label"]


def stratified(
    labels: np.ndarray, classes: Sequence[str], fraction: float, seed: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the train and val indices. Val is `fraction` of each class; both splits contain every class."""
    if not 0 < fraction < 1:
        fail("val_fraction", fraction, "more than 0 and less than 1")
    counts = np.bincount(labels, minlength=len(classes))
    if single := [classes[c] for c in np.flatnonzero(counts == 1).tolist()]:
        raise ValueError(
            f"{name}: each class needs at least 2 images to be split into train and val, but only 1 was found for "
            f"{listed(single)}; add more images or provide a val split"
        )
    numbers = SampleRng(seed, 0, torch.arange(len(labels))).uniform("split").numpy()
    order = np.lexsort((numbers, labels))  # grouped by class, shuffled within each
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[order]]
    quota = np.clip(np.floor(counts * fraction + 0.5).astype(np.int64), 1, np.maximum(counts - 1, 1))
    held = rank < quota[labels]
    return np.flatnonzero(~held), np.flatnonzero(held)
