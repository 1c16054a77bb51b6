"""Sample order and batches depend only on the seed; masks match their images; broken images are reported."""

import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor

from images import encoded, smooth
from vitreous.data.augment.config import Augmentation
from vitreous.data.image import UnreadableImage
from vitreous.data.loader import (
    Batch,
    BatchSlice,
    EvalLoader,
    Reader,
    Request,
    StreamLoader,
    epoch_order,
    schedule,
)
from vitreous.data.open import open_masked
from vitreous.data.sources.base import ArraySource, Source, StoredImage, Subset
from vitreous.model.options import IGNORED, Preprocessing

CPU = torch.device("cpu")
WHOLE = Preprocessing(crop_fraction=1.0)


class Listed(Source):
    """Source of the given images, with alternating classes."""

    def __init__(self, images: list[StoredImage], classes: int = 3):
        self.images, self.classes = images, tuple(f"class {i}" for i in range(classes))
        self.labels = np.arange(len(images), dtype=np.int64) % classes

    def image(self, index: int) -> StoredImage:
        return self.images[index]

    def name(self, index: int) -> str:
        return f"image {index}"


def jpegs(count: int) -> Listed:
    return Listed([encoded(smooth(20, 30, seed), "JPEG") for seed in range(count)])


def arrays(count: int) -> ArraySource:
    images = np.stack([smooth(8, 8, seed) for seed in range(count)])
    return ArraySource(images, np.arange(count) % 3, ("a", "b", "c"), "arrays")


def read(source: Source, augmentation: Augmentation | None, channels: int = 3, size: int = 16) -> Batch:
    everything = torch.arange(len(source))
    reader = Reader(source, (size, size), channels, WHOLE, augmentation)
    return reader[Request(0, everything, everything)]


# ---- Sample order ----------------------------------------------------------------------------------------------------


def test_each_epoch_has_every_image_once_in_a_new_order() -> None:
    orders = [epoch_order(50, seed, epoch)[0].tolist() for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    assert epoch_order(50, 1, 2)[0].tolist() == orders[-1]


def test_repeats_are_adjacent_with_different_keys() -> None:
    order, keys = epoch_order(10, seed=0, epoch=0, repeats=3)
    assert len(order) == 10
    assert [order[i].item() for i in range(0, 9, 3)] == [order[i + 2].item() for i in range(0, 9, 3)]
    assert len(set(keys.tolist())) == 10
    assert torch.equal(keys % 10, order)


def test_processes_share_each_step_and_resuming_continues() -> None:
    whole = list(schedule(23, 5, BatchSlice(6), 1, 0, 10))
    shares = [list(schedule(23, 5, BatchSlice(6, rank, 3), 1, 0, 10)) for rank in range(3)]
    for step, parts in enumerate(zip(*shares, strict=True)):
        assert torch.equal(torch.cat([part[1] for part in parts]), whole[step][1])
    late = list(schedule(23, 5, BatchSlice(6), 1, 4, 10))
    assert all(torch.equal(a[1], b[1]) and a[0] == b[0] for a, b in zip(whole[4:], late, strict=True))
    assert [epoch for epoch, _, _ in whole] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]  # 23 images are 3 batches of 6
    first = torch.cat([indices for epoch, indices, _ in whole if epoch == 0])
    assert len(first.unique()) == 18


# ---- Loaders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")  # which read a part of each batch without workers
def test_workers_give_bit_identical_batches() -> None:
    reader = Reader(jpegs(9), (16, 16), 3, WHOLE, Augmentation(), seed=3)
    alone, helped = (list(StreamLoader(reader, BatchSlice(4), workers, CPU).batches(1, 7)) for workers in (0, 2))
    assert len(alone) == len(helped) == 6
    for first, second in zip(alone, helped, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first[:4], second[:4], strict=True))
        assert first.epoch == second.epoch
    crops = [batch.images[batch.indices == 0] for batch in alone]
    seen = [crop for crop in crops if len(crop)]
    assert all(not torch.equal(a, b) for a, b in pairwise(seen))  # a different crop in every epoch


