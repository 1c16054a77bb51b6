"""Prediction of masks.

An image is resized to cover the model's input size without changing its aspect ratio, and is processed in sliding
windows of the input size. The scores are resized to the original image size before the argmax.

b: batch; c: channels; h, w: height and width; sh, sw: height and width of the scores; k: classes.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size, check_fraction, fail
from vitreous.data.image import decode, resize
from vitreous.data.sources.base import StoredImage
from vitreous.inference.engine import NOT_A_NUMBER, Engine, Images, Precision
from vitreous.inference.mask_images import background_of
from vitreous.inference.predictions import Segmentation
from vitreous.model.base_config import Task
from vitreous.model.centre_crop import covering
from vitreous.model.config import SegmenterConfig
from vitreous.model.protocol import Model
from vitreous.model.segmenter import Segmenter, slide

LONGEST = 16  # maximum aspect ratio, because elongated images need many windows and a lot of memory


class SegmentPredictor(Engine):
    """Predicts masks of images with a segmenter.

    Args:
        device, precision: See `Predictor`.
        flip: Average scores over the image and its mirror image.
        overlap: Overlap of neighbouring windows, as a fraction from 0 (inclusive) to 1 (exclusive).
        batch_size: Maximum batch size. Only consecutive images of the same size are batched.
        workers: Number of decoding threads. 0 decodes in the calling thread.
    """

    tasks, takes = ("segment",), "a segmenter"
    max_pixels = 1 << 25
    max_serving_batch = 1  # at full size, the scores of several images may not fit in memory
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
        if precision == "int8":
            fail("precision", precision, "fp32, bf16 or auto for a segmenter; for int8, use vitreous.export")
        super().__init__(model, device, precision, batch_size, workers)
        self.flip, self.overlap, self.background = flip, overlap, background_of(self.labels)

    def answers(self) -> dict[Task, Callable[[Images], Iterator[Segmentation]]]:
        return {"segment": self.stream}

    def __call__(self, images: Images) -> list[Segmentation]:
        """Segment one or more images, in order."""
        return list(self.stream(images))

    def stream(self, images: Images) -> Iterator[Segmentation]:
        """Yield the segmentation of each image."""
        return self.run(images, self._segment, Segmentation)

    def decode(self, image: StoredImage) -> UInt8[Tensor, "c h w"]:
        return decode(image, self.config.channels, value_range=self.config.preprocessing.value_range)

    def _segment(self, pixels: UInt8[Tensor, "b c h w"]) -> list[Any]:
        size = (pixels.shape[2], pixels.shape[3])
        if max(size) > LONGEST * min(size):
            return [f"the aspect ratio of {size[0]} x {size[1]} pixels exceeds {LONGEST}"] * len(pixels)
        return [
            (image.permute(1, 2, 0).numpy(), best_at(scores, size).cpu().numpy(), self.labels)
            if scores.isfinite().all()
            else NOT_A_NUMBER
            for image, scores in zip(pixels, self.scores(pixels), strict=True)
        ]

    @torch.inference_mode()
    def scores(self, pixels: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b k sh sw"]:
        """Compute the class scores at the working resolution (`sh` x `sw`), which the sliding windows cover."""
        config = self.config
        seen = covering((pixels.shape[2], pixels.shape[3]), config.image_size)
        images = self.input(torch.stack([resize(one, seen, config.preprocessing.interpolation) for one in pixels]))
        scores = slide(self.model, images, overlap=self.overlap)
        if self.flip:
            scores = scores + slide(self.model, images.flip(-1), overlap=self.overlap).flip(-1)
        return scores


def best_at(scores: Float[Tensor, "k sh sw"], size: Size) -> UInt8[Tensor, "h w"]:
    """Resize scores to `size` and return the class with the highest score at each pixel."""
    if tuple(scores.shape[1:]) == size:
        return scores.argmax(0).to(torch.uint8)
    highest = torch.full(size, -torch.inf, device=scores.device)
    best = torch.zeros(size, dtype=torch.uint8, device=scores.device)
    for index, plane in enumerate(scores):  # full-size scores of all classes could take gigabytes
        resized = F.interpolate(plane[None, None].float(), size, mode="bilinear", align_corners=False)[0, 0]
        better = resized > highest
        highest, best = torch.where(better, resized, highest), torch.where(better, index, best)
    return best
