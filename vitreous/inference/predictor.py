"""Images in; labels and probabilities, features, or a class for each pixel out.

An image is preprocessed as the checkpoint's `config.preprocessing` says, so a result depends neither on the other
images of a batch nor on their order.

b: batch; c: channels; h, w: height and width; d: width of the features; k: classes.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size, check_choice, check_fraction, check_whole, fail
from vitreous.common.threads import cores
from vitreous.data.image import decode, fit, resize
from vitreous.data.sources.base import StoredImage
from vitreous.inference.engine import (
    NOT_A_NUMBER,
    Embedding,
    Engine,
    Images,
    Precision,
    Prediction,
    class_scores,
)
from vitreous.inference.mask_images import background_of, palette
from vitreous.model.centre_crop import covering
from vitreous.model.config import SegmenterConfig
from vitreous.model.options import ClassToken
from vitreous.model.protocol import Model
from vitreous.model.segmenter import Segmenter, slide
from vitreous.model.top_labels import top_labels

# ---- Labels and features ---------------------------------------------------------------------------------------------

FeatureKind = Literal["pooled", "class+mean"]
FEATURE_KINDS: tuple[FeatureKind, ...] = ("pooled", "class+mean")


class Predictor(Engine):
    """A classifier or encoder with its preprocessing, labels and decoding threads.

    device: "auto" is CUDA, else Apple's MPS, else the CPU; or a torch device. None keeps a model that is on an
        accelerator there, and is "auto" for a model on the CPU.
    precision: "fp32"; "bf16"; "auto" is bf16 on a GPU that supports it, else fp32.
    flip: average the probabilities (or features) of the image and its mirror image.
    compile: torch.compile the model; batches are then padded to one size, so that it compiles once.
    workers: decoding threads; 0 decodes in the calling thread, None is one for each core, at most 16.
    decode: "exact"; "fast" decodes JPEGs much larger than needed at a reduced scale, which changes some results.

    The caller's model is never moved or converted: the predictor copies it if device or dtype differ. Otherwise both
    share all tensors, and every run sets the model to evaluation mode.

    >>> import numpy as np
    >>> from vitreous.model.presets import create
    >>> predictor = Predictor(create("ViT-Lite-6/4", num_classes=3), device="cpu", top=1)
    >>> [prediction] = predictor(np.zeros((48, 64, 3), dtype=np.uint8))
    >>> prediction.name, len(prediction.predictions)
    ('image 0', 1)
    """

    tasks, takes = ("classify", "embed"), "a classifier or encoder"

    def __init__(
        self,
        model: Model,
        device: str | torch.device | None = None,
        batch_size: int = 32,
        precision: Precision = "fp32",
        top: int = 5,
        flip: bool = False,
        compile: bool = False,
        workers: int | None = None,
        decode: Literal["exact", "fast"] = "exact",
    ):
        check_whole("top", top, 1, 2**31)
        check_choice("decode", decode, ("exact", "fast"))
        super().__init__(model, device, precision, batch_size, min(cores(), 16) if workers is None else workers)
        self.top, self.flip, self.compiled = min(top, self.config.num_classes), flip, compile
        self.fast_decode = decode == "fast"
        self._score: Callable[[Tensor], Tensor] = torch.compile(self._forward) if compile else self._forward
        self._pool: Callable[[Tensor], Tensor] = torch.compile(self._pooled) if compile else self._pooled

    @property
    def width(self) -> int:
        """The length of an embedding."""
        return self.config.feature_width

    def __call__(self, images: Images) -> list[Prediction]:
        """Predict for one image or many (an array of four dimensions is many); returns a list in the same order."""
        return list(self.stream(images))

    def stream(self, images: Images) -> Iterator[Prediction]:
        """Yield predictions for any number of images, with at most three batches in memory."""
        self._check_head()
        return self.run(images, self._predictions, Prediction)

    def stream_embeddings(self, images: Images, kind: FeatureKind = "pooled") -> Iterator[Embedding]:
        """Yield the features of each image.

        kind: "pooled" is the input of the head, pooled as the model does; "class+mean" is the class token concatenated
            with the mean of the patches, as DINOv2 is probed.
        """
        features = self._features_of(kind)

        def step(pixels: Tensor) -> list[Any]:
            images = self.input(pixels)
            vectors = features(images).float()
            vectors = (vectors + features(images.flip(-1)).float()) / 2 if self.flip else vectors
            return _finite_rows(vectors[: len(pixels)])

        return self.run(images, step, Embedding)

    def stream_logits(self, images: Images) -> Iterator[Embedding]:
        """Yield the scores of every class for each image; with `flip`, log probabilities."""
        self._check_head()
        return self.run(images, lambda pixels: _finite_rows(self._scores(pixels)), Embedding)

    def logits(self, images: Images) -> Float[Tensor, "n classes"]:
        """The scores of every class, float32, on the CPU. All images must be readable.

        With `flip`, they are the logarithms of the averaged probabilities.
        """
        return _stacked(self.stream_logits(images), self.config.num_classes)

    def embed(self, images: Images) -> Float[Tensor, "n d"]:
        """The pooled features before the head, float32, on the CPU. All images must be readable.

        With `flip`, they are averaged with those of the mirror image.
        """
        return _stacked(self.stream_embeddings(images), self.width)

    def decode(self, picture: StoredImage) -> UInt8[Tensor, "c h w"]:
        config = self.config
        return fit(picture, config.image_size, config.preprocessing, config.channels, self.fast_decode)

    def input(self, pixels: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b2 c h w"]:
        if self.compiled:  # pad to one size
            pixels = torch.cat([pixels, pixels.new_zeros(self.batch_size - len(pixels), *pixels.shape[1:])])
        return super().input(pixels)

    def _predictions(self, pixels: Tensor) -> list[Any]:
        scores = self._scores(pixels)
        probabilities = (scores if self.flip else scores.log_softmax(dim=-1)).exp()
        best = top_labels(probabilities, self.labels, self.top)
        return [(labels,) if math.isfinite(labels[0].probability) else NOT_A_NUMBER for labels in best]

    def _scores(self, pixels: Tensor) -> Tensor:
        return class_scores(self._score, self.input(pixels), self.flip)[: len(pixels)]

    def _forward(self, images: Tensor) -> Tensor:
        return self.model(images)

    def _pooled(self, images: Tensor) -> Tensor:
        return self.model.pooled(images)

    def _class_and_mean(self, images: Tensor) -> Tensor:
        features = self.model.features(images)
        return torch.cat([features.prefix[:, 0], features.patches.mean(dim=1)], dim=1)

    def _features_of(self, kind: FeatureKind) -> Callable[[Tensor], Tensor]:
        check_choice("features", kind, FEATURE_KINDS)
        if kind == "pooled":
            return self._pool
        if not isinstance(self.config.pool, ClassToken):  # a class token that no head reads was never trained
            fail("features", kind, f"'pooled' for a model that pools by {type(self.config.pool).__name__}")
        return self._class_and_mean

    def _check_head(self) -> None:
        if not self.config.num_classes:
            raise ValueError("the model has no head to classify with (num_classes is 0): use embed")


def _finite_rows(rows: Float[Tensor, "b n"]) -> list[Any]:
    with torch.inference_mode(False):
        rows = rows.cpu().clone()  # ordinary tensors, which autograd can use
    return [
        (row,) if finite else NOT_A_NUMBER
        for row, finite in zip(rows, rows.isfinite().all(dim=1).tolist(), strict=True)
    ]


def _stacked(results: Iterator[Embedding], width: int) -> Float[Tensor, "n d"]:
    rows = []
    for result in results:
        if result.vector is None:
            raise ValueError(f"{result.name}: {result.error}")
        rows.append(result.vector)
    return torch.stack(rows) if rows else torch.zeros(0, width)


# ---- Masks -----------------------------------------------------------------------------------------------------------
# An image is resized to just cover the model's input size, keeping its aspect ratio, and passed through the model in
# sliding windows of that size; the scores are resized to the image's own size before classes are compared.

LONGEST = 16  # times the short side: longer images need much memory, as they are processed window by window


@dataclass(frozen=True)
class Segmentation:
    """Pixels of an image and the class of each; or the error if it could not be read."""

    name: str
    pixels: UInt8[np.ndarray, "h w c"] | None = None
    mask: UInt8[np.ndarray, "h w"] | None = None
    error: str | None = None

    def fractions(self, classes: int) -> list[float]:
        """The fraction of the image's pixels that each class covers."""
        if self.mask is None:
            raise ValueError(f"{self.name}: {self.error}")
        return (np.bincount(self.mask.ravel(), minlength=classes) / self.mask.size).tolist()


