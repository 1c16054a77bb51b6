"""Rows of (image, label, split) as a data set: shared by tables, Parquet files and shards."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np

from vitreous.data.sources.base import Source
from vitreous.data.split import FoundData, by_split

# From the rows to keep, their labels and the classes to a source.
Make = Callable[[list[int], np.ndarray, tuple[str, ...]], Source]


@dataclass(frozen=True)
class Rows:
    """A label and a split for each image; `classes` if the format names them."""

    labels: list[str]  # empty text for a missing label
    splits: list[str]
    classes: tuple[str, ...] | None = None


def from_rows(name: str, rows: Rows, make: Make, problems: list[str], skip: Collection[int] = ()) -> FoundData:
    """Make splits from the rows that have a label and are not in `skip`."""
    notes: list[str] = []
    bare = {row for row, label in enumerate(rows.labels) if not label}
    keep = [row for row in range(len(rows.labels)) if row not in bare and row not in skip]
    if bare and {rows.splits[row] for row in bare} == {"test"} and "test" not in {rows.splits[row] for row in keep}:
        notes.append("the test split has no labels and is ignored")
    elif bare:
        first = ", ".join(str(row + 1) for row in sorted(bare)[:3])
        problems = [*problems, f"{len(bare):,} of {len(rows.labels):,} rows have no label, the first: {first}"]
    if not keep:
        raise ValueError(f"{name}: {problems[0] if problems else 'there are no labelled images'}")
    labels = [rows.labels[row] for row in keep]
    classes = rows.classes or order_labels(labels)
    index = {label: i for i, label in enumerate(classes)}
    numbers = np.array([index[label] for label in labels], np.int64)
    if unused := len(classes) - len(set(labels)):
        notes.append(f"{unused:,} of {len(classes):,} classes have no images")
    source = make(keep, numbers, classes)
    return FoundData(name, by_split(source, (rows.splits[row] for row in keep)), notes, problems)


def order_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """The distinct labels in order: by value if all are whole numbers, otherwise as text.

    >>> order_labels(["10", "9", "10"]), order_labels(["b", "a"])
    (('9', '10'), ('a', 'b'))
    """
    distinct = set(labels)
    if all(label.removeprefix("-").isdecimal() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))


def cell_text(value: object) -> str:
    """A cell as text: empty for a missing value, and without '.0' for a whole number stored as a float.

    >>> cell_text(3.0), cell_text(None), cell_text(" cat ")
    ('3', '', 'cat')
    """
    if isinstance(value, list | tuple | dict | np.ndarray):
        raise ValueError(f"a cell holds {str(value)[:60]}, but must hold one path or one label")
    if value is None or value != value:  # a NaN differs from itself
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def class_labels(values: Iterable[object], names: tuple[str, ...] | None) -> list[str]:
    """Labels as text. Numbers are indices into names, if given; hidden labels, below 0, are empty.

    >>> class_labels([1, "cat", -1], ("cat", "dog")), class_labels([1, 2.0], None)
    (['dog', 'cat', ''], ['1', '2'])
    """
    seen: dict[str, str] = {}
    labels = []
    for value in values:
        text = cell_text(value)
        key = text if names is None or isinstance(value, str) else f"index {text}"  # "1" may be the name of class 0
        if key not in seen:
            seen[key] = text if names is None or key in names or not text else _class_at(text, names)
        labels.append(seen[key])
    return labels


def _class_at(index: str, names: tuple[str, ...]) -> str:
    if not index.removeprefix("-").isdecimal() or int(index) >= len(names):
        raise ValueError(f"a label is {index!r}, but there are {len(names)} classes: {', '.join(names[:5])}, ...")
    return names[int(index)] if int(index) >= 0 else ""
