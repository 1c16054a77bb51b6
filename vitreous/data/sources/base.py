"""Sources: labelled images that are read by index, from memory, from files, or from ranges of bytes in bigger files.

A label belongs to an image, a mask to its pixels. Masks are optional: a source that has them lists their classes in
`mask_classes`. No file stays open between two reads, so a source can be copied to any number of workers.
"""

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitreous.common.untrusted_files import open_regular, read_regular

# An encoded file (JPEG, PNG, ...), or pixels [height, width, channels] of uint8.
StoredImage = bytes | np.ndarray

EXTENSIONS = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])


class Source(ABC):
    """Images, their labels and their names, read by index."""

    classes: tuple[str, ...]
    labels: np.ndarray  # int64 [n], indices into classes
    mask_classes: tuple[str, ...] = ()  # classes of pixels; empty without masks
    mask_ids: tuple[int, ...] = ()  # the id of each of these classes in the files; empty without masks

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

    def image(self, index: int) -> StoredImage:
        return self.source.image(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def mask(self, index: int) -> np.ndarray:
        return self.source.mask(int(self.indices[index]))


def is_image_file(name: str) -> bool:
    """True for the name of an image file by its extension, in any case; hidden files are not images.

    >>> is_image_file("IMG_1.JPG"), is_image_file("notes.txt"), is_image_file("._IMG_1.JPG")
    (True, False, False)
    """
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
