"""Images in, a class for each pixel out.

An image is resized to just cover the model's input size, keeping its aspect ratio, and passed through the model in
sliding windows of that size; the scores are resized to the image's own size before classes are compared.

c: channels; h, w: height and width; k: classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size, check_fraction
from vitreous.data.image import decode, resize
from vitreous.data.sources.base import StoredImage
from vitreous.inference.engine import NOT_A_NUMBER, Engine, Images, Precision
from vitreous.inference.mask_images import background_of, palette
from vitreous.model.centre_crop import covering
from vitreous.model.config import SegmenterConfig
from vitreous.model.protocol import Model
from vitreous.model.segmenter import Segmenter, slide

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

    >>> from vitreous.model.presets import configure
    >>> from vitreous.model.build import build_segmenter
    >>> from vitreous.model.config import SegmenterConfig
    >>> encoder = configure("ViT-Ti/16", num_classes=0, image_size=64, overrides={"depth": 1})
    >>> predictor = SegmentPredictor(build_segmenter(SegmenterConfig(encoder, num_classes=3)), device="cpu")
    >>> [result] = predictor(np.zeros((50, 170, 3), dtype=np.uint8))
    >>> result.mask.shape, sum(result.fractions(3))
    ((50, 170), 1.0)
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

    >>> best_at(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]), (2, 4)).tolist()
    [[0, 0, 1, 1], [0, 0, 1, 1]]
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
