"""Order and batches are pure functions of the seed; odd pictures come through right, broken ones with their name."""

import struct
import zlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from pictures import encoded, smooth
from vitreous.data.augment.config import Augmentation
from vitreous.data.loader import (
    Batch,
    EvalLoader,
    Place,
    Reader,
    Request,
    ResidentLoader,
    StreamLoader,
    can_reside,
    epoch_order,
    hold,
    schedule,
)
from vitreous.data.sources.base import ArraySource, Picture, Source, Subset
from vitreous.model.options import Preprocessing

CPU = torch.device("cpu")
WHOLE = Preprocessing(crop_fraction=1.0)


class Listed(Source):
    """Pictures as they are given, of classes in turn."""

    def __init__(self, pictures: list[Picture], classes: int = 3):
        self.pictures, self.classes = pictures, tuple(f"class {i}" for i in range(classes))
        self.labels = np.arange(len(pictures), dtype=np.int64) % classes

    def picture(self, index: int) -> Picture:
        return self.pictures[index]

    def name(self, index: int) -> str:
        return f"picture {index}"


def jpegs(count: int) -> Listed:
    return Listed([encoded(smooth(20, 30, seed), "JPEG") for seed in range(count)])


def arrays(count: int) -> ArraySource:
    images = np.stack([smooth(8, 8, seed) for seed in range(count)])
    return ArraySource(images, np.arange(count) % 3, ("a", "b", "c"), "arrays")


def read(source: Source, augmentation: Augmentation | None, channels: int = 3, size: int = 16) -> Batch:
    everything = torch.arange(len(source))
    reader = Reader(source, (size, size), channels, WHOLE, augmentation)
    return reader[Request(0, everything, everything)]


# ---- The order -------------------------------------------------------------------------------------------------------


def test_an_epoch_shows_every_picture_once_in_an_order_of_its_own() -> None:
    orders = [epoch_order(50, seed, epoch)[0].tolist() for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 6
    assert epoch_order(50, 1, 2)[0].tolist() == orders[-1]


def test_repeats_stand_side_by_side_with_keys_of_their_own() -> None:
    order, keys = epoch_order(10, seed=0, epoch=0, repeats=3)
    assert len(order) == 10
    assert [order[i].item() for i in range(0, 9, 3)] == [order[i + 2].item() for i in range(0, 9, 3)]
    assert len(set(keys.tolist())) == 10
    assert torch.equal(keys % 10, order)


def test_processes_share_a_step_and_a_resumed_run_goes_on_with_the_next() -> None:
    whole = list(schedule(23, 5, Place(6), 1, 0, 10))
    shares = [list(schedule(23, 5, Place(6, rank, 3), 1, 0, 10)) for rank in range(3)]
    for step, parts in enumerate(zip(*shares, strict=True)):
        assert torch.equal(torch.cat([part[1] for part in parts]), whole[step][1])
    late = list(schedule(23, 5, Place(6), 1, 4, 10))
    assert all(torch.equal(a[1], b[1]) and a[0] == b[0] for a, b in zip(whole[4:], late, strict=True))
    assert [epoch for epoch, _, _ in whole] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]  # 23 pictures are 3 batches of 6
    first = torch.cat([indices for epoch, indices, _ in whole if epoch == 0])
    assert len(first.unique()) == 18


# ---- Loaders ---------------------------------------------------------------------------------------------------------


def test_workers_do_not_change_a_bit() -> None:
    reader = Reader(jpegs(9), (16, 16), 3, WHOLE, Augmentation(), seed=3)
    alone, helped = (list(StreamLoader(reader, Place(4), workers, CPU).batches(1, 7)) for workers in (0, 2))
    assert len(alone) == len(helped) == 6
    for ours, theirs in zip(alone, helped, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours[:4], theirs[:4], strict=True))
        assert ours.epoch == theirs.epoch
    crops = [batch.images[batch.indices == 0] for batch in alone]
    seen = [crop for crop in crops if len(crop)]
    assert all(not torch.equal(a, b) for a, b in pairwise(seen))  # another crop in every epoch


