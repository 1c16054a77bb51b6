"""`vitreous.predict` and `vitreous.embed`: predictions and features of image files, folders and globs."""

import glob
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import BadValue, path_suggestion
from vitreous.common.text import plural
from vitreous.data.masks.layouts import mask_files
from vitreous.data.sources.base import is_image_file, readable_extensions
from vitreous.inference.engine import (
    Columns,
    Embedding,
    Images,
    MultiLabelPrediction,
    NumberPrediction,
    Precision,
    Prediction,
)
from vitreous.inference.predictor import Embedder, Segmentation, predictor_for
from vitreous.model.protocol import Model
from vitreous.weights.load import load

R = TypeVar("R", Prediction, MultiLabelPrediction, NumberPrediction, Embedding, Segmentation)


class Results(Generic[R]):
    """Results in image order, computed batch by batch on demand. They can be iterated only once.

    Attributes:
        paths: Image files, if the images were given as files, folders or globs.
        columns: Columns of a table of the results. None if the results are masks.
        images: Number of images processed so far.
        errors: Number of images that could not be read.
    """

    def __init__(self, engine: Any, results: Iterator[R], paths: Sequence[Path], columns: Columns | None):
        self.engine, self.paths, self.columns = engine, paths, columns
        self.images = self.errors = 0
        self._results: Iterator[R] = results

    def __iter__(self) -> Iterator[R]:
        for result in self._results:
            self.images += 1
            self.errors += result.error is not None
            yield result


class Embeddings(Results[Embedding]):
    """Embeddings in image order."""

    def array(self) -> tuple[list[str], Float[Tensor, "n d"]]:
        """Return the names and features of all readable images."""
        rows = [(result.name, result.vector) for result in self if result.vector is not None]
        empty = torch.zeros(0, self.engine.config.feature_width)
        return [name for name, _ in rows], torch.stack([vector for _, vector in rows]) if rows else empty


def predict(
    model: Model | str | os.PathLike[str],
    images: Images | Sequence[str | os.PathLike[str]],
    *,
    top: int | None = None,
    image_size: int | Sequence[int] | None = None,
    flip: bool = False,
    batch_size: int = 32,
    device: str | torch.device | None = "auto",
    precision: Precision = "fp32",
    decode: Literal["exact", "fast"] = "exact",
    coverage: float | None = None,
) -> Results[Prediction] | Results[MultiLabelPrediction] | Results[NumberPrediction] | Results[Segmentation]:
    """Predict labels for images, numbers if the model is a regression model, or masks if it is a segmenter.

    Args:
        model: A model or a checkpoint (folder, weight file, catalog name, hf-hub:owner/name).
        images: Paths of files or folders, globs, or images (encoded bytes, uint8 arrays or Pillow images).
        top: Number of labels per image (default 5). Only for classifiers.
        image_size: Input size. Default: the image size of the model. Position embeddings are resampled.
        flip: Average the predictions for each image and its mirror image.
        decode: "fast" decodes large JPEGs at a reduced scale, which can change results. Not supported for segmenters.
        coverage: Also return label sets, which contain the true label with this probability. Needs a calibrated model.

    >>> import vitreous, numpy as np
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    >>> [prediction] = vitreous.predict(model, np.zeros((48, 64, 3), dtype=np.uint8), device="cpu", top=2)
    >>> len(prediction.predictions)
    2
    """
    stream, paths = _open_images(images)
    model = open_model(model, image_size)
    options: dict[str, Any] = {"batch_size": batch_size, "precision": precision, "flip": flip, "decode": decode}
    predictor = predictor_for(model, device, top=top, coverage=coverage, **options)
    results: Iterator[Any] = predictor.stream(stream)
    return Results(predictor, results, paths, predictor.columns)


