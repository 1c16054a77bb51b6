"""Crops of a whole batch equal those of `random_resized_crop` and `crop_mask`, one image at a time."""

import itertools
import random
from typing import Literal

import numpy as np
import pytest
import torch

from images import smooth
from vitreous.data.image import batch_crop
from vitreous.data.image.batch_crop import Box, crop_images, crop_masks, resize_weights
from vitreous.data.image.crop import RATIO, crop_box, crop_mask, random_resized_crop

SCALE = (0.08, 1.0)


def pack(images: list[np.ndarray]) -> tuple[torch.Tensor, list[int], list[int]]:
    """Return all pixels of the images, the first pixel of each, and their widths."""
    starts = [0, *itertools.accumulate(image.shape[0] * image.shape[1] for image in images)][:-1]
    rows = [image.reshape(image.shape[0] * image.shape[1], *image.shape[2:]) for image in images]
    return torch.from_numpy(np.concatenate(rows)), starts, [image.shape[1] for image in images]


def drawn(count: int, channels: int, noisy: bool, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = [(1, 1), (1, 90), *rng.integers(2, 160, (count - 2, 2)).tolist()]
    waves = [smooth(height, width, i)[..., :channels] for i, (height, width) in enumerate(sizes)]
    return [rng.integers(0, 256, wave.shape, dtype=np.uint8) for wave in waves] if noisy else waves


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("size", [(32, 32), (48, 20)])
def test_batch_crops_are_within_two_levels(
    interpolation: Literal["bilinear", "bicubic"], channels: int, noisy: bool, size: tuple[int, int]
) -> None:
    images, chance = drawn(40, channels, noisy, channels), random.Random(0)
    numbers = [[chance.random() for _ in range(4)] for _ in images]
    boxes = [crop_box(image.shape[:2], row, SCALE, RATIO) for image, row in zip(images, numbers, strict=True)]
    found = crop_images(*pack(images), boxes, size, interpolation)
    for image, row, crop in zip(images, numbers, found, strict=True):
        one = random_resized_crop(image, size, row, SCALE, interpolation=interpolation, channels=channels)
        apart = (crop.int() - one.int()).abs()
        assert apart.max() <= 2
        assert apart.float().mean() < 0.25


def test_crops_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, also if the batch is cropped in parts."""
    images = drawn(12, 3, True, 0)
    pixels, starts, widths = pack(images)
    boxes = [crop_box(image.shape[:2], [0.3, 0.6, 0.1, 0.9], SCALE, RATIO) for image in images]
    whole = crop_images(pixels, starts, widths, boxes, (24, 24), "bicubic")
    for i in range(len(images)):
        one = crop_images(pixels, [starts[i]], [widths[i]], [boxes[i]], (24, 24), "bicubic")
        assert torch.equal(one[0], whole[i])
    monkeypatch.setattr(batch_crop, "CHUNK", 3 * 160 * 160)
    assert torch.equal(crop_images(pixels, starts, widths, boxes, (24, 24), "bicubic"), whole)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_plain_images_keep_their_colour(interpolation: Literal["bilinear", "bicubic"]) -> None:
    """The weights of a pixel add up to 1 even after rounding, for every scale."""
    for out, longest in ((224, 600), (224, 100), (7, 64)):
        lengths = torch.arange(1, longest + 1)
        weights = resize_weights(lengths, out, longest, interpolation)
        assert (255 * (weights.sum(2) - 1).abs()).max() < 0.5
        assert not weights[0, :, 1:].any()  # nothing outside the row


def test_mask_crops_are_exact() -> None:
    rng, chance = np.random.default_rng(0), random.Random(0)
    masks = [rng.integers(0, 5, size, dtype=np.uint8) for size in [(1, 1), (3, 80), (60, 50), (90, 31)]]
    numbers = [[chance.random() for _ in range(4)] for _ in masks]
    boxes: list[Box] = [crop_box(mask.shape, row, SCALE, RATIO) for mask, row in zip(masks, numbers, strict=True)]  # type: ignore[arg-type]
    found = crop_masks(*pack(masks), boxes, (20, 28))
    for mask, row, crop in zip(masks, numbers, found, strict=True):
        assert torch.equal(crop, crop_mask(mask, mask, (20, 28), row, SCALE))
