"""Sources of labelled images, read by index from memory, from files, or from byte ranges of larger files.

A label applies to a whole image, a mask to its pixels. Masks are optional; sources with masks list their classes in
`mask_classes`. Sources keep no files open, so they can be copied to any number of workers. Data set readers return a
`FoundData`, which has a source for each split and a list of problems.
"""

import copy
import functools
import os
import re
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import features

from vitreous.common.text import listed
from vitreous.common.untrusted_files import open_regular, read_regular

# An encoded file (JPEG, PNG, ...) or uint8 pixels [height, width, channels].
StoredImage = bytes | np.ndarray

SPLITS = ("train", "val", "test")
ALIASES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
UNSPLIT = "all"  # images without a split
EXTENSIONS = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])
HEIF = frozenset(["heic", "heif"])  # read with the pillow-heif plugin, if it is installed


class Source(ABC):
    """Images, labels and names, accessed by index."""

    classes: tuple[str, ...]
    labels: np.ndarray  # int64 [n], indices into classes
    mask_classes: tuple[str, ...] = ()  # empty if there are no masks
    mask_ids: tuple[int, ...] = ()  # id of each mask class in the mask files
    targets: np.ndarray | None = None  # [n, k], instead of labels: bool per class, or float64 numbers named by classes

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def image(self, index: int) -> StoredImage:
        """Return the image as stored. The loader's workers decode it."""

    @abstractmethod
    def name(self, index: int) -> str:
        """Return a name for reports and errors: a relative path, a shard member, or e.g. `digits[17]`."""

    def label(self, index: int) -> str:
        """Return the class of an image or, if it has targets, their text."""
        if self.targets is None:
            return self.classes[self.labels[index]]
        pairs = zip(self.classes, self.targets[index].tolist(), strict=True)
        return ", ".join(
            f"{name} {value}" if value is not True else name for name, value in pairs if value is not False
        )

    def mask(self, index: int) -> np.ndarray:
        """Return the decoded mask of the upright image: uint8 [h, w], indices into mask_classes or IGNORED."""
        raise ValueError(f"{self.name(index)} has no mask: this data set has only image labels")


@dataclass(frozen=True)
class DataSet:
    """Train, val and test splits of a data set. All splits have the same classes in the same order."""

    name: str
    train: Source
    val: Source
    test: Source | None
    note: str  # summary of the splits for the user
    val_drawn: bool = False  # True if val was drawn at random from the train images
    unlabelled: Source | None = None  # more training images, whose labels are unknown
    unlabelled_is_train: bool = False  # True if the unlabelled images are those of train

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def mask_classes(self) -> tuple[str, ...]:
        return self.train.mask_classes


class ArraySource(Source):
    """Images of equal size in memory."""

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
    """Images in separate files, with paths that are absolute or relative to `root`."""

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
    """Images stored as byte ranges of large files, e.g. tar members or table rows."""

    files: Sequence[Path]
    spans: np.ndarray  # int64 [n, 3]: file index, offset, number of bytes
    names: Sequence[str]
    labels: np.ndarray
    classes: tuple[str, ...]

    def image(self, index: int) -> StoredImage:
        file, start, size = self.spans[index].tolist()
        with open_regular(self.files[file]) as stream:
            stream.seek(start)
            data = stream.read(size)
        if len(data) != size:
            raise OSError(f"{self.files[file].name} ends inside this image; the file is truncated or was modified")
        return data

    def name(self, index: int) -> str:
        return self.names[index]


