"""What cannot be read says why; sizes and crops against Pillow and against the definitions."""

import contextlib
import io
import math
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pictures import as_array, difference, encoded, jpeg_decoder, smooth
from vitreous.data.image import jpeg
from vitreous.data.image.crop import crop_box
from vitreous.data.image.decode import MAX_PIXELS, UnreadableImage, decode, fit, random_resized_crop, resize, size_of
from vitreous.model.options import Preprocessing


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from jpeg_decoder(request.param, monkeypatch)


# ---- What cannot be read ---------------------------------------------------------------------------------------------


def bomb(height: int, width: int) -> bytes:
    """A PNG of 100 bytes that asks for gigabytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def tall_jpeg(height: int) -> bytes:
    data = encoded(smooth(8, 60_000), "JPEG")
    header = jpeg.read_header(data)
    assert header is not None
    return jpeg._with_height(data, header, height)


BROKEN: dict[str, tuple[Callable[[], bytes | np.ndarray], str]] = {
    "empty": (lambda: b"", "the file is empty"),
    "text": (lambda: b"<html>404 not found</html>", "not a picture in a format"),
    "signature": (lambda: b"\xff\xd8\xff\xe0", "not a picture in a format"),
    "cut jpeg": (lambda: encoded(smooth(50, 60), "JPEG")[:-200], "truncated"),
    "jpeg without its end": (lambda: encoded(smooth(50, 60), "JPEG")[:-2], "truncated"),
    "cut png": (lambda: encoded(smooth(50, 60))[:-3000], "truncated|broken"),
    "cut gif": (lambda: encoded(smooth(50, 60), "GIF")[:-500], "truncated"),
    "bomb": (lambda: bomb(60_000, 60_000), "too large to be decoded safely"),
    "smaller bomb": (lambda: bomb(MAX_PIXELS // 10_000 + 1, 10_000), "too large to be decoded safely"),
    "jpeg bomb": (lambda: tall_jpeg(60_000), "60000 x 60000 pixels are more than"),
    "floats": (lambda: np.zeros((5, 5, 3)), "an array of 5 x 5 x 3 float64, not of height x width"),
    "two channels": (lambda: np.zeros((5, 5, 2), dtype=np.uint8), "not of height x width"),
    "no pixels": (lambda: np.zeros((0, 5, 3), dtype=np.uint8), "not of height x width"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_pictures_say_why_in_one_line(decoder: str, name: str) -> None:
    make, reason = BROKEN[name]
    picture = make()
    reads: list[Callable[[], torch.Tensor]] = [
        lambda: decode(picture),
        lambda: fit(picture, (16, 16), Preprocessing()),
        lambda: random_resized_crop(picture, (16, 16), (0.5, 0, 0, 0), (0.08, 1.0)),  # only the top of it
    ]
    for read in reads:
        with pytest.raises(UnreadableImage, match=reason) as error:
            read()
        assert "\n" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_anywhere_gives_a_picture_or_the_one_error(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"]))
    whole = bytearray(encoded(smooth(17, 23), format))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableImage):
        assert size_of(bytes(whole)) == tuple(decode(bytes(whole)).shape[1:])


def test_a_large_picture_below_the_limit_is_no_warning() -> None:
    assert decode(encoded(Image.new("1", (10_000, 9_500))), channels=1).shape == (1, 9_500, 10_000)


def test_decoding_leaves_the_warnings_of_other_threads_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filters belong to the whole process; a server's threads decode while its framework has filters of its own set."""
    decoding, go_on, convert = threading.Event(), threading.Event(), Image.Image.convert

    def slow(image: Image.Image, *arguments: Any) -> Image.Image:
        decoding.set()
        assert go_on.wait(30)
        return convert(image, *arguments)

    monkeypatch.setattr(Image.Image, "convert", slow)
    thread = threading.Thread(target=decode, args=(encoded(smooth(8, 8)),))
    thread.start()
    assert decoding.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        go_on.set()
        thread.join()
        warnings.warn("is not heard", UserWarning, stacklevel=1)


def test_channels_are_one_or_three() -> None:
    with pytest.raises(ValueError, match="channels is 4, but pictures are decoded to 1"):
        decode(smooth(4, 4), channels=4)


# ---- Resizing --------------------------------------------------------------------------------------------------------

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(16, 16), (40, 30), (100, 7), (1, 1), (300, 200)], ids=str)
def test_resize_is_pillows(mode: Literal["bilinear", "bicubic"], size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (61, 83, 3), dtype=np.uint8)
    theirs = Image.fromarray(noise).resize(size[::-1], RESAMPLING[mode])
    assert difference(resize(decode(noise), size, mode), np.array(theirs)) <= 1


# ---- Evaluation ------------------------------------------------------------------------------------------------------


def pillow_fit(image: Image.Image, size: tuple[int, int], config: Preprocessing) -> np.ndarray:
    """Resize all of it so that it covers size / crop_fraction, cut out the centre."""
    resample = RESAMPLING[config.interpolation]
    if config.fit == "squash":
        return np.array(image.resize(size[::-1], resample))
    scale = max(round(want / config.crop_fraction) / have for want, have in zip(size, image.size[::-1], strict=True))
    image = image.resize((int(image.width * scale + 1e-6), int(image.height * scale + 1e-6)), resample)
    left, top = round((image.width - size[1]) / 2), round((image.height - size[0]) / 2)
    return np.array(image.crop((left, top, left + size[1], top + size[0])))


