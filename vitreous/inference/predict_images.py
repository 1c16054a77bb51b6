"""Parts of `vitreous.predict` and `vitreous.embed`: the options, the model, the image files and the results."""

import glob
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import BadValue, path_suggestion
from vitreous.common.text import plural
from vitreous.data.masks.layouts import mask_files
from vitreous.data.sources.base import is_image_file, readable_extensions, supported_extensions
from vitreous.data.sources.tables import SUFFIXES as TABLES
from vitreous.data.sources.tables import image_paths
from vitreous.inference.engine import Images, Precision
from vitreous.inference.predictions import (
    Columns,
    Embedding,
    MultiLabelPrediction,
    NumberPrediction,
    Prediction,
    Segmentation,
)
from vitreous.inference.predictor import Embedder, predictor_for
from vitreous.inference.shards import is_container
from vitreous.model.protocol import Model
from vitreous.weights.load import load

R = TypeVar("R", Prediction, MultiLabelPrediction, NumberPrediction, Embedding, Segmentation)


@dataclass(frozen=True)
class Written:
    """Result files of a folder.

    Attributes:
        folder: The folder, with one Parquet file per shard.
        images: Number of images in all files.
        errors: Number of images that could not be read.
        shards: Number of files.
        skipped: Number of files that existed before.
        images_per_second: Throughput of the other files.
    """

    folder: Path
    images: int
    errors: int
    shards: int
    skipped: int
    images_per_second: float


class Results(Generic[R]):
    """Results in image order, computed batch by batch on demand. They can be iterated or written only once.

    Attributes:
        paths: Image files, if the images were given as files, folders or globs.
        columns: Columns of a table of the results. None if the results are masks.
        images: Number of images processed so far.
        errors: Number of images that could not be read.
    """

    def __init__(
        self, engine: Any, results: Iterator[R], paths: Sequence[Path], columns: Columns | None, where: str = ""
    ):
        self.engine, self.paths, self.columns, self._where = engine, paths, columns, where
        self.images = self.errors = 0
        self._results: Iterator[R] = results
        self.write_shards: Callable[[Path, int | None], Written] | None = None  # set by `compute`

    @property
    def where(self) -> str:
        """Description of the device and backend, or of the machines, that compute the results."""
        return self._where or self.engine.where

    def __iter__(self) -> Iterator[R]:
        for result in self._results:
            self.images += 1
            self.errors += result.error is not None
            yield result

    def write(self, folder: str | os.PathLike[str], *, shard_size: int | None = None) -> Written:
        """Compute the results and write one Parquet file per shard (`part-00000-of-00064.parquet`) to a folder.

        If the folder has files of an earlier, aborted run with the same model, options and images, these shards are
        skipped. The files of any other run are never mixed with new ones. Needs images in files, and not a segmenter.

        Args:
            folder: A new or empty folder, or the folder of an aborted run.
            shard_size: Images per shard. The default is 1/64 of the images, from 64 to 10,000.
        """
        if self.write_shards is None:
            raise ValueError("only predictions and embeddings of image files, tar files or tables can be written")
        return self.write_shards(Path(folder), shard_size)


class Embeddings(Results[Embedding]):
    """Embeddings in image order."""

    def array(self) -> tuple[list[str], Float[Tensor, "n d"]]:
        """Return the names and features of all readable images."""
        rows = [(result.name, result.vector) for result in self if result.vector is not None]
        empty = torch.zeros(0, self.engine.config.feature_width)
        return [name for name, _ in rows], torch.stack([vector for _, vector in rows]) if rows else empty


@dataclass(frozen=True)
class Job:
    """Predictions or embeddings with certain options. A job can be sent to another process. See `vitreous.predict`."""

    kind: Literal["predict", "embed"]
    top: int | None = None
    flip: bool = False
    batch_size: int = 32
    device: str | torch.device | None = "auto"
    precision: Precision = "fp32"
    decode: Literal["exact", "fast"] = "exact"
    coverage: float | None = None
    merge_tokens: int = 0


class Worker:
    """A model on a device that computes the results of a job. The constructor checks the options of the job.

    Attributes:
        engine: The predictor.
        columns: Columns of a table of the results. None if the results are masks.
    """

    def __init__(self, job: Job, model: Model, decode_threads: int | None = None):
        options: dict[str, Any] = {"batch_size": job.batch_size, "precision": job.precision, "flip": job.flip}
        options |= {"decode": job.decode, "workers": decode_threads, "merge_tokens": job.merge_tokens}
        options["backend"] = "auto"
        self.engine: Any
        self.columns: Columns | None
        if job.kind == "embed":
            self.engine = Embedder(model, job.device, **options)
            self.columns, self._stream = Columns(width=self.engine.width), self.engine.stream_embeddings
        else:
            self.engine = predictor_for(model, job.device, top=job.top, coverage=job.coverage, **options)
            self.columns, self._stream = self.engine.columns, self.engine.stream

    def results(self, images: Images, paths: Sequence[Path] = ()) -> Results[Any]:
        """Return one result per image. `paths` are the files of the images, if known."""
        return self.as_results(self._stream(images), paths)

    def as_results(self, stream: Iterator[Any], paths: Sequence[Path], where: str = "") -> Results[Any]:
        """Return results of this job. `where`: Description of the machines, if they were computed elsewhere."""
        kind = Embeddings if self.columns is not None and self.columns.width else Results
        return kind(self.engine, stream, paths, self.columns, where)


