"""`vitreous.predict` and `vitreous.embed`: the verbs of the command line as functions."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import fail
from vitreous.inference.engine import Engine, Images, Precision
from vitreous.inference.image_paths import expand
from vitreous.inference.predictions import Embedding, Prediction
from vitreous.inference.predictor import Predictor
from vitreous.inference.segment_predictor import Segmentation, SegmentPredictor
from vitreous.model.protocol import Model
from vitreous.weights.load import load

R = TypeVar("R", Prediction, Embedding, Segmentation)
E = TypeVar("E", bound=Engine)
TOP = 5  # labels per image


class Results(Generic[R]):
    """Results in the order of the images. Iterate once: each batch is computed when its results are read.

    paths: the files, if the images were given as files, folders or globs.
    images, errors: the number of images read so far, and of those that could not be read.
    """

    def __init__(self, engine: Engine, results: Iterator[R], paths: Sequence[Path]):
        self.engine, self.paths = engine, paths
        self.images = self.errors = 0
        self._results: Iterator[R] = results

    def __iter__(self) -> Iterator[R]:
        for result in self._results:
            self.images += 1
            self.errors += result.error is not None
            yield result


class Embeddings(Results[Embedding]):
    """Embeddings in the order of the images."""

    def array(self) -> tuple[list[str], Float[Tensor, "n d"]]:
        """Names and features of the images that could be read."""
        found = [(one.name, one.vector) for one in self if one.vector is not None]
        empty = torch.zeros(0, self.engine.config.feature_width)
        return [name for name, _ in found], torch.stack([vector for _, vector in found]) if found else empty


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
) -> Results[Prediction] | Results[Segmentation]:
    """Predict labels for images, or a mask for each if the model is a segmenter.

    model: a model, or a checkpoint: a folder, a file of another system, or hf-hub:owner/name.
    images: files, folders or globs; or encoded files, uint8 arrays or Pillow images.
    top: labels per image, 5 by default; not for a segmenter.
    image_size: another size than the model's; positions are resampled.
    flip: average with the mirror image.
    decode: "fast" decodes large JPEGs at a reduced scale, which changes some results; not for a segmenter.

    >>> import vitreous, numpy as np
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    >>> [prediction] = vitreous.predict(model, np.zeros((48, 64, 3), dtype=np.uint8), device="cpu", top=2)
    >>> len(prediction.predictions)
    2
    """
    stream, paths = _open_images(images)
    model = open_model(model, image_size)
    if model.config.task == "segment":
        if top is not None:
            fail("top", top, "omitted for a segmenter, which reports the fraction of each class")
        if decode != "exact":
            fail("decode", decode, "exact for a segmenter, which needs every pixel")
        segmenter = SegmentPredictor(model, device, precision, flip, batch_size=batch_size)
        return Results(segmenter, segmenter.stream(stream), paths)
    predictor = Predictor(model, device, batch_size, precision, TOP if top is None else top, flip, decode=decode)
    return Results(predictor, predictor.stream(stream), paths)


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
    """Compute the pooled features before the head for each image. Arguments are those of `predict`.

    >>> import vitreous, numpy as np
    >>> model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    >>> names, vectors = vitreous.embed(model, np.zeros((2, 48, 64, 3), dtype=np.uint8), device="cpu").array()
    >>> names, vectors.shape
    (['image 0', 'image 1'], torch.Size([2, 256]))
    """
    stream, paths = _open_images(images)
    encoder = open_encoder(model, image_size)
    predictor = Predictor(encoder, device, batch_size, precision, flip=flip, decode=decode)
    return Embeddings(predictor, predictor.stream_embeddings(stream), paths)


def open_model(model: Model | str | os.PathLike[str], image_size: int | Sequence[int] | None = None) -> Model:
    """A model as it is, or the model of a checkpoint; built for `image_size` if given."""
    if isinstance(model, str | os.PathLike):
        return load(model, image_size=image_size or None)  # type: ignore[arg-type]
    return model.resized(image_size) if image_size else model  # type: ignore[arg-type]


def open_encoder(model: Model | str | os.PathLike[str], image_size: int | Sequence[int] | None = None) -> Model:
    """As `open_model`; for a segmenter its encoder."""
    return open_model(model, image_size).backbone


def _open_images(images: Any) -> tuple[Images, Sequence[Path]]:
    """Expand names of files, folders and globs; other inputs have no paths."""
    if isinstance(images, str | os.PathLike):
        images = [images]
    if isinstance(images, list | tuple) and all(isinstance(image, str | os.PathLike) for image in images):
        paths = expand([os.fspath(image) for image in images])
        return paths, paths
    return images, ()
