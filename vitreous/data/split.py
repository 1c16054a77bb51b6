"""Splits of a data set: which images train, which validate, which test; and problems with their labels.

A reader returns a `FoundData` with everything it found and every problem. `make_splits` turns it into a `DataSet` or
raises the first problem; `vitreous data check` reports all of them. No image is decoded here.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from vitreous.common.checks import fail
from vitreous.common.text import listed
from vitreous.data.rng import SampleRng
from vitreous.data.sources.base import DataSet, Source, Subset

SPLITS = ("train", "val", "test")
ALIASES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
UNSPLIT = "all"  # the split of images that are not divided yet


@dataclass
class FoundData:
    """The content of a data set on disk. All splits have the same classes: those of every split together."""

    name: str
    splits: dict[str, Source]  # by "train", "val" and "test", or "all"
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # truncated files: training warns, a check counts them
    same_classes: bool = False  # True if it is a problem when val lacks a class of train
    labelled: bool = True  # True if images have classes to distinguish


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
    """Indices to keep and to hold out: the given fraction of every class, at least one image and not all.

    >>> keep, hold = stratified(np.array([0, 1] * 5), ("cat", "dog"), 0.2, seed=0, name="pets")
    >>> len(keep), len(hold)
    (8, 2)
    """
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


def label_problems(found: FoundData) -> list[str]:
    """Every problem with splits and classes that prevents training."""
    if UNSPLIT not in found.splits and "train" not in found.splits:
        return [f"has {' and '.join(found.splits) or 'no split'}, but no train split"]
    if not found.labelled:
        return []
    known = class_counts(found.splits[UNSPLIT if UNSPLIT in found.splits else "train"])
    problems = []
    if len(known) < 2:
        problems.append(f"has {listed(known)} as its only class, but needs at least 2")
    for split, source in found.splits.items():
        present = class_counts(source)
        extra = [name for name in present if name not in known]
        lacking = [name for name in known if name not in present] if found.same_classes and split == "val" else []
        sides = [f"{split} has {listed(extra)}, which train lacks"] if extra else []
        sides += [f"train has {listed(lacking)}, which {split} lacks"] if lacking else []
        if sides:
            problems.append(f"the classes of train and {split} differ: {'; '.join(sides)}")
    return problems


def class_counts(source: Source) -> dict[str, int]:
    """Number of images of every class that has any."""
    counts = np.bincount(source.labels, minlength=len(source.classes))
    return {name: int(n) for name, n in zip(source.classes, counts, strict=True) if n}


def by_split(source: Source, splits: Iterable[str]) -> dict[str, Source]:
    """Divide a source by the split of each of its images."""
    words = np.asarray(list(splits))
    names = sorted(set(words.tolist()), key=[*SPLITS, UNSPLIT].index)
    if len(names) == 1:
        return {names[0]: source}
    return {name: pick(source, np.flatnonzero(words == name)) for name in names}


def pick(source: Source, indices: np.ndarray) -> Subset:
    """Some images of a source; a subset of a subset refers to the whole directly."""
    if isinstance(source, Subset):
        return Subset(source.source, source.indices[indices])
    return Subset(source, indices)


def split_name(word: str) -> str | None:
    """The split that a folder, file or column name means, perhaps with a year; None if it means none.

    >>> split_name("Validation"), split_name("val2017"), split_name("cats")
    ('val', 'val', None)
    """
    word = re.sub(r"[-_]?\d+$", "", word.strip().lower())
    return word if word in SPLITS else ALIASES.get(word)


def split_folders(folders: Sequence[str], where: object) -> dict[str, str]:
    """The split that each of the folders means, for those that mean one; two folders of one split are an error."""
    splits = {folder: split for folder in folders if (split := split_name(folder))}
    if doubled := [folder for folder, split in splits.items() if list(splits.values()).count(split) > 1]:
        raise ValueError(f"{where} has {listed(doubled)}, which mean the same split: keep one")
    return splits