class SegmentPredictor(Engine):
    """A segmenter with its preprocessing, labels and decoding threads.

    device, precision: as for `Predictor`.
    flip: average the scores with those of the mirror image.
    overlap: fraction of a window that the next one overlaps, from 0 to less than 1.
    batch_size: maximum number of consecutive images of one size that form a batch.
    workers: decoding threads; 0 decodes in the calling thread.
    """

    tasks, takes = ("segment",), "a segmenter"
    max_pixels = 1 << 25
    model: Segmenter
    config: SegmenterConfig

    def __init__(
        self,
        model: Model,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        flip: bool = False,
        overlap: float = 0.5,
        batch_size: int = 16,
        workers: int = 4,
    ):
        check_fraction("overlap", overlap)
        super().__init__(model, device, precision, batch_size, workers)
        self.flip, self.overlap, self.background = flip, overlap, background_of(self.labels)

    def colours(self) -> list[str]:
        """The colour of each class, as `#rrggbb`."""
        return ["#" + bytes(row).hex() for row in palette(self.background)[: self.config.num_classes]]

    def __call__(self, images: Images) -> list[Segmentation]:
        """Segment one image or many; returns a list in the same order."""
        return list(self.stream(images))

    def stream(self, images: Images) -> Iterator[Segmentation]:
        """Yield the mask of each image, for any number of images."""
        return self.run(images, self._segment, Segmentation)

    def decode(self, picture: StoredImage) -> UInt8[Tensor, "c h w"]:
        return decode(picture, self.config.channels)

    def _segment(self, pixels: UInt8[Tensor, "b c h w"]) -> list[Any]:
        size = (pixels.shape[2], pixels.shape[3])
        if max(size) > LONGEST * min(size):
            return [f"{size[0]} x {size[1]} pixels: one side is more than {LONGEST} times the other"] * len(pixels)
        return [
            (image.permute(1, 2, 0).numpy(), best_at(scores, size).cpu().numpy())
            if scores.isfinite().all()
            else NOT_A_NUMBER
            for image, scores in zip(pixels, self.scores(pixels), strict=True)
        ]

    @torch.inference_mode()
    def scores(self, pixels: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b k sh sw"]:
        """Scores of every class, at the size at which the model sees the images."""
        config = self.config
        seen = covering((pixels.shape[2], pixels.shape[3]), config.image_size)
        images = self.input(torch.stack([resize(one, seen, config.preprocessing.interpolation) for one in pixels]))
        scores = slide(self.model, images, overlap=self.overlap)
        if self.flip:
            scores = scores + slide(self.model, images.flip(-1), overlap=self.overlap).flip(-1)
        return scores


def best_at(scores: Float[Tensor, "k sh sw"], size: Size) -> UInt8[Tensor, "h w"]:
    """The class with the highest score at each pixel of an image of this size.

    Works class by class: the scores of a hundred classes at the size of a photograph would take gigabytes.
    """
    if tuple(scores.shape[1:]) == size:
        return scores.argmax(0).to(torch.uint8)
    highest = torch.full(size, -torch.inf, device=scores.device)
    best = torch.zeros(size, dtype=torch.uint8, device=scores.device)
    for index, plane in enumerate(scores):
        resized = F.interpolate(plane[None, None].float(), size, mode="bilinear", align_corners=False)[0, 0]
        better = resized > highest
        highest, best = torch.where(better, resized, highest), torch.where(better, index, best)
    return best