class Subset(Source):
    """Selected images of another source, with their masks."""

    def __init__(self, source: Source, indices: np.ndarray):
        self.source, self.indices = source, indices
        self.labels, self.classes = source.labels[indices], source.classes
        self.mask_classes, self.mask_ids = source.mask_classes, source.mask_ids
        self.targets = None if source.targets is None else source.targets[indices]

    def image(self, index: int) -> StoredImage:
        return self.source.image(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def mask(self, index: int) -> np.ndarray:
        return self.source.mask(int(self.indices[index]))


def without_labels(source: Source) -> Source:
    """Return the images of a source without their labels, all in one class without a name."""
    if isinstance(source, Subset):
        return Subset(without_labels(source.source), source.indices)
    bare = copy.copy(source)
    bare.labels, bare.classes, bare.targets = np.zeros_like(source.labels), ("",), None
    return bare


@functools.cache
def readable_extensions() -> frozenset[str]:
    """Return the image extensions that this installation can read."""
    avif = {"avif"} if features.check("avif") else set()
    return EXTENSIONS | avif | (HEIF if find_spec("pillow_heif") is not None else set())


def supported_extensions() -> str:
    """List the image extensions that this installation can read, for an error message."""
    return f"supported: {' '.join(f'.{name}' for name in sorted(readable_extensions()))}"


def extension(name: str) -> str:
    """Return the lower-case extension of a file name without its dot."""
    return os.path.splitext(name)[1][1:].lower()


def is_image_file(name: str) -> bool:
    """Return True if a file name has a readable image extension and is not hidden."""
    return not name.startswith(".") and extension(name) in readable_extensions()


def missing_files(root: Path, paths: Sequence[str]) -> set[int]:
    """Return the indices of paths that do not exist. Listing each folder once is faster than one stat per file."""
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
    """Images and problems found by a reader. All splits share one class list, the union of their classes."""

    name: str
    splits: dict[str, Source]  # keys: "train", "val" and "test", or "all"
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)  # truncated files; training only warns about them
    same_classes: bool = False  # True if every class of train must be in val
    labelled: bool = True  # False if images have no classes


def label_problems(found: FoundData) -> list[str]:
    """List the problems with splits and classes that prevent training."""
    if UNSPLIT not in found.splits and "train" not in found.splits:
        return [f"no train split, only {' and '.join(found.splits)}" if found.splits else "no train split"]
    if not found.labelled or any(source.targets is not None for source in found.splits.values()):
        return []
    known = class_counts(found.splits[UNSPLIT if UNSPLIT in found.splits else "train"])
    problems = []
    if len(known) < 2:
        problems.append(f"only one class, {listed(known)}; at least 2 are required")
    for split, source in found.splits.items():
        present = class_counts(source)
        extra = [name for name in present if name not in known]
        missing = [name for name in known if name not in present] if found.same_classes and split == "val" else []
        differences = [f"{split} has {listed(extra)}, which train lacks"] if extra else []
        differences += [f"train has {listed(missing)}, which {split} lacks"] if missing else []
        if differences:
            problems.append(f"the classes of train and {split} differ: {'; '.join(differences)}")
    return problems


def class_counts(source: Source) -> dict[str, int]:
    """Count the images per class, omitting empty classes."""
    if source.targets is not None:
        counts = source.targets.sum(0)
    else:
        counts = np.bincount(source.labels, minlength=len(source.classes))
    return {name: int(n) for name, n in zip(source.classes, counts, strict=True) if n}


def by_split(source: Source, splits: Iterable[str]) -> dict[str, Source]:
    """Divide a source into splits, given the split of each image."""
    words = np.asarray(list(splits))
    names = sorted(set(words.tolist()), key=[*SPLITS, UNSPLIT].index)
    if len(names) == 1:
        return {names[0]: source}
    return {name: pick(source, np.flatnonzero(words == name)) for name in names}


def pick(source: Source, indices: np.ndarray) -> Subset:
    """Select images from a source without nesting subsets."""
    if isinstance(source, Subset):
        return Subset(source.source, source.indices[indices])
    return Subset(source, indices)


def split_name(word: str) -> str | None:
    """Return the split for a name such as "Training" or "val2017", or None for other names."""
    word = re.sub(r"[-_]?\d+$", "", word.strip().lower())
    return word if word in SPLITS else ALIASES.get(word)


def split_folders(folders: Sequence[str], where: object) -> dict[str, str]:
    """Map folder names to splits, ignoring other folders. Raise ValueError if two folders map to the same split."""
    splits = {folder: split for folder in folders if (split := split_name(folder))}
    if doubled := [folder for folder, split in splits.items() if list(splits.values()).count(split) > 1]:
        raise ValueError(f"{where} has several folders for the same split: {listed(doubled)}; keep one")
    return splits