@pytest.mark.parametrize(
    "config",
    [
        Preprocessing(),
        Preprocessing(crop_fraction=1.0, interpolation="bilinear"),
        Preprocessing(crop_fraction=0.9),
        Preprocessing(fit="squash"),
    ],
    ids=lambda config: f"{config.fit}-{config.crop_fraction}",
)
@pytest.mark.parametrize("picture", [(375, 500), (500, 375), (60, 60), (31, 200), (700, 40)], ids=str)
@pytest.mark.parametrize("size", [(64, 64), (48, 80), (96, 32)], ids=str)
def test_fit_is_what_pillow_makes_of_it(picture: tuple[int, int], size: tuple[int, int], config: Preprocessing) -> None:
    pixels = smooth(*picture)
    theirs = pillow_fit(Image.fromarray(pixels), size, config)
    assert difference(fit(pixels, size, config), theirs) <= 2


@pytest.mark.parametrize("subsampling", [0, 2], ids=["4:4:4", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
def test_a_jpeg_much_larger_than_needed_is_decoded_exactly(decoder: str, subsampling: int, progressive: bool) -> None:
    """Noise, which a reduced scale of the DCT averages differently than a resize does."""
    noise = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((1200, 900), Image.Resampling.BILINEAR)
    data = encoded(image, "JPEG", quality=90, subsampling=subsampling, progressive=progressive)
    theirs = pillow_fit(Image.open(io.BytesIO(data)), (32, 32), Preprocessing())
    assert difference(fit(data, (32, 32), Preprocessing()), theirs) <= 1
    whole = random_resized_crop(data, (32, 32), (0.5, 0.5, 0.5, 0.5), (1.0, 1.0))
    assert difference(whole, np.array(Image.open(io.BytesIO(data)).resize((32, 32), Image.Resampling.BICUBIC))) <= 1
    assert difference(fit(data, (32, 32), Preprocessing(), fast=True), theirs) > 1


def test_fit_of_a_large_jpeg_at_a_reduced_scale(decoder: str) -> None:
    data = encoded(smooth(900, 1200), "JPEG", quality=95)
    theirs = pillow_fit(Image.open(io.BytesIO(data)), (96, 96), Preprocessing())
    assert difference(fit(data, (96, 96), Preprocessing(), fast=True), theirs) <= 2


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1)], ids=str)
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_pictures_of_one_pixel_or_one_row(size: tuple[int, int], format: str) -> None:
    pixels = np.full((*size, 3), (200, 100, 50), dtype=np.uint8)
    middle = tuple(slice(int(side * 0.4), math.ceil(side * 0.6)) for side in size)
    pixels[middle] = (20, 160, 220)
    data = encoded(pixels, format, **({"quality": 100, "subsampling": 0} if format == "JPEG" else {}))
    image = fit(data, (224, 224), Preprocessing())
    assert (np.abs(as_array(image) - (20, 160, 220)) <= 3).all()  # the centre fills all of it
    squashed = fit(data, (224, 224), Preprocessing(fit="squash"))
    assert (np.abs(as_array(squashed)[112, 112] - (20, 160, 220)) <= 3).all()
    end = random_resized_crop(data, (224, 224), (0.3, 0.5, 0.99, 0.99), (0.08, 1.0))
    assert (np.abs(as_array(end) - pixels[-1, -1]) <= 3).all()


# ---- Training --------------------------------------------------------------------------------------------------------


def test_a_random_resized_crop_is_its_box_resized(decoder: str) -> None:
    pixels = smooth(375, 500)
    data = encoded(pixels, "JPEG", quality=95)
    for numbers in torch.rand(20, 4).tolist():
        ours = random_resized_crop(data, (64, 64), numbers, (0.08, 1.0), fast=True)
        assert torch.equal(ours, random_resized_crop(data, (64, 64), numbers, (0.08, 1.0), fast=True))
        exact = random_resized_crop(data, (64, 64), numbers, (0.08, 1.0))
        top, left, height, width = crop_box((375, 500), numbers, (0.08, 1.0), (3 / 4, 4 / 3))
        part = Image.fromarray(pixels[top : top + height, left : left + width])
        # At a reduced scale the box is rounded to its pixels, which moves it by a fraction of one of the result.
        assert difference(ours, np.array(part.resize((64, 64), Image.Resampling.BICUBIC))) <= 8
        assert difference(exact, np.array(part.resize((64, 64), Image.Resampling.BICUBIC))) <= 5


@pytest.mark.parametrize("size", [(64, 64), (48, 80)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_crops_have_the_size_and_channels_asked_for(size: tuple[int, int], channels: int) -> None:
    crop = random_resized_crop(
        encoded(smooth(90, 70), "JPEG"), size, (0.1, 0.2, 0.3, 0.4), (0.2, 0.9), channels=channels
    )
    assert crop.shape == (channels, *size)