@pytest.mark.parametrize("resident", [False, True])
def test_evaluation_covers_every_image_with_equal_steps_per_process(resident: bool) -> None:
    reader = Reader(arrays(11), (8, 8), 3, WHOLE)
    parts = [list(EvalLoader(reader, BatchSlice(6, rank, 3), 0, CPU if resident else None)) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    seen = torch.cat([batch.indices for part in parts for batch in part])
    assert sorted(set(seen.tolist())) == list(range(11))
    assert len(seen) == 12  # the last one twice
    for part in parts:
        for batch in part:
            expected = torch.stack([torch.from_numpy(smooth(8, 8, int(i))).permute(2, 0, 1) for i in batch.indices])
            assert torch.equal(batch.images, expected)
            assert torch.equal(batch.labels, batch.indices % 3)


@pytest.mark.parametrize(
    ("count", "size", "sizes"), [(10, 4, [4, 4, 4]), (9, 4, [3, 3, 3]), (3, 8, [3]), (8, 4, [4, 4])]
)
def test_evaluation_batches_have_equal_sizes(count: int, size: int, sizes: list[int]) -> None:
    batches = list(EvalLoader(Reader(arrays(count), (8, 8), 3, WHOLE), BatchSlice(size), 0))
    assert [len(batch.labels) for batch in batches] == sizes
    assert sorted(set(torch.cat([batch.indices for batch in batches]).tolist())) == list(range(count))


@pytest.mark.parametrize("keep", [None, CPU])
def test_kept_evaluation_batches_are_read_once(keep: torch.device | None) -> None:
    source, reads = jpegs(6), []
    source.images[2] = b""
    whole = source.image
    source.image = lambda index: reads.append(index) or whole(index)  # type: ignore[method-assign]
    loader = EvalLoader(Reader(source, (8, 8), 3, WHOLE), BatchSlice(4), 0, keep)
    next(iter(loader))  # an interrupted evaluation keeps nothing
    reads.clear()
    first, second = list(loader), list(loader)
    assert len(reads) == (6 if keep is not None else 12)
    assert [batch.problems for batch in second] == [["image 2: the file is empty"], []]
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_images_are_reported_without_affecting_others(workers: int) -> None:
    source, whole = jpegs(6), jpegs(6)
    source.images[1], source.images[4] = b"", b"<html>404</html>"
    batches = [
        next(iter(EvalLoader(Reader(images, (16, 16), 3, WHOLE), BatchSlice(6), workers))) for images in (source, whole)
    ]
    assert batches[0].labels.tolist() == [0, -1, 2, 0, -1, 2]
    assert batches[0].problems == [
        "image 1: the file is empty",
        "image 4: not an image in a supported format",
    ]
    others = [0, 2, 3, 5]
    assert torch.equal(batches[0].images[others], batches[1].images[others])
    assert (batches[0].images[[1, 4]] == 0).all()


def test_missing_file_is_a_broken_image() -> None:
    class Gone(Listed):
        def image(self, index: int) -> StoredImage:
            raise FileNotFoundError(2, "No such file or directory", "gone.jpg")

    batch = read(Gone([b""] * 2), None)
    assert batch.labels.tolist() == [-1, -1]
    assert batch.problems[0].startswith("image 0: ")
    assert "gone.jpg" in batch.problems[0]


# ---- Unusual images --------------------------------------------------------------------------------------------------

COLOUR, GREY = (200, 100, 50), 124  # GREY is the grey level of COLOUR


def flat(height: int = 30, width: int = 40, mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", (width, height), COLOUR).convert(mode)


def sixteen_bits(channels: int) -> bytes:
    """Return a 16-bit PNG, which Pillow reads but does not write."""
    pixel = struct.pack(">3H", *(value * 257 for value in COLOUR)) if channels == 3 else struct.pack(">H", GREY * 257)
    rows = (b"\0" + pixel * 40) * 30

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 40, 30, 16, 2 if channels == 3 else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def transparent(mode: str) -> Image.Image:
    """Return a fully transparent image, whose colour must not be visible."""
    image = flat(mode=mode)
    image.putalpha(0)
    return image


def animation(format: str) -> bytes:
    later = [Image.new("RGB", (40, 30), name) for name in ("lime", "blue")]
    lossless = {"lossless": True} if format == "WEBP" else {}
    return encoded(flat(), format, save_all=True, append_images=later, **lossless)


WHITE = (255, 255, 255)
ODD: dict[str, tuple[Callable[[], bytes], tuple[int, int, int] | int]] = {
    "RGB": (lambda: encoded(flat()), COLOUR),
    "grey": (lambda: encoded(flat(mode="L")), GREY),
    "grey JPEG": (lambda: encoded(flat(mode="L"), "JPEG"), GREY),
    "grey and alpha": (lambda: encoded(flat(mode="LA")), GREY),
    "clear grey": (lambda: encoded(transparent("LA")), WHITE),
    "clear": (lambda: encoded(transparent("RGBA")), WHITE),
    "clear WebP": (lambda: encoded(transparent("RGBA"), "WEBP", lossless=True), WHITE),
    "CMYK JPEG": (lambda: encoded(flat(mode="CMYK"), "JPEG", quality=100), COLOUR),
    "CMYK TIFF": (lambda: encoded(flat(mode="CMYK"), "TIFF"), COLOUR),
    "YCbCr TIFF": (lambda: encoded(flat(mode="YCbCr"), "TIFF"), COLOUR),
    "LAB TIFF": (lambda: encoded(Image.new("LAB", (40, 30), (138, 128, 128)), "TIFF"), 129),  # L* is 54.1
    "16-bit RGB": (lambda: sixteen_bits(3), COLOUR),
    "16-bit grey": (lambda: sixteen_bits(1), GREY),
    "16-bit TIFF": (lambda: encoded(np.full((30, 40), GREY * 257, np.uint16), "TIFF"), GREY),
    "palette": (lambda: encoded(flat().quantize(4)), COLOUR),
    "palette with transparency": (lambda: encoded(flat().quantize(4), transparency=0), WHITE),
    "palette with some alpha": (lambda: encoded(flat().quantize(4), transparency=bytes([51] + [255] * 3)), -1),
    "GIF": (lambda: encoded(flat(), "GIF"), COLOUR),
    "1 bit": (lambda: encoded(Image.new("1", (40, 30), 1)), WHITE),
    "animated GIF": (lambda: animation("GIF"), COLOUR),
    "animated WebP": (lambda: animation("WEBP"), COLOUR),
    "animated PNG": (lambda: animation("PNG"), COLOUR),
    "progressive JPEG": (lambda: encoded(flat(), "JPEG", progressive=True, quality=100), COLOUR),
    "1 x 1": (lambda: encoded(flat(1, 1)), COLOUR),
    "1 x 1 JPEG": (lambda: encoded(flat(1, 1), "JPEG", quality=100), COLOUR),
    "1 x 10000": (lambda: encoded(flat(1, 10_000)), COLOUR),
    "10000 x 1 JPEG": (lambda: encoded(flat(10_000, 1), "JPEG", quality=100), COLOUR),
}


@pytest.mark.parametrize("name", ODD)
def test_unusual_formats_are_decoded_to_the_right_colour(name: str) -> None:
    make, expected = ODD[name]
    if expected == -1:  # a fifth of the colour, blended with white
        expected = tuple(round(0.2 * value + 0.8 * 255) for value in COLOUR)  # type: ignore[assignment]
    source = Listed([make()] * 3)
    colour = torch.tensor([expected] * 3 if isinstance(expected, int) else expected).view(1, 3, 1, 1)
    grey = (colour * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum()
    for augmentation in (None, Augmentation(), Augmentation(crop="padded")):
        batch = read(source, augmentation)
        assert batch.problems == []
        assert batch.labels.tolist() == [0, 1, 2]
        assert (batch.images.int() - colour).abs().max() <= 3
        assert (read(source, augmentation, channels=1).images - grey).abs().max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_exif_rotated_images_are_upright_in_batches(format: str, orientation: int) -> None:
    quarters = np.array([[(250, 0, 0), (0, 250, 0)], [(0, 0, 250), (250, 250, 0)]], np.uint8)
    upright = Image.fromarray(quarters.repeat(32, 0).repeat(32, 1))
    tag, turned = Image.Exif(), upright.copy()
    tag[0x0112] = {6: 8, 8: 6}.get(orientation, orientation)  # the inverse rotation
    turned.info["exif"] = tag.tobytes()
    stored = ImageOps.exif_transpose(turned)
    tag[0x0112] = orientation
    options = {"JPEG": {"quality": 95, "subsampling": 0}, "WEBP": {"lossless": True}}.get(format, {})
    source = Listed([encoded(stored, format, exif=tag, **options)] * 3)
    for augmentation in (None, Augmentation(crop_scale=(1.0, 1.0))):
        batch = read(source, augmentation)
        assert batch.problems == []
        corners = batch.images[0][:, [2, 2, -3, -3], [2, -3, 2, -3]].T.int()
        assert (corners - torch.from_numpy(quarters).view(4, 3)).abs().max() <= 12


CPU = torch.device("cpu")
SHADES = np.array([30, 130, 230], np.uint8)  # for the ids 0, 1 and 2


class Masked(Source):
    """Source of the given images and masks; a mask that is an exception is raised."""

    classes = ("picture",)
    mask_classes = ("a", "b", "c")

    def __init__(self, images: list[StoredImage], masks: list[np.ndarray | Exception]):
        self.images, self.masks = images, masks
        self.labels = np.zeros(len(images), np.int64)

    def image(self, index: int) -> StoredImage:
        return self.images[index]

    def mask(self, index: int) -> np.ndarray:
        mask = self.masks[index]
        if isinstance(mask, Exception):
            raise mask
        return mask

    def name(self, index: int) -> str:
        return f"image {index}"


def areas(height: int, width: int, seed: int) -> np.ndarray:
    """Return ids in three broad stripes of random slope, so that only neighbouring shades touch."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(height, width)
    turn = generator.uniform(0, 2 * np.pi)
    across = np.cos(turn) * x + np.sin(turn) * y
    low, high = across.min(), across.max()
    return np.digitize(across, low + (high - low) * generator.uniform([0.2, 0.6], [0.4, 0.8])).astype(np.uint8)


def painted(height: int, width: int, seeds: range, format: str = "array") -> Masked:
    masks = [areas(height, width, seed) for seed in seeds]
    pixels = [SHADES[mask][..., None].repeat(3, 2) for mask in masks]
    if format == "array":
        return Masked(pixels, masks)
    options = {"JPEG": {"quality": 95, "subsampling": 0}}.get(format, {})
    return Masked([encoded(image, format, **options) for image in pixels], masks)


def everything(reader: Reader, epoch: int = 0) -> Batch:
    all_ = torch.arange(len(reader.source))
    return reader[Request(epoch, all_, all_)]


def disagreement(batch: Batch) -> Tensor:
    """Mark pixels whose shade does not match their id; resizing mixes shades near outlines."""
    assert batch.masks is not None
    shades = torch.from_numpy(SHADES).int()
    shown = (batch.images[:, :1].int() - shades[None, :, None, None]).abs().argmin(1)
    padding = batch.masks == IGNORED  # white, because the mean is 1
    assert (batch.images[:, 0][padding] == 255).all()
    return (shown != batch.masks) & ~padding


def inner(masks: Tensor, reach: int) -> Tensor:
    """Mark pixels with only one id within reach, excluding image edges, where an outline may be just outside."""
    levels, side = masks[:, None].float(), 2 * reach + 1
    high = torch.nn.functional.max_pool2d(levels, side, 1, reach)
    low = -torch.nn.functional.max_pool2d(-levels, side, 1, reach)
    alone = torch.zeros_like(masks, dtype=torch.bool)
    alone[:, reach:-reach, reach:-reach] = (high == low)[:, 0, reach:-reach, reach:-reach]
    return alone


def check_masks_match(source: Masked, size: tuple[int, int], reader: Reader, share: float) -> None:
    batch = everything(reader)
    assert batch.masks is not None
    assert batch.problems == []
    assert batch.masks.shape == (len(source), *size)
    wrong = disagreement(batch)
    assert not (wrong & inner(batch.masks, 1)).any()
    assert wrong.float().mean() < share


@given(
    image=st.tuples(st.integers(16, 90), st.integers(16, 90)),
    size=st.tuples(st.integers(12, 40), st.integers(12, 40)),
    seed=st.integers(0, 10_000),
    interpolation=st.sampled_from(["bilinear", "bicubic"]),
)
@settings(deadline=None, max_examples=40)
def test_random_crops_of_masks_match_images(
    image: tuple[int, int], size: tuple[int, int], seed: int, interpolation: str
) -> None:
    source = painted(*image, range(seed, seed + 4))
    how = Preprocessing(interpolation=interpolation)  # type: ignore[arg-type]
    reader = Reader(source, size, 3, how, Augmentation(crop_scale=(0.3, 1.0)), seed, masks=True)
    check_masks_match(source, size, reader, share=0.15)


@given(
    image=st.tuples(st.integers(16, 90), st.integers(16, 90)),
    size=st.tuples(st.integers(12, 40), st.integers(12, 40)),
    seed=st.integers(0, 10_000),
    fit=st.sampled_from(["crop", "squash", "squash-crop", "pad"]),
    geometry=st.sampled_from(["torchvision", "timm", "huggingface"]),
    fraction=st.sampled_from([0.7, 0.875, 1.0]),
    crop=st.sampled_from([None, "padded", "none"]),
)
@settings(deadline=None, max_examples=40)
def test_fitted_masks_match_images(
    image: tuple[int, int],
    size: tuple[int, int],
    seed: int,
    fit: str,
    geometry: str,
    fraction: float,
    crop: str | None,
) -> None:
    source = painted(*image, range(seed, seed + 3))
    how = Preprocessing((1.0,), fit=fit, crop_fraction=fraction, geometry=geometry)  # type: ignore[arg-type]
    augmentation = None if crop is None else Augmentation(crop=crop)  # type: ignore[arg-type]
    check_masks_match(source, size, Reader(source, size, 3, how, augmentation, masks=True), share=0.15)


@pytest.mark.parametrize("image", [(300, 400), (397, 289)], ids=str)
@pytest.mark.parametrize("augmentation", [None, Augmentation()], ids=["fit", "crop"])
@pytest.mark.parametrize("exact_from", [0, 1], ids=["exact", "fast"])
def test_masks_match_jpegs_decoded_at_a_reduced_scale(
    image: tuple[int, int], augmentation: Augmentation | None, exact_from: int
) -> None:
    source = painted(*image, range(8), "JPEG")
    reader = Reader(source, (40, 32), 3, Preprocessing(), augmentation, masks=True, exact_from=exact_from)
    check_masks_match(source, (40, 32), reader, share=0.06)


def test_decoding_depends_only_on_the_epoch() -> None:
    """Decoding is fast before `exact_from` and exact afterwards, in any order of epochs, as needed for resuming."""
    noise = np.random.default_rng(0).integers(0, 256, (50, 60, 3), dtype=np.uint8)
    large = Image.fromarray(noise).resize((600, 500), Image.Resampling.BILINEAR)
    source = Masked([encoded(large, "JPEG", quality=95)], [np.zeros((500, 600), np.uint8)])
    for augmentation in (Augmentation(), Augmentation(crop="none")):
        mixed, exact, fast = (
            Reader(source, (16, 16), 3, Preprocessing(), augmentation, exact_from=first) for first in (2, 0, 9)
        )
        for epoch in (3, 0, 1, 2, 0):
            found = everything(mixed, epoch).images
            same, other = (fast, exact) if epoch < 2 else (exact, fast)
            assert torch.equal(found, everything(same, epoch).images)
            assert not torch.equal(found, everything(other, epoch).images)


@pytest.mark.parametrize("image", [(4, 900), (900, 4)], ids=str)
def test_masks_match_very_long_images(image: tuple[int, int]) -> None:
    """Long images are trimmed before resizing, but masks are not."""
    source = painted(*image, range(4))
    batch = everything(Reader(source, (16, 16), 3, Preprocessing(), masks=True))
    assert batch.masks is not None
    assert disagreement(batch).float().mean() < 0.1


def test_shifted_mask_is_detected() -> None:
    source = painted(60, 70, range(8))
    source.masks = [np.roll(mask, 4, 1) for mask in source.masks if isinstance(mask, np.ndarray)]
    batch = everything(Reader(source, (32, 32), 3, Preprocessing(), masks=True))
    assert batch.masks is not None
    assert (disagreement(batch) & inner(batch.masks, 1)).any()


def test_mask_of_the_model_size_is_copied_exactly() -> None:
    source = painted(24, 20, range(3))
    batch = everything(Reader(source, (24, 20), 3, Preprocessing(fit="squash"), masks=True))
    assert batch.masks is not None
    assert np.array_equal(batch.masks.numpy(), np.stack(source.masks))  # type: ignore[arg-type]
    assert batch.masks.dtype == torch.uint8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotated_image_matches_its_upright_mask(orientation: int) -> None:
    mask = areas(60, 80, 3)
    stored = SHADES[mask]
    if orientation in (2, 3, 6, 7):
        stored = stored[:, ::-1]
    if orientation in (3, 4, 7, 8):
        stored = stored[::-1]
    if orientation >= 5:
        stored = stored.T
    tag = Image.Exif()
    tag[0x0112] = orientation
    source = Masked([encoded(np.ascontiguousarray(stored), "JPEG", quality=95, exif=tag)], [mask])
    for augmentation in (None, Augmentation()):
        check_masks_match(source, (30, 30), Reader(source, (30, 30), 3, Preprocessing(), augmentation, masks=True), 0.1)


# ---- Batches ---------------------------------------------------------------------------------------------------------


def test_masks_are_read_only_on_request_and_do_not_change_images() -> None:
    source = painted(30, 40, range(5))
    plain, masked = (
        everything(Reader(source, (16, 16), 3, Preprocessing(), Augmentation(), masks=m)) for m in (False, True)
    )
    assert plain.masks is None
    assert torch.equal(plain.images, masked.images)
    with pytest.raises(ValueError, match="image labels but no masks"):
        Reader(
            ArraySource(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(2), ("a",), "x"),
            (4, 4),
            3,
            Preprocessing(),
            masks=True,
        )
    with pytest.raises(ValueError, match=r"x\[1\] has no mask: this data set has only image labels"):
        ArraySource(np.zeros((2, 4, 4, 3), np.uint8), np.zeros(2), ("a",), "x").mask(1)


def test_subset_of_a_source_has_its_masks() -> None:
    source = painted(20, 20, range(5))
    part = Subset(source, np.array([3, 1]))
    assert part.mask_classes == source.mask_classes
    assert np.array_equal(part.mask(0), source.mask(3))
    assert np.array_equal(part.mask(1), source.mask(1))


@pytest.mark.usefixtures("three_threads")
def test_masks_do_not_depend_on_workers_or_batches() -> None:
    source = painted(30, 40, range(9), "PNG")
    reader = Reader(source, (16, 16), 3, Preprocessing(), Augmentation(), seed=3, masks=True)
    alone, helped = (list(StreamLoader(reader, BatchSlice(4), workers, CPU).batches(1, 5)) for workers in (0, 2))
    for first, second in zip(alone, helped, strict=True):
        assert first.masks is not None
        assert second.masks is not None
        assert torch.equal(first.masks, second.masks)
        again = reader[Request(first.epoch, first.indices[2:3], first.keys[2:3])]
        assert again.masks is not None
        assert torch.equal(again.masks[0], first.masks[2])
    for workers in (0, 1):
        [batch] = EvalLoader(Reader(source, (16, 16), 3, Preprocessing(), masks=True), BatchSlice(9), workers)
        assert not (disagreement(batch) & inner(batch.masks, 1)).any()


def test_unreadable_images_and_masks_are_reported_and_ignored() -> None:
    source = painted(20, 30, range(6), "PNG")
    whole = everything(Reader(source, (16, 16), 3, Preprocessing(), masks=True))
    source.images[1] = b""
    source.masks[2] = UnreadableImage("not a PNG file")
    source.masks[4] = FileNotFoundError(2, "No such file or directory")
    source.masks[5] = areas(30, 20, 5)
    batch = everything(Reader(source, (16, 16), 3, Preprocessing(), masks=True))
    assert batch.masks is not None
    assert whole.masks is not None
    assert batch.labels.tolist() == [0, -1, -1, 0, -1, -1]
    assert batch.problems == [
        "image 1: the file is empty",
        "image 2: cannot read the mask: not a PNG file",
        "image 4: cannot read the mask: [Errno 2] No such file or directory",
        "image 5: the mask is 30 x 20 pixels, but the image is 20 x 30",
    ]
    assert (batch.masks[[1, 2, 4, 5]] == 255).all()
    assert torch.equal(batch.masks[[0, 3]], whole.masks[[0, 3]])
    assert torch.equal(batch.images[2], whole.images[2])


def test_mask_folder_is_read_unchanged(tmp_path: Path) -> None:
    source = painted(24, 20, range(5), "PNG")
    for i in range(5):
        for kind, data in (("images", source.images[i]), ("masks", encoded(source.mask(i) * 7))):
            (tmp_path / kind).mkdir(exist_ok=True)
            (tmp_path / kind / f"{i}.png").write_bytes(data)  # type: ignore[arg-type]
    (tmp_path / "classes.txt").write_text("0 a\n7 b\n14 c\n")
    data = open_masked(str(tmp_path), val_fraction=0.4)
    for part in (data.train, data.val):
        check_masks_match(part, (24, 20), Reader(part, (24, 20), 3, Preprocessing(), masks=True), share=0.1)  # type: ignore[arg-type]