# ---- Rows of (image, label, split), shared by tables, Parquet files and shards ---------------------------------------


@dataclass(frozen=True)
class Rows:
    """Label and split of each image."""

    labels: list[str]  # empty string for a missing label
    splits: list[str]
    classes: tuple[str, ...] | None = None  # class names, if the format stores them
    labelled: ClassVar[bool] = True

    @property
    def bare(self) -> Collection[int]:
        """Rows without a label."""
        return {row for row, label in enumerate(self.labels) if not label}

    def source(self, keep: list[int], make: "Make") -> tuple[Source, list[str]]:
        """Return the source of some rows, and notes about them."""
        labels = [self.labels[row] for row in keep]
        classes = self.classes or order_labels(labels)
        index = {label: i for i, label in enumerate(classes)}
        unused = len(classes) - len(set(labels))
        notes = [f"{unused:,} of {len(classes):,} classes have no images"] if unused else []
        return make(keep, np.array([index[label] for label in labels], np.int64), classes), notes


@dataclass(frozen=True)
class TargetRows:
    """Targets and split of each image."""

    classes: tuple[str, ...]
    values: np.ndarray  # as `Source.targets`
    splits: list[str]
    bare: Collection[int]  # rows without targets
    notes: list[str]
    labelled: bool = True  # False if the targets are numbers

    def source(self, keep: list[int], make: "Make") -> tuple[Source, list[str]]:
        source = make(keep, np.zeros(len(keep), np.int64), self.classes)
        source.targets = self.values[keep]
        return source, self.notes


# Function (rows to keep, their labels, classes) -> source.
Make = Callable[[list[int], np.ndarray, tuple[str, ...]], Source]


def from_rows(
    name: str, rows: Rows | TargetRows, make: Make, problems: list[str], skip: Collection[int] = ()
) -> FoundData:
    """Build the splits from all labelled rows that are not in `skip`."""
    notes: list[str] = []
    bare, count = rows.bare, len(rows.splits)
    keep = [row for row in range(count) if row not in bare and row not in skip]
    if bare and {rows.splits[row] for row in bare} == {"test"} and "test" not in {rows.splits[row] for row in keep}:
        notes.append("the test split has no labels and is ignored")
    elif bare:
        first = ", ".join(str(row + 1) for row in sorted(bare)[:3])
        problems = [*problems, f"{len(bare):,} of {count:,} rows have no label; first rows: {first}"]
    if not keep:
        raise ValueError(f"{name}: {problems[0] if problems else 'no labelled images'}")
    source, about = rows.source(keep, make)
    splits = by_split(source, (rows.splits[row] for row in keep))
    return FoundData(name, splits, notes + about, problems, labelled=rows.labelled)


def order_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Sort the distinct labels, numerically if all are integers."""
    distinct = set(labels)
    if all(label.removeprefix("-").isdecimal() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))


def cell_text(value: object) -> str:
    """Convert a table cell to text. A missing value becomes "". An integer stored as a float loses its '.0'."""
    if isinstance(value, list | tuple | dict | np.ndarray):
        raise ValueError(
            f"each cell must contain a single path or label, got {str(value)[:60]}; for several labels per "
            "image, use --task multilabel"
        )
    if value is None or value != value:  # None or NaN
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def class_labels(values: Iterable[object], names: tuple[str, ...] | None) -> list[str]:
    """Convert labels to text. If `names` is given, labels are indices into it, and negative indices become ""."""
    seen: dict[str, str] = {}
    labels = []
    for value in values:
        text = cell_text(value)
        key = text if names is None or isinstance(value, str) else f"index {text}"  # "1" may be a class name
        if key not in seen:
            seen[key] = text if names is None or key in names or not text else _class_at(text, names)
        labels.append(seen[key])
    return labels


def _class_at(index: str, names: tuple[str, ...]) -> str:
    if not index.removeprefix("-").isdecimal() or int(index) >= len(names):
        raise ValueError(f"label {index!r} is not one of the {len(names)} classes {listed(names)}")
    return names[int(index)] if int(index) >= 0 else ""