def open_model(model: Model | str | os.PathLike[str], image_size: int | Sequence[int] | None = None) -> Model:
    """Return the given model, or load it from a checkpoint path. Resize the model to `image_size` if it is given."""
    if isinstance(model, str | os.PathLike):
        return load(model, image_size=image_size or None)  # type: ignore[arg-type]
    return model.resized(image_size) if image_size else model  # type: ignore[arg-type]


def open_encoder(model: Model | str | os.PathLike[str], image_size: int | Sequence[int] | None = None) -> Model:
    """Return the encoder of a model or checkpoint."""
    return open_model(model, image_size).backbone


def find_files(images: Any) -> list[Path] | None:
    """Expand files, folders and globs (see `expand`). Return None for images in memory."""
    if isinstance(images, str | os.PathLike):
        images = [images]
    if isinstance(images, list | tuple) and all(isinstance(image, str | os.PathLike) for image in images):
        return expand([os.fspath(image) for image in images])
    return None


# ---- Image paths -----------------------------------------------------------------------------------------------------


class MasksSkipped(UserWarning):
    """Warning that the masks in an image folder were skipped."""


def expand(arguments: Sequence[str]) -> list[Path]:
    """Return the image files, tar files and Parquet files for the arguments, in order and without duplicates.

    Files are accepted with any extension. Folders and globs (`*`, `?`, `[...]`, and `**` for any depth) expand
    recursively to sorted image files. A folder without images expands to its tar files or, if there are none, to its
    Parquet files. A glob finds such files only by their extension, as in `*.tar`. A table of paths (.csv, .tsv, .jsonl,
    .ndjson or .parquet) expands to the files in its image column. Masks in a segmentation data set are skipped with a
    warning. `-` reads paths from standard input, separated by newlines or NUL bytes (as in `find -print0`).
    """
    found: dict[str, Path] = {}
    for argument in arguments:
        for word in _read_list() if argument == "-" else [argument]:
            for path in _expand_one(word, literal=argument == "-"):
                found.setdefault(os.path.abspath(path), path)
    if not arguments:
        raise BadValue(
            "no images given: after the checkpoint, pass files, folders, globs, or - to read paths from standard input"
        )
    if not found:
        words = ", ".join(map(repr, arguments))
        hint = "" if "heic" in readable_extensions() else '; for HEIC, pip install "vitreous[heic]"'
        raise ValueError(f"no images found in {words} ({supported_extensions()}{hint})")
    return list(found.values())


def _read_list() -> list[str]:
    text = os.fsdecode(sys.stdin.buffer.read())
    lines = text.split("\0" if "\0" in text else "\n")
    return [line for line in (line.rstrip("\r\n") for line in lines) if line.strip()]


def _expand_one(argument: str, literal: bool) -> Iterable[Path]:
    path = Path(argument).expanduser()
    if path.is_dir():
        return _without_masks(path) or _below(path, is_tar) or _below(path, is_parquet)
    if path.exists():
        return _listed_files(path)
    if literal or not glob.has_magic(argument):
        raise ValueError(f"file or folder {argument!r} not found{path_suggestion(path)}")
    matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(argument), recursive=True))]
    if not matches:
        raise ValueError(f"no files match {argument!r}")
    files = [path for match in matches for path in (_below(match) if match.is_dir() else [match])]
    wanted = Path(argument).suffix.lower() if is_container(argument) else None
    return [
        found
        for path in files
        for found in ([path] if is_image_file(path.name) else _listed_files(path) if path.suffix == wanted else [])
    ]


def _listed_files(path: Path) -> list[Path]:
    """Return the files that a table lists, or the path itself if it is an image or contains the images."""
    listed = image_paths(path) if path.suffix.lower() in TABLES else None
    return [path] if listed is None else listed


def _without_masks(folder: Path) -> list[Path]:
    """Return the images in a folder. If the folder is a segmentation data set, the masks are skipped."""
    files = _below(folder)
    masks = {folder / path for path in mask_files(folder)}
    images = [path for path in files if path not in masks]
    if len(images) == len(files):
        return files
    message = f"{plural(len(files) - len(images), 'mask')} skipped in segmentation data set {folder}"
    warnings.warn(MasksSkipped(message), stacklevel=2)
    return images


def is_tar(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(".tar")


def is_parquet(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(".parquet")


def _below(folder: Path, wanted: Callable[[str], bool] = is_image_file) -> list[Path]:
    """Return all wanted files in a folder and its subfolders. Links are followed; hidden folders are skipped."""
    files, seen = [], set()
    for here, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(here)) in seen:  # a symlink cycle
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        files += [Path(here, name) for name in names if wanted(name)]
    return sorted(files)
