"""Parts of a data set: which pictures train, which validate, which test; and what is wrong with their labels.

A reader says what it found, good and bad, in a `Found`. `arrange` turns that into a `DataSet` or raises the first
problem; `vitreous data check` shows them all. No picture is decoded for it.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from vitreous.common.checks import fail
from vitreous.data.rng import Draws
from vitreous.data.sources.base import DataSet, Source, Subset

# What people call the parts.
PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
WHOLE = "all"  # the part of pictures that nobody has divided yet


@dataclass
class Found:
    """What lies on disk. All parts know the same classes: those of every part together."""

    name: str
    parts: dict[str, Source]  # by "train", "val" and "test", or "all"
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # files that have lost something: training warns, a check counts
    same_classes: bool = False  # whether a class of train that val lacks is a mistake too
    labelled: bool = True  # whether pictures have classes to tell apart


def arrange(found: Found, val_fraction: float, seed: int) -> DataSet:
    """The data set to train on. Raises the first thing that is wrong with what was found."""
    if problems := found.problems + label_problems(found):
        raise ValueError(f"{found.name}: {problems[0]}")
    parts, notes = dict(found.parts), [*found.notes, *(f"damaged: {line}" for line in found.damaged)]
    if WHOLE in parts and len(parts) > 1:  # x and y beside x_test and y_test: then the rest is to train on
        parts["train"] = parts.pop(WHOLE)
    if "val" not in parts and "test" in parts:
        parts["val"] = parts.pop("test")
        notes.insert(0, "the test part is used as val, so its figures choose the best epoch too")
    elif "val" not in parts:
        whole = parts.pop(WHOLE) if WHOLE in parts else parts["train"]
        labels, classes = (whole.labels, whole.classes) if found.labelled else (np.zeros(len(whole), np.int64), ("",))
        train, val = stratified(labels, classes, val_fraction, seed, found.name)
        parts["train"], parts["val"] = pick(whole, train), pick(whole, val)
        whose = "every class" if found.labelled else "the pictures"
        notes.insert(0, f"val is {val_fraction:.0%} of {whose}, chosen by seed {seed}")
    counts = ", ".join(f"{part} {len(parts[part]):,}" for part in ("train", "val", "test") if part in parts)
    note, split = "; ".join([counts, *notes]), "val" not in found.parts and "test" not in found.parts
    return DataSet(found.name, parts["train"], parts["val"], parts.get("test"), note, split)


def stratified(
    labels: np.ndarray, classes: Sequence[str], fraction: float, seed: int, name: str
) -> tuple[np.ndarray, np.ndarray]:
    """Indices to keep and to hold out: of every class the given share, at least one picture and not all.

    >>> keep, hold = stratified(np.array([0, 1] * 5), ("cat", "dog"), 0.2, seed=0, name="pets")
    >>> len(keep), len(hold)
    (8, 2)
    """
    if not 0 < fraction < 1:
        fail("val_fraction", fraction, "more than 0 and less than 1")
    counts = np.bincount(labels, minlength=len(classes))
    if single := [classes[c] for c in np.flatnonzero(counts == 1).tolist()]:
        raise ValueError(
            f"{name}: {listed(single)} {'has' if len(single) == 1 else 'have'} one picture only, "
            "which cannot be in train and in val: add more, or give a val part"
        )
    numbers = Draws(seed, 0, torch.arange(len(labels))).uniform("split").numpy()
    order = np.lexsort((numbers, labels))  # class by class, within each in random order
    rank = np.empty(len(labels), np.int64)
    rank[order] = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[order]]
    quota = np.clip(np.floor(counts * fraction + 0.5).astype(np.int64), 1, np.maximum(counts - 1, 1))
    held = rank < quota[labels]
    return np.flatnonzero(~held), np.flatnonzero(held)


def label_problems(found: Found) -> list[str]:
    """Everything that keeps the parts from being trained on."""
    if WHOLE not in found.parts and "train" not in found.parts:
        return [f"has {' and '.join(found.parts) or 'nothing'}, but no train"]
    if not found.labelled:
        return []
    first = found.parts[WHOLE if WHOLE in found.parts else "train"]
    known = occurring(first)
    problems = []
    if len(known) < 2:
        problems.append(f"has {listed(known)} as its only class, but at least 2 are needed to tell apart")
    for part, source in found.parts.items():
        there = occurring(source)
        extra = [name for name in there if name not in known]
        lacking = [name for name in known if name not in there] if found.same_classes and part == "val" else []
        sides = [f"{part} has {listed(extra)}, which train lacks"] if extra else []
        sides += [f"train has {listed(lacking)}, which {part} lacks"] if lacking else []
        if sides:
            problems.append(f"the classes of train and {part} differ: {'; '.join(sides)}")
    return problems


def occurring(source: Source) -> dict[str, int]:
    """The classes that have pictures, and how many."""
    counts = np.bincount(source.labels, minlength=len(source.classes))
    return {name: int(n) for name, n in zip(source.classes, counts, strict=True) if n}


def by_part(source: Source, parts: Iterable[str]) -> dict[str, Source]:
    """A source divided by a word for each of its pictures."""
    words = np.asarray(list(parts))
    names = sorted(set(words.tolist()), key=["train", "val", "test", WHOLE].index)
    if len(names) == 1:
        return {names[0]: source}
    return {name: pick(source, np.flatnonzero(words == name)) for name in names}


def pick(source: Source, indices: np.ndarray) -> Subset:
    """Some pictures of a source; of a part of a source, directly from the whole."""
    if isinstance(source, Subset):
        return Subset(source.source, source.indices[indices])
    return Subset(source, indices)


def part_name(word: str) -> str | None:
    """What a folder, file or column calls a part, in our words, perhaps with a year; None where it names none.

    >>> part_name("Validation"), part_name("val2017"), part_name("cats")
    ('val', 'val', None)
    """
    return PARTS.get(re.sub(r"[-_]?\d+$", "", word.strip().lower()))


def plural(count: int, noun: str) -> str:
    """A number of things.

    >>> plural(1, "picture"), plural(2000, "picture")
    ('1 picture', '2,000 pictures')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(names: Collection[str], limit: int = 5) -> str:
    """A few names, and how many more there are.

    >>> listed(["a", "b", "c"], limit=2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(name) for name in list(names)[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