def embed(
    model: Model | str | os.PathLike[str],
    images: Images | Sequence[str | os.PathLike[str]],
    *,
    image_size: int | Sequence[int] | None = None,
    flip: bool = False,
    batch_size: int = 32,
    device: str | torch.device | None = "auto",
    precision: Precision = "fp32",
    decode: Literal["exact", "fast"] = "exact",
) -> Embeddings:
    """Compute the pooled features before the head for each image. See `predict` for the arguments.

    >>> import vitreous, numpy as np
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    >>> names, vectors = vitreous.embed(model, np.zeros((2, 48, 64, 3), dtype=np.uint8), device="cpu").array()
    >>> names, vectors.shape
    (['image 0', 'image 1'], torch.Size([2, 256]))
    """
    stream, paths = _open_images(images)
    encoder = open_encoder(model, image_size)
    predictor = Embedder(encoder, device, batch_size, precision, flip, decode=decode)
    return Embeddings(predictor, predictor.stream_embeddings(stream), paths, Columns(width=predictor.width))


def open_model(model: Model | str | os.PathLike[str], image_size: int | Sequence[int] | None = None) -> Model:
    """Return the given model, or load it from a checkpoint path. Resize the model to `image_size` if it is given."""
    if isinstance(model, str | os.PathLike):
        return load(model, image_size=image_size or None)  # type: ignore[arg-type]
    return model.resized(image_size) if image_size else model  # type: ignore[arg-type]


def open_encoder(model: Model | str | os.PathLike[str], image_size: int | Sequence[int] | None = None) -> Model:
    """Return the encoder of a model or checkpoint."""
    return open_model(model, image_size).backbone


def _open_images(images: Any) -> tuple[Images, Sequence[Path]]:
    """Return the images and their paths. Files, folders and globs are expanded; other inputs have no paths."""
    if isinstance(images, str | os.PathLike):
        images = [images]
    if isinstance(images, list | tuple) and all(isinstance(image, str | os.PathLike) for image in images):
        paths = expand([os.fspath(image) for image in images])
        return paths, paths
    return images, ()


# ---- Image paths -----------------------------------------------------------------------------------------------------


class MasksSkipped(UserWarning):
    """Warning that the masks in an image folder were skipped."""


def expand(arguments: Sequence[str]) -> list[Path]:
    """Return the image files for the arguments, in order and without duplicates.

    Files are accepted with any extension. Folders and globs (`*`, `?`, `[...]`, and `**` for any depth) expand
    recursively to sorted image files. Masks in a segmentation data set are skipped with a warning. `-` reads paths from
    standard input, separated by newlines or NUL bytes (as in `find -print0`).
    """
    found: dict[str, Path] = {}
    for argument in arguments:
        for word in _read_list() if argument == "-" else [argument]:
            for path in _expand_one(word, literal=argument == "-"):
                found.setdefault(os.path.abspath(path), path)
    if not arguments:
        raise BadValue("no images given: pass files, folders, globs, or - to read paths from standard input")
    if not found:
        words = ", ".join(map(repr, arguments))
        extensions = ", ".join(f".{name}" for name in sorted(readable_extensions()))
        hint = "" if "heic" in readable_extensions() else '; for HEIC, pip install "vitreous[heic]"'
        raise ValueError(f"no images found in {words}; supported extensions are {extensions}{hint}")
    return list(found.values())


def _read_list() -> list[str]:
    text = os.fsdecode(sys.stdin.buffer.read())
    lines = text.split("\0" if "\0" in text else "\n")
    return [line for line in (line.rstrip("\r\n") for line in lines) if line.strip()]


def _expand_one(argument: str, literal: bool) -> Iterable[Path]:
    path = Path(argument).expanduser()
    if path.is_dir():
        return _without_masks(path)
    if path.exists():
        return [path]
    if literal or not glob.has_magic(argument):
        raise ValueError(f"file or folder {argument!r} not found{path_suggestion(path)}")
    matches = [Path(match) for match in sorted(glob.glob(os.path.expanduser(argument), recursive=True))]
    if not matches:
        raise ValueError(f"no files match {argument!r}")
    images = [path for match in matches for path in (_below(match) if match.is_dir() else [match])]
    return [path for path in images if is_image_file(path.name)]


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


def _below(folder: Path) -> list[Path]:
    """Return all images in a folder and its subfolders. Links are followed; hidden folders are skipped."""
    files, seen = [], set()
    for here, folders, names in os.walk(folder, followlinks=True):
        if (real := os.path.realpath(here)) in seen:  # a symlink cycle
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__MACOSX")))
        files += [Path(here, name) for name in names if is_image_file(name)]
    return sorted(files)