def test_what_resides_on_the_device_is_what_workers_would_read() -> None:
    source, augmentation = arrays(11), Augmentation(crop="padded", repeats=2)
    reader = Reader(source, (16, 16), 3, WHOLE, augmentation, seed=2)
    held = hold(reader, CPU)
    images, labels = held.images, held.labels
    resident = ResidentLoader(images, labels, seed=2, place=Place(4), repeats=2)
    stream = StreamLoader(reader, Place(4), workers=0, device=CPU)
    for ours, theirs in zip(resident.batches(0, 5), stream.batches(0, 5), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours[:4], theirs[:4], strict=True))


def test_only_small_sets_of_arrays_reside() -> None:
    assert can_reside(arrays(5), (8, 8), 3)
    assert can_reside(Subset(arrays(5), np.array([1, 3])), (8, 8), 3)
    assert not can_reside(arrays(5), (20_000, 20_000), 3)
    assert not can_reside(jpegs(2), (8, 8), 3)


@pytest.mark.parametrize("resident", [False, True])
def test_evaluation_is_of_every_picture_and_equally_long_for_all_processes(resident: bool) -> None:
    reader = Reader(arrays(11), (8, 8), 3, WHOLE)
    parts = [list(EvalLoader(reader, Place(6, rank, 3), 0, CPU if resident else None)) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    seen = torch.cat([batch.indices for part in parts for batch in part])
    assert sorted(set(seen.tolist())) == list(range(11))
    assert len(seen) == 12  # the last one twice
    for part in parts:
        for batch in part:
            expected = torch.stack([torch.from_numpy(smooth(8, 8, int(i))).permute(2, 0, 1) for i in batch.indices])
            assert torch.equal(batch.images, expected)
            assert torch.equal(batch.labels, batch.indices % 3)


@pytest.mark.parametrize("workers", [0, 1])
def test_broken_pictures_are_named_and_harm_no_other(workers: int) -> None:
    source, whole = jpegs(6), jpegs(6)
    source.pictures[1], source.pictures[4] = b"", b"<html>404</html>"
    batches = [
        next(iter(EvalLoader(Reader(pictures, (16, 16), 3, WHOLE), Place(6), workers))) for pictures in (source, whole)
    ]
    assert batches[0].labels.tolist() == [0, -1, 2, 0, -1, 2]
    assert batches[0].problems == [
        "picture 1: the file is empty",
        "picture 4: not a picture in a format that can be read",
    ]
    others = [0, 2, 3, 5]
    assert torch.equal(batches[0].images[others], batches[1].images[others])
    assert (batches[0].images[[1, 4]] == 0).all()


def test_a_file_that_is_gone_is_a_broken_picture() -> None:
    class Gone(Listed):
        def picture(self, index: int) -> Picture:
            raise FileNotFoundError(2, "No such file or directory", "gone.jpg")

    batch = read(Gone([b""] * 2), None)
    assert batch.labels.tolist() == [-1, -1]
    assert batch.problems[0].startswith("picture 0: ")
    assert "gone.jpg" in batch.problems[0]


# ---- Odd pictures, as training and evaluation read them --------------------------------------------------------------

COLOUR, GREY = (200, 100, 50), 124  # the second is the first in grey


def flat(height: int = 30, width: int = 40, mode: str = "RGB") -> Image.Image:
    return Image.new("RGB", (width, height), COLOUR).convert(mode)


def sixteen_bits(channels: int) -> bytes:
    """A PNG of 16 bits, which Pillow reads but does not write."""
    pixel = struct.pack(">3H", *(value * 257 for value in COLOUR)) if channels == 3 else struct.pack(">H", GREY * 257)
    rows = (b"\0" + pixel * 40) * 30

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", 40, 30, 16, 2 if channels == 3 else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def transparent(mode: str) -> Image.Image:
    """Nothing but clear pixels, whose colour nobody shall see."""
    picture = flat(mode=mode)
    picture.putalpha(0)
    return picture


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
def test_odd_pictures_are_what_they_show(name: str) -> None:
    make, expected = ODD[name]
    if expected == -1:  # a fifth of the colour on white
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
def test_turned_pictures_are_upright_for_the_model(format: str, orientation: int) -> None:
    quarters = np.array([[(250, 0, 0), (0, 250, 0)], [(0, 0, 250), (250, 250, 0)]], np.uint8)
    upright = Image.fromarray(quarters.repeat(32, 0).repeat(32, 1))
    tag, turned = Image.Exif(), upright.copy()
    tag[0x0112] = {6: 8, 8: 6}.get(orientation, orientation)  # the turn that undoes it
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
