"""Sources of labelled images that are read by index: from memory, from files, or from ranges of bytes in bigger files.

A label belongs to an image, a mask to its pixels. Masks are optional: a source that has them lists their classes in
`mask_classes`. No file stays open between two reads, so a source can be copied to any number of workers. A reader of a
data set returns a `FoundData` with the sources of its splits and every problem with their labels.
"""

import os
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from vitreous.common.text import listed
from vitreous.common.untrusted_files import open_regular, read_regular

# An encoded file (JPEG, PNG, ...), or pixels [height, width, channels] of uint8.
StoredImage = bytes | np.ndarray

SPLITS = ("train", "val", "test")
ALIASES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
UNSPLIT = "all"  # the split of images that are not divided yet
EXTENSIONS = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])


class Source(ABC):
    """Images, their labels and their names, read by index."""

    classes: tuple[str, ...]
    labels: np.ndarray  # int64 [n], indices into classes
    mask_classes: tuple[str, ...] = ()  # classes of pixels; empty without masks
    mask_ids: tuple[int, ...] = ()  # the id of each of these classes in the files; empty without masks
    resident_bytes: int = 0  # as many bytes of pixels may live on the device, instead of being read by workers

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def image(self, index: int) -> StoredImage:
        """Return the image as stored; the loader's workers decode it."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Name for reports and errors: a path below the data's root, a member of a shard, `digits[17]`."""

    def mask(self, index: int) -> np.ndarray:
        """Class of every pixel: uint8 [h, w] of the upright image's size, indices into mask_classes or IGNORED.

        Decoded, unlike an image: only the source can map stored ids to classes.
        """
        raise ValueError(f"{self.name(index)} has no mask: this data set has labels for images, not for pixels")


@dataclass(frozen=True)
class DataSet:
    """The splits of a data set, which share the same classes in the same order."""

    name: str
    train: Source
    val: Source
    test: Source | None
    note: str  # sizes and origin of the splits, for the user
    val_drawn: bool = False  # True if val was drawn from the images here, by seed and fraction

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def mask_classes(self) -> tuple[str, ...]:
        return self.train.mask_classes


class ArraySource(Source):
    """Images of one size in memory."""

    resident_bytes = 2 << 30

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], name: str):
        self.images = images  # uint8 [n, h, w, c]
        self.labels, self.classes = labels.astype(np.int64), classes
        self._name = name

    def image(self, index: int) -> StoredImage:
        return self.images[index]

    def name(self, index: int) -> str:
        return f"{self._name}[{index}]"


@dataclass(eq=False)
class FileSource(Source):
    """One file per image, by its path below a root (or an absolute one)."""

    root: Path
    paths: Sequence[str]
    labels: np.ndarray
    classes: tuple[str, ...]

    def image(self, index: int) -> StoredImage:
        return read_regular(self.root / self.paths[index])

    def name(self, index: int) -> str:
        return self.paths[index]


@dataclass(eq=False)
class SpanSource(Source):
    """Images that are ranges of bytes in a few big files: members of tars, rows of tables."""

    files: Sequence[Path]
    spans: np.ndarray  # int64 [n, 3]: index of the file, offset, number of bytes
    names: Sequence[str]
    labels: np.ndarray
    classes: tuple[str, ...]

    def image(self, index: int) -> StoredImage:
        file, start, size = self.spans[index].tolist()
        with open_regular(self.files[file]) as stream:
            stream.seek(start)
            data = stream.read(size)
        if len(data) != size:
            raise OSError(f"{self.files[file].name} ends inside this image: it is truncated, or has changed")
        return data

    def name(self, index: int) -> str:
        return self.names[index]


class Subset(Source):
    """Some images of another source, in a given order, with their masks if it has any."""

    def __init__(self, source: Source, indices: np.ndarray):
        self.source, self.indices = source, indices
        self.labels, self.classes = source.labels[indices], source.classes
        self.mask_classes, self.mask_ids = source.mask_classes, source.mask_ids
        self.resident_bytes = source.resident_bytes

    def image(self, index: int) -> StoredImage:
        return self.source.image(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def mask(self, index: int) -> np.ndarray:
        return self.source.mask(int(self.indices[index]))


def is_image_file(name: str) -> bool:
    """True for the name of an image file by its extension, in any case; hidden files are not images."""
    return not name.startswith(".") and os.path.splitext(name)[1][1:].lower() in EXTENSIONS


def missing_files(root: Path, paths: Sequence[str]) -> set[int]:
    """Indices of the paths that do not exist; each folder is listed once, which is faster than a stat per file."""
    rows = defaultdict(list)
    for row, path in enumerate(paths):
        rows[os.path.dirname(path)].append(row)
    missing: set[int] = set()
    for folder, inside in rows.items():
        try:
            names = set(os.listdir(root / folder))
        except (OSError, ValueError):
            names = set()
        missing.update(row for row in inside if os.path.basename(paths[row]) not in names)
    return missing


# ---- Splits ----------------------------------------------------------------------------------------------------------


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
    """The split that a folder, file or column name means, perhaps with a year; None if it means none."""
    word = re.sub(r"[-_]?\d+$", "", word.strip().lower())
    return word if word in SPLITS else ALIASES.get(word)


def split_folders(folders: Sequence[str], where: object) -> dict[str, str]:
    """The split that each of the folders means, for those that mean one; two folders of one split are an error."""
    splits = {folder: split for folder in folders if (split := split_name(folder))}
    if doubled := [folder for folder, split in splits.items() if list(splits.values()).count(split) > 1]:
        raise ValueError(f"{where} has {listed(doubled)}, which mean the same split: keep one")
    return splits


# ---- Rows of (image, label, split), which tables, Parquet files and shards have in common ----------------------------


@dataclass(frozen=True)
class Rows:
    """A label and a split for each image; `classes` if the format names them."""

    labels: list[str]  # empty text for a missing label
    splits: list[str]
    classes: tuple[str, ...] | None = None


# From the rows to keep, their labels and the classes to a source.
Make = Callable[[list[int], np.ndarray, tuple[str, ...]], Source]


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
    """The distinct labels in order: by value if all are whole numbers, otherwise as text."""
    distinct = set(labels)
    if all(label.removeprefix("-").isdecimal() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))


def cell_text(value: object) -> str:
    """A cell as text: empty for a missing value, and without '.0' for a whole number stored as a float."""
    if isinstance(value, list | tuple | dict | np.ndarray):
        raise ValueError(f"a cell holds {str(value)[:60]}, but must hold one path or one label")
    if value is None or value != value:  # a NaN differs from itself
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def class_labels(values: Iterable[object], names: tuple[str, ...] | None) -> list[str]:
    """Labels as text. Numbers are indices into names, if given; hidden labels, below 0, are empty."""
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
