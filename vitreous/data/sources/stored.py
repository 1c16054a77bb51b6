"""Pictures on disk, read when they are asked for: a file each, or a range of bytes in a bigger file.

Nothing stays open between two reads, so a source can be copied to any number of workers.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitreous.common.regular_files import open_regular, read_regular
from vitreous.data.sources.base import Picture, Source

EXTENSIONS = frozenset(["jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm"])


def is_picture(name: str) -> bool:
    """By its ending, whatever the case; hidden files are none.

    >>> is_picture("IMG_1.JPG"), is_picture("notes.txt"), is_picture("._IMG_1.JPG")
    (True, False, False)
    """
    return not name.startswith(".") and os.path.splitext(name)[1][1:].lower() in EXTENSIONS


def missing_files(root: Path, paths: Sequence[str]) -> set[int]:
    """Which of the paths are not there. Each folder is listed once: quicker than a question for every file."""
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


class FileSource(Source):
    """A file for each picture, by its path below a root (or an absolute one)."""

    def __init__(self, root: Path, paths: Sequence[str], labels: np.ndarray, classes: tuple[str, ...]):
        self.root, self.paths = root, paths
        self.labels, self.classes = labels.astype(np.int64), classes

    def picture(self, index: int) -> Picture:
        return read_regular(self.root / self.paths[index])

    def name(self, index: int) -> str:
        return self.paths[index]


class SpanSource(Source):
    """Pictures that lie one after another in a few big files: members of tars, rows of tables."""

    def __init__(
        self,
        files: Sequence[Path],
        spans: np.ndarray,
        names: Sequence[str],
        labels: np.ndarray,
        classes: tuple[str, ...],
    ):
        self.files, self.names = files, names
        self.spans = spans  # int64 [n, 3]: which file, where it begins, how many bytes
        self.labels, self.classes = labels.astype(np.int64), classes

    def picture(self, index: int) -> Picture:
        file, start, size = self.spans[index].tolist()
        with open_regular(self.files[file]) as stream:
            stream.seek(start)
            data = stream.read(size)
        if len(data) != size:
            raise OSError(f"{self.files[file].name} ends inside of it: it was cut short, or has changed meanwhile")
        return data

    def name(self, index: int) -> str:
        return self.names[index]
