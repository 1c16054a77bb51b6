"""Shards: parts of a large set of images, each of which one worker processes on its own.

Images are files, members of tar files, or rows of Parquet files. `find_shards` divides them without opening images, so
that a shard is a short description that can be sent to another machine with the same file system. Every image is in
exactly one shard, and the shards depend only on the files and on the shard size.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from vitreous.common.checks import check_whole
from vitreous.common.threads import in_threads
from vitreous.data.sources.base import FileSource, Source, SpanSource, StoredImage, is_image_file
from vitreous.data.sources.shards import list_members
from vitreous.data.sources.tables import image_batches, row_group_sizes
from vitreous.inference.engine import SourceImage

CONTAINERS = (".tar", ".parquet")  # files with many images
IMAGE_BYTES = 100_000  # assumed size of an image in a tar file
SHARDS, SMALLEST, LARGEST = 64, 64, 10_000  # automatic shard size: number of shards, limits of the size
STAT_THREADS = 16  # network file systems answer many requests at once


@dataclass(frozen=True)
class ImageFiles:
    """A shard of image files."""

    folder: str  # base of relative paths
    paths: tuple[str, ...]

    @property
    def files(self) -> Sequence[str]:
        return self.paths

    def images(self) -> Iterator[SourceImage]:
        source = FileSource(Path(self.folder), self.paths, _no_labels(len(self.paths)), ())
        return (SourceImage(source, index) for index in range(len(source)))


@dataclass(frozen=True)
class TarMembers:
    """A shard of a tar file: the image files that start in part `part` of `parts` equal parts of the tar."""

    folder: str
    path: str
    part: int = 0
    parts: int = 1

    @property
    def files(self) -> Sequence[str]:
        return [self.path]

    def images(self) -> Iterator[SourceImage]:
        file = Path(self.folder, self.path)
        try:
            size = file.stat().st_size
            members, damage = list_members(file)
        except (OSError, ValueError) as error:
            if self.part == 0:
                yield _failure(self.path, error)
            return
        mine = [
            member
            for member in members
            if min(member.start * self.parts // size, self.parts - 1) == self.part
            and is_image_file(os.path.basename(member.name))
        ]
        spans = np.array([(0, member.start, member.size) for member in mine], np.int64).reshape(-1, 3)
        names = [f"{self.path}/{member.name}" for member in mine]
        source = SpanSource([file], spans, names, _no_labels(len(mine)), ())
        yield from (SourceImage(source, index) for index in range(len(source)))
        if damage and self.part == self.parts - 1:
            yield _failure(self.path, ValueError(damage))


@dataclass(frozen=True)
class ParquetRows:
    """A shard of a Parquet file: some of its row groups. `first_row` is the number of the first row in the file."""

    folder: str
    path: str
    row_groups: tuple[int, ...]
    first_row: int = 0

    @property
    def files(self) -> Sequence[str]:
        return [self.path]

    def images(self) -> Iterator[SourceImage]:
        row = self.first_row
        try:
            for batch in image_batches(Path(self.folder, self.path), self.row_groups):
                source = _Cells([f"{self.path}[{row + i}]" for i in range(len(batch))], batch)
                yield from (SourceImage(source, index) for index in range(len(batch)))
                row += len(batch)
        except (OSError, ValueError) as error:  # damaged data
            yield _failure(f"{self.path}[{row}...]", error)


Shard = ImageFiles | TarMembers | ParquetRows


class _Cells(Source):
    """Images in memory. An image is an exception if it could not be read."""

    def __init__(self, names: Sequence[str], cells: Sequence[bytes | Exception | None]):
        self.names, self.cells = names, cells
        self.labels, self.classes = _no_labels(len(names)), ()

    def image(self, index: int) -> StoredImage:
        cell = self.cells[index]
        if isinstance(cell, Exception):
            raise cell
        if cell is None:
            raise ValueError("the cell is empty")
        return cell

    def name(self, index: int) -> str:
        return self.names[index]


def _failure(name: str, error: Exception) -> SourceImage:
    """Return an image that cannot be read, so that the results contain an error for it."""
    return SourceImage(_Cells([name], [error]), 0)


def _no_labels(count: int) -> np.ndarray:
    return np.zeros(count, np.int64)


# ---- Division into shards --------------------------------------------------------------------------------------------


def is_container(path: str | os.PathLike[str]) -> bool:
    """Return True for a tar or Parquet file."""
    return os.fspath(path).lower().endswith(CONTAINERS)


def find_shards(paths: Sequence[Path], size: int | None = None) -> list[Shard]:
    """Divide image files, tar files and Parquet files into shards of about `size` images, in order.

    A shard of image files has `size` images, except the last before another kind of file. Tar files are divided by
    their number of bytes, and Parquet files at row groups. By default, there are about 64 shards, with 64 to 10,000
    images each.
    """
    containers = [path for path in paths if is_container(path)]
    groups = {str(path): row_group_sizes(path) for path in containers if path.suffix.lower() == ".parquet"}
    tars = {str(path): path.stat().st_size for path in containers if str(path) not in groups}
    if size is None:
        count = len(paths) - len(containers)
        count += sum(map(sum, groups.values())) + sum(tars.values()) // IMAGE_BYTES
        size = min(max(-(-count // SHARDS), SMALLEST), LARGEST)
    check_whole("shard_size", size, 1, 10**9)
    folder, shards, files = os.getcwd(), list[Shard](), list[str]()

    def end_files() -> None:
        shards.extend(ImageFiles(folder, tuple(files[i : i + size])) for i in range(0, len(files), size))
        files.clear()

    for path in map(str, paths):
        if path in tars:
            end_files()
            parts = max(round(tars[path] / (size * IMAGE_BYTES)), 1)
            shards += [TarMembers(folder, path, part, parts) for part in range(parts)]
        elif path in groups:
            end_files()
            shards += _parquet_shards(folder, path, groups[path], size)
        else:
            files.append(path)
    end_files()
    return shards


def _parquet_shards(folder: str, path: str, groups: Sequence[int], size: int) -> list[Shard]:
    """Divide a Parquet file into shards of consecutive row groups with at least `size` rows, except the last."""
    shards: list[Shard] = []
    first = start = rows = 0
    for index, count in enumerate(groups):
        rows += count
        if rows >= size or index == len(groups) - 1:
            shards.append(ParquetRows(folder, path, tuple(range(first, index + 1)), start))
            first, start, rows = index + 1, start + rows, 0
    return shards


# ---- Changes of the files --------------------------------------------------------------------------------------------


def fingerprint(shards: Sequence[Shard]) -> str:
    """Return a hash of the names, the size and the modification time of all files, and of their division."""
    total = hashlib.sha256()
    for digest in in_threads(_shard_digest, shards, STAT_THREADS):
        total.update(digest)
    return total.hexdigest()


def _shard_digest(shard: Shard) -> bytes:
    digest = hashlib.sha256(repr(replace(shard, folder="")).encode())
    for file in shard.files:
        try:
            found = os.stat(os.path.join(shard.folder, file))
            digest.update(f"{found.st_size} {found.st_mtime_ns} {stat.S_ISREG(found.st_mode)}\n".encode())
        except OSError:
            digest.update(b"missing\n")
    return digest.digest()
