"""Pictures in, a class for every one of their pixels out: the one path that `eval`, `predict` and `serve` share.

A picture is resized so that it just covers the size that the model was made for, keeping its aspect, and is seen
through windows of that size; the scores are resized to the picture's own size before they are compared.

c: channels; h, w: height and width; k: classes.
"""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size, check_choice, check_fraction, check_whole
from vitreous.data.image import decode, resize
from vitreous.inference.answers import Throughput
from vitreous.inference.decoders import decoders
from vitreous.inference.device import choose_device, choose_dtype, placed
from vitreous.inference.mask_images import background_of, palette
from vitreous.inference.memory_check import check_memory
from vitreous.inference.model_kind import check_suits
from vitreous.inference.predictor import Input, encoded, many, name_of
from vitreous.model.centre_crop import covering
from vitreous.model.inputs import normalise
from vitreous.model.segmenter import Segmenter, slide

NOT_A_NUMBER = "the model's answer is not a number"
LONGEST = 16  # times its width: a longer picture would take much memory for little, as it is seen window by window
AHEAD = 32  # pictures that threads may be ahead by,
AHEAD_PIXELS = 1 << 25  # and pixels of them, beside the first


@dataclass(frozen=True)
class Segmentation:
    """A picture's pixels and the class of each; or, where it could not be read, why."""

    name: str
    pixels: UInt8[np.ndarray, "h w c"] | None = None
    mask: UInt8[np.ndarray, "h w"] | None = None
    error: str | None = None

    def shares(self, classes: int) -> list[float]:
        """The part of the picture that each class has."""
        if self.mask is None:
            raise ValueError(f"{self.name}: {self.error}")
        return (np.bincount(self.mask.ravel(), minlength=classes) / self.mask.size).tolist()


