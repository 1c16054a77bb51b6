"""What a worker does: pictures by their indices, decoded and cropped, as one batch of uint8; and their masks, if asked.

A picture and its mask are cut by the same random numbers, which are a pure function of (seed, epoch, key).

b: batch; c: channels; h, w: height and width.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from vitreous.common.checks import Size
from vitreous.common.text import one_line
from vitreous.data.augment.config import Augmentation
from vitreous.data.image.decode import UnreadableImage, crop_mask, fit, fit_mask, random_resized_crop
from vitreous.data.rng import Draws
from vitreous.data.sources.base import Picture, Source
from vitreous.model.options import IGNORED, Preprocessing


class Batch(NamedTuple):
    """One process's share of a step. Indices and keys stay on the CPU, where drawing from them waits for no device."""

    images: UInt8[Tensor, "b c h w"]
    labels: Int[Tensor, "b"]  # -1 where the picture, or its mask, could not be read
    indices: Int[Tensor, "b"]
    keys: Int[Tensor, "b"]  # what randomness is drawn for: the index, and which repetition of it
    epoch: int
    problems: list[str]  # pictures that could not be read, by name and reason
    masks: UInt8[Tensor, "b h w"] | None = None  # indices into the source's mask_classes, or IGNORED


class Request(NamedTuple):
    """The pictures of one batch."""

    epoch: int
    indices: Int[Tensor, "b"]
    keys: Int[Tensor, "b"]


class Reader(Dataset[Batch]):
    """Turns a request into a batch, in a worker. Without augmentation, pictures are fitted as in evaluation.

    exact_from: the first epoch whose JPEGs are decoded exactly; before it, large ones come at a reduced scale.
    """

    def __init__(
        self,
        source: Source,
        size: Size,
        channels: int,
        preprocessing: Preprocessing,
        augmentation: Augmentation | None = None,
        seed: int = 0,
        masks: bool = False,
        exact_from: int = 0,
    ):
        if masks and not source.mask_classes:
            raise ValueError("masks are asked for, but this data set has none: it has labels for pictures only")
        self.source, self.size, self.channels, self.masks = source, size, channels, masks
        self.preprocessing, self.augmentation, self.seed = preprocessing, augmentation, seed
        self.exact_from = exact_from

    def __getitem__(self, request: Request) -> Batch:
        epoch, indices, keys = request
        numbers = Draws(self.seed, epoch, keys).uniform("crop", 4).tolist()
        # Channels last in memory, as pictures are decoded: no transposition for each of them.
        images = torch.zeros(len(indices), *self.size, self.channels, dtype=torch.uint8).permute(0, 3, 1, 2)
        labels = torch.from_numpy(self.source.labels[indices.numpy()])
        masks = torch.full((len(indices), *self.size), IGNORED, dtype=torch.uint8) if self.masks else None
        problems = []
        fast = epoch < self.exact_from
        for i, index in enumerate(indices.tolist()):
            try:
                picture = self.source.picture(index)
                images[i] = self._read(picture, numbers[i], fast)
                if masks is not None:
                    masks[i] = self._read_mask(index, picture, numbers[i], fast)
            except (UnreadableImage, OSError) as problem:
                labels[i] = -1
                problems.append(f"{one_line(self.source.name(index))}: {problem}")
        return Batch(images, labels, indices, keys, epoch, problems, masks)

    def _read(self, picture: Picture, numbers: Sequence[float], fast: bool) -> Tensor:
        how = self._how()
        if isinstance(how, Preprocessing):
            return fit(picture, self.size, how, self.channels, fast)
        interpolation = self.preprocessing.interpolation
        return random_resized_crop(
            picture, self.size, numbers, how, interpolation=interpolation, channels=self.channels, fast=fast
        )

    def _read_mask(self, index: int, picture: Picture, numbers: Sequence[float], fast: bool) -> Tensor:
        """Read a mask and cut it as `_read` does its picture."""
        try:
            ids = self.source.mask(index)
        except (UnreadableImage, OSError) as problem:
            raise UnreadableImage(f"its mask: {problem}") from problem
        how = self._how()
        if isinstance(how, Preprocessing):
            return fit_mask(ids, picture, self.size, how, fast)
        return crop_mask(ids, picture, self.size, numbers, how, fast=fast)

    def _how(self) -> Preprocessing | tuple[float, float]:
        """Pictures are fitted to the size, or a random part of them is, of such a share of their area."""
        if self.augmentation is None:
            return self.preprocessing
        if self.augmentation.crop != "resized":  # what is cut off at the edges is for the batch's padded crop to decide
            return dataclasses.replace(self.preprocessing, crop_fraction=1.0)
        return self.augmentation.crop_scale
