"""Images that are decoded once and kept give the same batches as images that are read in every epoch."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from images import encoded, smooth
from vitreous.data.augment.config import Augmentation
from vitreous.data.image import UnreadableImage
from vitreous.data.loader import Batch, BatchSlice, Reader, StreamLoader
from vitreous.data.resident import (
    KeptImages,
    PackedImages,
    ResidentLoader,
    WholeImages,
    decode_images,
    kept_bytes,
    kept_side,
    read_images,
)
from vitreous.data.sources.base import Source, StoredImage, Subset
from vitreous.data.sources.shapes import ShapesSource
from vitreous.model.options import IGNORED, Preprocessing

CPU = torch.device("cpu")


class Photos(Source):
    """JPEG images of different sizes, whose masks show where they are bright."""

    classes, mask_classes, mask_ids = ("a", "b", "c"), ("dark", "bright"), (0, 1)

    def __init__(self, count: int, largest: int = 90):
        rng = np.random.default_rng(0)
        self.pixels = [smooth(*rng.integers(largest // 2, largest + 1, 2).tolist(), seed) for seed in range(count)]
        self.images: list[StoredImage] = [encoded(pixels, "JPEG", quality=95) for pixels in self.pixels]
        self.masks: list[Any] = [(pixels[..., 0] > 127).astype(np.uint8) for pixels in self.pixels]
        self.labels = np.arange(count, dtype=np.int64) % 3

    def image(self, index: int) -> StoredImage:
        return self.images[index]

    def mask(self, index: int) -> np.ndarray:
        if isinstance(self.masks[index], Exception):
            raise self.masks[index]
        return self.masks[index]

    def name(self, index: int) -> str:
        return f"photo {index}"


def reader_of(source: Source, crop: Any = "resized", masks: bool = False, side: int = 40) -> Reader:
    augmentation = Augmentation(crop=crop, crop_scale=(0.3, 1.0), repeats=2)
    return Reader(source, (side, side), 3, Preprocessing(), augmentation, seed=2, masks=masks)


def streamed(reader: Reader, start: int = 0, stop: int = 6, place: BatchSlice | None = None) -> list[Batch]:
    return list(StreamLoader(reader, place or BatchSlice(4), 0, CPU).batches(start, stop))


def packed(reader: Reader) -> PackedImages:
    return PackedImages(reader, decode_images(reader, 2), CPU)


def kept(reader: Reader) -> Reader:
    reader = copy.copy(reader)
    reader.source = KeptImages(reader.source, decode_images(reader, 2))
    return reader


def same(first: Batch, second: Batch) -> bool:
    pairs = list(zip(first[:4], second[:4], strict=True))
    if first.masks is not None and second.masks is not None:
        pairs.append((first.masks, second.masks))
    return (first.epoch, first.problems) == (second.epoch, second.problems) and all(
        torch.equal(*pair) for pair in pairs
    )


# ---- Whole images ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("crop", ["padded", "none"])
@pytest.mark.parametrize("masks", [False, True])
def test_whole_images_give_the_batches_of_the_files(crop: str, masks: bool) -> None:
    sources = [Photos(11), Subset(ShapesSource(18, 24, 0, "train"), np.arange(11))]
    for source in sources:
        reader = reader_of(source, crop, masks)
        loader = ResidentLoader(WholeImages(read_images(reader, 2), CPU), 2, BatchSlice(4), 2, CPU)
        assert all(map(same, loader.batches(0, 5), streamed(reader, 0, 5)))


# ---- Random resized crops --------------------------------------------------------------------------------------------


def test_kept_images_give_the_crops_of_the_files_if_they_are_small() -> None:
    """Images that are not reduced have the same pixels."""
    source = Photos(11, largest=60)
    reader = reader_of(source, masks=True)
    for first, second in zip(streamed(kept(reader)), streamed(reader), strict=True):
        assert same(first, second)


def test_packed_images_give_the_crops_of_the_files_up_to_rounding() -> None:
    reader = reader_of(Photos(11, largest=60), masks=True)
    loader = ResidentLoader(packed(reader), 2, BatchSlice(4), 2, CPU)
    for first, second in zip(loader.batches(0, 6), streamed(reader), strict=True):
        assert (first.images.int() - second.images.int()).abs().max() <= 2
        assert same(first._replace(images=second.images), second)


@pytest.mark.parametrize("keep", [packed, kept])
def test_reduced_images_give_similar_crops(keep: Any) -> None:
    """Large images are reduced to the size that the crops need; only their finest details change."""
    reader = reader_of(Photos(12, largest=400), masks=True)
    if keep is packed:
        batches = list(ResidentLoader(packed(reader), 2, BatchSlice(4), 2, CPU).batches(0, 3))
    else:
        batches = streamed(kept(reader), 0, 3)
    for first, second in zip(batches, streamed(reader, 0, 3), strict=True):
        assert (first.images.float() - second.images.float()).abs().mean() < 3
        assert (first.masks != second.masks).float().mean() < 0.05


def test_packed_batches_are_functions_of_seed_epoch_and_index() -> None:
    """Two processes see the images of one, and a resumed run those of the first, bit for bit."""
    images = packed(reader_of(Photos(13)))

    def batches(place: BatchSlice, start: int) -> list[Batch]:
        return list(ResidentLoader(images, 2, place, 2, CPU).batches(start, 7))

    whole = batches(BatchSlice(4), 0)
    assert all(map(same, batches(BatchSlice(4), 3), whole[3:]))
    halves = [batches(BatchSlice(4, rank, 2), 0) for rank in range(2)]
    for step, batch in enumerate(whole):
        assert torch.equal(torch.cat([half[step].images for half in halves]), batch.images)
    assert not torch.equal(whole[0].images, whole[3].images)


@pytest.mark.parametrize("keep", ["packed", "kept", "whole"])
def test_unreadable_images_are_reported_as_from_files(keep: str) -> None:
    source = Photos(8)
    source.images[1] = b"<html>404</html>"
    source.masks[4] = UnreadableImage("not a PNG file")
    source.masks[6] = np.zeros((3, 4), np.uint8)
    reader = reader_of(source, "none" if keep == "whole" else "resized", masks=True)
    expected = streamed(reader, 0, 2)
    if keep == "kept":
        found = streamed(kept(reader), 0, 2)
    else:
        images = packed(reader) if keep == "packed" else WholeImages(read_images(reader, 2), CPU)
        found = list(ResidentLoader(images, 2, BatchSlice(4), 2, CPU).batches(0, 2))
    for first, second in zip(found, expected, strict=True):
        assert first.problems == second.problems
        assert torch.equal(first.labels, second.labels)
        assert first.masks is not None
        assert (first.masks[first.labels < 0] == IGNORED).all()
        assert (first.labels < 0).any() or not first.problems
    assert any(batch.problems for batch in found)


def test_grey_images_for_a_colour_model() -> None:
    source = Photos(4)
    source.images = [encoded(pixels[..., 0], "JPEG") for pixels in source.pixels]
    reader = reader_of(source)
    [batch] = ResidentLoader(packed(reader), 2, BatchSlice(4), 2, CPU).batches(0, 1)
    assert torch.equal(batch.images[:, 0], batch.images[:, 2])
    [expected] = streamed(reader, 0, 1)
    assert (batch.images.int() - expected.images.int()).abs().float().mean() < 1


# ---- Memory ----------------------------------------------------------------------------------------------------------


def test_images_are_reduced_only_as_far_as_the_crops_allow() -> None:
    assert kept_side((100, 100), (0.25, 1.0)) == 200  # a quarter of the area is 100 x 100 pixels
    assert kept_side((100, 80), (1.0, 1.0)) == 100
    assert kept_side((100, 100), (0.08, 1.0)) == 200
    sizes = packed(reader_of(Photos(20, largest=120), side=20)).sizes
    assert all(min(size) <= kept_side((20, 20), (0.3, 1.0)) for size in sizes)


@pytest.mark.parametrize(("crop", "masks"), [("resized", True), ("resized", False), ("none", True)])
def test_memory_is_estimated_before_decoding(crop: str, masks: bool) -> None:
    reader = reader_of(Photos(20), crop, masks)
    if crop == "resized":
        images = packed(reader)
        actual = images.pixels.nbytes + (images.masks.nbytes if images.masks is not None else 0)
    else:
        whole = WholeImages(read_images(reader, 1), CPU)
        actual = whole.images.nbytes + (whole.masks.nbytes if whole.masks is not None else 0)
    assert kept_bytes(reader) == pytest.approx(actual, rel=0.01)
