"""Images in, labels and probabilities or features out.

An image is preprocessed as the checkpoint's `config.preprocessing` says, so a result depends neither on the other
images of a batch nor on their order.

b: batch; c: channels; h, w: height and width; d: width of the features.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import check_choice, check_whole, fail
from vitreous.common.threads import cores
from vitreous.data.image import fit
from vitreous.data.sources.base import StoredImage
from vitreous.inference.engine import NOT_A_NUMBER, Engine, Images, Precision, class_scores
from vitreous.inference.predictions import Embedding, Prediction, top_labels
from vitreous.model.options import ClassToken
from vitreous.model.protocol import Model

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