class SegmentPredictor:
    """A segmenter with all that surrounds it.

    device, precision: as for `Predictor`.
    flip: average the scores with those of the mirror image.
    overlap: how much of a window the next one sees again, from 0 to less than 1.
    batch_size: pictures of one size that are seen together, where they follow each other.
    workers: threads that decode; 0 is whoever asks.

    >>> from vitreous.model.presets import configure
    >>> from vitreous.model.build import build_segmenter
    >>> from vitreous.model.config import SegmenterConfig
    >>> encoder = configure("ViT-Ti/16", num_classes=0, image_size=64, overrides={"depth": 1})
    >>> predictor = SegmentPredictor(build_segmenter(SegmenterConfig(encoder, num_classes=3)), device="cpu")
    >>> [answer] = predictor(np.zeros((50, 170, 3), dtype=np.uint8))
    >>> answer.mask.shape, sum(answer.shares(3))
    ((50, 170), 1.0)
    """

    def __init__(
        self,
        model: Segmenter,
        device: str | torch.device | None = None,
        precision: Literal["fp32", "bf16", "auto"] = "fp32",
        flip: bool = False,
        overlap: float = 0.5,
        batch_size: int = 16,
        workers: int = 4,
    ):
        check_suits(model, "SegmentPredictor")
        check_choice("precision", precision, ("fp32", "bf16", "auto"))
        check_fraction("overlap", overlap)
        check_whole("batch_size", batch_size, 1, 2**20)
        check_whole("workers", workers, 0, 2**10)
        if model.config.channels not in (1, 3):
            raise ValueError(f"the model takes {model.config.channels} channels, but pictures have 1 (grey) or 3 (RGB)")
        self.device = choose_device(device, next(model.parameters()).device)
        check_memory(model.config, self.device)
        self.dtype = choose_dtype(precision, self.device)
        self.model, self.config = placed(model, self.device, self.dtype), model.config
        self.flip, self.overlap, self.batch_size, self.workers = flip, overlap, batch_size, workers
        self.labels = self.config.labels or tuple(f"class {i}" for i in range(self.config.num_classes))
        self.background = background_of(self.labels)
        self.throughput = Throughput(0, 0.0)

    def colours(self) -> list[str]:
        """What each class is drawn in, as `#rrggbb`."""
        return ["#" + bytes(row).hex() for row in palette(self.background)[: self.config.num_classes]]

    def __call__(self, pictures: Input | Iterable[Input]) -> list[Segmentation]:
        """One picture or many; always a list, in the same order."""
        return list(self.stream(pictures))

    def stream(self, pictures: Input | Iterable[Input]) -> Iterator[Segmentation]:
        """Answers as they come, for any number of pictures. A picture that cannot be read harms no other."""
        began, count = time.perf_counter(), 0
        self.model.eval()
        try:
            for group in _alike(self._decoded(many(pictures)), self.batch_size):
                count += len(group)
                names, pixels = [name for name, _ in group], [one for _, one in group if isinstance(one, Tensor)]
                if pixels:
                    yield from self._segment(names, torch.stack(pixels))
                else:
                    yield from (Segmentation(name, error=str(problem)) for name, problem in group)
        finally:
            self.throughput = Throughput(count, time.perf_counter() - began)

    def _segment(self, names: list[str], pixels: UInt8[Tensor, "b c h w"]) -> Iterator[Segmentation]:
        size = (pixels.shape[2], pixels.shape[3])
        if max(size) > LONGEST * min(size):
            problem = f"{size[0]} x {size[1]} pixels: one side is more than {LONGEST} times the other"
            yield from (Segmentation(name, error=problem) for name in names)
            return
        for name, one, scores in zip(names, pixels, self.scores(pixels), strict=True):
            if scores.isfinite().all():
                yield Segmentation(name, one.permute(1, 2, 0).numpy(), best_at(scores, size).cpu().numpy())
            else:
                yield Segmentation(name, error=NOT_A_NUMBER)

    @torch.inference_mode()
    def scores(self, pixels: UInt8[Tensor, "b c h w"]) -> Float[Tensor, "b k sh sw"]:
        """Of every class, at the size at which the model sees the pictures."""
        config = self.config
        seen = covering((pixels.shape[2], pixels.shape[3]), config.image_size)
        small = torch.stack([resize(one, seen, config.preprocessing.interpolation) for one in pixels])
        images = normalise(small.to(self.device).float() / 255, config.preprocessing).to(self.dtype)
        scores = slide(self.model, images, overlap=self.overlap)
        if self.flip:
            scores = scores + slide(self.model, images.flip(-1), overlap=self.overlap).flip(-1)
        return scores

    def _decoded(self, pictures: Iterator[Input]) -> Iterator[tuple[str, Tensor | str]]:
        pending: deque[tuple[str, Future[Tensor | str]]] = deque()
        pool = decoders(self.workers)
        try:
            for index, picture in enumerate(pictures):
                pending.append((name_of(picture, index), pool.submit(self._decode, picture)))
                while len(pending) > AHEAD or (len(pending) > 1 and _pixels_of(pending) > AHEAD_PIXELS):
                    name, future = pending.popleft()
                    yield name, future.result()
            while pending:
                name, future = pending.popleft()
                yield name, future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _decode(self, picture: Input) -> Tensor | str:
        try:
            return decode(encoded(picture), self.config.channels)
        except OSError as error:
            return error.strerror or str(error)
        except (ValueError, MemoryError) as error:
            return str(error) or "there is not enough memory to decode it"


def _alike(pictures: Iterable[tuple[str, Tensor | str]], most: int) -> Iterator[list[tuple[str, Tensor | str]]]:
    """Pictures of one size that follow each other, up to so many; those that could not be read by themselves."""
    group: list[tuple[str, Tensor | str]] = []
    for picture in pictures:
        full = len(group) == most or len(group) * math.prod(_shape(picture)) > AHEAD_PIXELS
        if group and (full or _shape(group[0]) != _shape(picture)):
            yield group
            group = []
        group.append(picture)
    if group:
        yield group


def _pixels_of(pending: Iterable[tuple[str, "Future[Tensor | str]"]]) -> int:
    """Of those that are decoded already."""
    done = (future.result() for _, future in pending if future.done())
    return sum(one.numel() for one in done if isinstance(one, Tensor))


def _shape(picture: tuple[str, Tensor | str]) -> tuple[int, ...]:
    return tuple(picture[1].shape) if isinstance(picture[1], Tensor) else ()


def best_at(scores: Float[Tensor, "k sh sw"], size: Size) -> UInt8[Tensor, "h w"]:
    """The class with the highest score at every pixel of a picture of this size.

    Class by class: the scores of a hundred classes at the size of a photograph would take gigabytes.

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
