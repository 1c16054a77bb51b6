"""Errors for unreadable images, memory limits, and resizing and cropping compared with Pillow."""

import contextlib
import io
import math
import os
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from images import as_array, difference, encoded, jpeg_decoder, smooth
from vitreous.data.image import UnreadableImage, decode, decoding, fit, jpeg, random_resized_crop, resize, size_of
from vitreous.data.image.crop import crop_box
from vitreous.data.image.decoding import MAX_BYTES, MAX_PIXELS, reserve_memory
from vitreous.model.options import Preprocessing


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from jpeg_decoder(request.param, monkeypatch)


# ---- Unreadable images -----------------------------------------------------------------------------------------------


def bomb(height: int, width: int) -> bytes:
    """Return a 100-byte PNG that would decode to gigabytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def tall_jpeg(height: int) -> bytes:
    data = encoded(smooth(8, 60_000), "JPEG")
    header = jpeg.read_jpeg_header(data)
    assert header is not None
    return jpeg._with_height(data, header, height)


BROKEN: dict[str, tuple[Callable[[], bytes | np.ndarray], str]] = {
    "empty": (lambda: b"", "the file is empty"),
    "text": (lambda: b"<html>404 not found</html>", "not an image in a supported format"),
    "signature": (lambda: b"\xff\xd8\xff\xe0", "not an image in a supported format"),
    "cut jpeg": (lambda: encoded(smooth(50, 60), "JPEG")[:-200], "truncated"),
    "jpeg without its end": (lambda: encoded(smooth(50, 60), "JPEG")[:-2], "truncated"),
    "cut png": (lambda: encoded(smooth(50, 60))[:-3000], "truncated|broken"),
    "cut gif": (lambda: encoded(smooth(50, 60), "GIF")[:-500], "truncated"),
    "bomb": (lambda: bomb(60_000, 60_000), "exceeds? the limit of 178,956,970 pixels"),
    "smaller bomb": (lambda: bomb(MAX_PIXELS // 10_000 + 1, 10_000), "exceeds? the limit of 178,956,970 pixels"),
    "jpeg bomb": (lambda: tall_jpeg(60_000), "60000 x 60000 pixels exceed the limit"),
    "floats": (lambda: np.zeros((5, 5, 3)), r"expected a uint8 array .* got float64 \[5, 5, 3\]"),
    "two channels": (lambda: np.zeros((5, 5, 2), dtype=np.uint8), "with 1, 3 or 4 channels"),
    "no pixels": (lambda: np.zeros((0, 5, 3), dtype=np.uint8), r"got uint8 \[0, 5, 3\]"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_unreadable_image_raises_a_one_line_error(decoder: str, name: str) -> None:
    make, reason = BROKEN[name]
    image = make()
    reads: list[Callable[[], torch.Tensor]] = [
        lambda: decode(image),
        lambda: fit(image, (16, 16), Preprocessing()),
        lambda: random_resized_crop(image, (16, 16), (0.5, 0, 0, 0), (0.08, 1.0)),  # only decodes the top
    ]
    for read in reads:
        with pytest.raises(UnreadableImage, match=reason) as error:
            read()
        assert "\n" not in str(error.value)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_file_gives_an_image_or_unreadable_image_error(data: st.DataObject) -> None:
    format = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"]))
    whole = bytearray(encoded(smooth(17, 23), format))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableImage):
        assert size_of(bytes(whole)) == tuple(decode(bytes(whole)).shape[1:])


def test_large_image_below_the_limit_does_not_warn() -> None:
    assert decode(encoded(Image.new("1", (10_000, 9_500))), channels=1).shape == (1, 9_500, 10_000)


def test_decoding_does_not_change_warning_filters_of_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warning filters are process-wide, and a server decodes in threads while its framework sets other filters."""
    decoding, resume, convert = threading.Event(), threading.Event(), Image.Image.convert

    def slow(image: Image.Image, *arguments: Any) -> Image.Image:
        decoding.set()
        assert resume.wait(30)
        return convert(image, *arguments)

    monkeypatch.setattr(Image.Image, "convert", slow)
    thread = threading.Thread(target=decode, args=(encoded(smooth(8, 8)),))
    thread.start()
    assert decoding.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resume.set()
        thread.join()
        warnings.warn("is not heard", UserWarning, stacklevel=1)


def test_heic_is_read_with_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for pillow-heif registers a format, as the plugin does."""
    plugin = ModuleType("pillow_heif")

    def register_heif_opener() -> None:
        Image.register_open("HEIF", lambda file, _: Image.new("RGB", (4, 3), "red"), lambda head: head[4:8] == b"ftyp")

    monkeypatch.setattr(plugin, "register_heif_opener", register_heif_opener, raising=False)
    monkeypatch.setattr(Image, "ID", [*Image.ID])
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    data = b"\0\0\0\x18ftypheic" + bytes(20)
    with pytest.raises(UnreadableImage):
        decode(data)
    monkeypatch.setitem(sys.modules, "pillow_heif", plugin)
    decoding._register_heif.cache_clear()
    assert decode(data).shape == (3, 3, 4)
    decoding._register_heif.cache_clear()


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow cannot read AVIF")
def test_avif_is_read() -> None:
    assert decode(encoded(smooth(30, 40), "AVIF")).shape == (3, 30, 40)


def test_other_channel_counts_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"channels must be 1 .* got 4"):
        decode(smooth(4, 4), channels=4)


# ---- Resizing --------------------------------------------------------------------------------------------------------

RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(16, 16), (40, 30), (100, 7), (1, 1), (300, 200)], ids=str)
def test_resize_matches_pillow(mode: Literal["bilinear", "bicubic"], size: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (61, 83, 3), dtype=np.uint8)
    expected = Image.fromarray(noise).resize(size[::-1], RESAMPLING[mode])
    assert difference(resize(decode(noise), size, mode), np.array(expected)) <= 1


# ---- Evaluation ------------------------------------------------------------------------------------------------------


def pillow_fit(image: Image.Image, size: tuple[int, int], config: Preprocessing) -> np.ndarray:
    """Resize to cover size / crop_fraction with Pillow, then crop the centre."""
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
@pytest.mark.parametrize("image", [(375, 500), (500, 375), (60, 60), (31, 200), (700, 40)], ids=str)
@pytest.mark.parametrize("size", [(64, 64), (48, 80), (96, 32)], ids=str)
def test_fit_equals_pillow(image: tuple[int, int], size: tuple[int, int], config: Preprocessing) -> None:
    pixels = smooth(*image)
    expected = pillow_fit(Image.fromarray(pixels), size, config)
    assert difference(fit(pixels, size, config), expected) <= 2


@pytest.mark.parametrize("subsampling", [0, 2], ids=["4:4:4", "4:2:0"])
@pytest.mark.parametrize("progressive", [False, True], ids=["baseline", "progressive"])
def test_large_jpeg_is_decoded_exactly_by_default(decoder: str, subsampling: int, progressive: bool) -> None:
    """Noise differs between scaled DCT decoding and a resize."""
    noise = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((1200, 900), Image.Resampling.BILINEAR)
    data = encoded(image, "JPEG", quality=90, subsampling=subsampling, progressive=progressive)
    expected = pillow_fit(Image.open(io.BytesIO(data)), (32, 32), Preprocessing())
    assert difference(fit(data, (32, 32), Preprocessing()), expected) <= 1
    whole = random_resized_crop(data, (32, 32), (0.5, 0.5, 0.5, 0.5), (1.0, 1.0))
    assert difference(whole, np.array(Image.open(io.BytesIO(data)).resize((32, 32), Image.Resampling.BICUBIC))) <= 1
    assert difference(fit(data, (32, 32), Preprocessing(), fast=True), expected) > 1


def test_fast_fit_of_a_large_jpeg_is_close_to_pillow(decoder: str) -> None:
    data = encoded(smooth(900, 1200), "JPEG", quality=95)
    expected = pillow_fit(Image.open(io.BytesIO(data)), (96, 96), Preprocessing())
    assert difference(fit(data, (96, 96), Preprocessing(), fast=True), expected) <= 2


@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1)], ids=str)
@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_images_of_one_pixel_or_one_row_work(size: tuple[int, int], format: str) -> None:
    pixels = np.full((*size, 3), (200, 100, 50), dtype=np.uint8)
    middle = tuple(slice(int(side * 0.4), math.ceil(side * 0.6)) for side in size)
    pixels[middle] = (20, 160, 220)
    data = encoded(pixels, format, **({"quality": 100, "subsampling": 0} if format == "JPEG" else {}))
    image = fit(data, (224, 224), Preprocessing())
    assert (np.abs(as_array(image) - (20, 160, 220)) <= 3).all()  # the centre pixel fills the output
    squashed = fit(data, (224, 224), Preprocessing(fit="squash"))
    assert (np.abs(as_array(squashed)[112, 112] - (20, 160, 220)) <= 3).all()
    end = random_resized_crop(data, (224, 224), (0.3, 0.5, 0.99, 0.99), (0.08, 1.0))
    assert (np.abs(as_array(end) - pixels[-1, -1]) <= 3).all()


# ---- Training --------------------------------------------------------------------------------------------------------


def test_random_resized_crop_equals_its_resized_box(decoder: str) -> None:
    pixels = smooth(375, 500)
    data = encoded(pixels, "JPEG", quality=95)
    for numbers in torch.rand(20, 4).tolist():
        crop = random_resized_crop(data, (64, 64), numbers, (0.08, 1.0), fast=True)
        assert torch.equal(crop, random_resized_crop(data, (64, 64), numbers, (0.08, 1.0), fast=True))
        exact = random_resized_crop(data, (64, 64), numbers, (0.08, 1.0))
        top, left, height, width = crop_box((375, 500), numbers, (0.08, 1.0), (3 / 4, 4 / 3))
        part = Image.fromarray(pixels[top : top + height, left : left + width])
        # At a reduced scale the box is rounded to pixels, which shifts the result by a fraction of a pixel.
        assert difference(crop, np.array(part.resize((64, 64), Image.Resampling.BICUBIC))) <= 8
        assert difference(exact, np.array(part.resize((64, 64), Image.Resampling.BICUBIC))) <= 5


@pytest.mark.parametrize("size", [(64, 64), (48, 80)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_crops_have_the_given_size_and_channels(size: tuple[int, int], channels: int) -> None:
    crop = random_resized_crop(
        encoded(smooth(90, 70), "JPEG"), size, (0.1, 0.2, 0.3, 0.4), (0.2, 0.9), channels=channels
    )
    assert crop.shape == (channels, *size)


MEASURE = """
import re, sys
import numpy as np
from pathlib import Path
from vitreous.data.image import fit
from vitreous.model.options import Preprocessing
fit(np.zeros((9, 9, 3), np.uint8), (8, 8), Preprocessing())
data = Path(sys.argv[1]).read_bytes()
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")
before = peak()
fit(data, (8, 8), Preprocessing())
print(peak() - before)
"""


def blank_png(height: int, width: int, bits: int, kind: int, bytes_each: int) -> bytes:
    """Return a black PNG, which is a small file at any image size."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    pixels = zlib.compress(b"\0" * (1 + width * bytes_each) * height, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", ["16-bit grey PNG", "RGBA PNG", "CMYK TIFF", "float TIFF", "WebP"])
def test_decoding_needs_no_more_memory_than_estimated_from_the_header(kind: str, tmp_path: Path) -> None:
    size = (2500, 4000)
    match kind:
        case "16-bit grey PNG":
            data = blank_png(*size, 16, 0, 2)
        case "RGBA PNG":
            data = blank_png(*size, 8, 6, 4)
        case "WebP":
            data = encoded(Image.new("RGB", size[::-1]), "WEBP")
        case _:
            mode = kind.split()[0].replace("float", "F")
            data = encoded(Image.new(mode, size[::-1]), "TIFF", compression="tiff_lzw")
    (tmp_path / "image").write_bytes(data)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "image")]
    taken = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout) * 1024
    assert taken < 1.2 * decoding.bytes_to_decode(decoding.open_image(data)) + (30 << 20)


@pytest.mark.parametrize("kind", [(16, 2, 6), (8, 6, 4)], ids=["16-bit RGB", "RGBA"])
def test_image_that_needs_too_much_memory_is_rejected_with_size_and_limit(kind: tuple[int, int, int]) -> None:
    bits, colour, _ = kind
    data = blank_png(0, 0, bits, colour, 0)  # the header is enough
    header = struct.pack(">IIBBBBB", 13_000, 13_000, bits, colour, 0, 0, 0)
    data = data[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + data[33:]
    for read in (size_of, decode, lambda data: fit(data, (8, 8), Preprocessing())):
        with pytest.raises(UnreadableImage, match=r"13000 x 13000 pixels need 1,128 MiB .* limit of 1,024 MiB"):
            read(data)


@pytest.mark.parametrize(("together", "expected"), [(0.5, 1), (1, 1), (2, 2), (3.5, 3), (100, 6)])
def test_concurrent_decoding_respects_the_memory_limit(
    together: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six threads decode. The memory limit allows only some at a time, but always at least one."""
    data = encoded(np.zeros((50, 50, 3), np.uint8))
    needed = decoding.bytes_to_decode(decoding.open_image(data))
    most, running, change = 0, 0, threading.Condition()
    real = decoding.pixels_of

    def counted(image: Image.Image, *options: Any) -> np.ndarray:
        nonlocal most, running
        with change:
            running += 1
            most = max(most, running)
            change.notify_all()
            change.wait_for(lambda: most >= expected, timeout=10)  # wait until all permitted threads have started
            change.wait_for(lambda: most > expected, timeout=0.05)  # time for more threads to start
        pixels = real(image, *options)
        with change:
            running -= 1
        return pixels

    monkeypatch.setattr(decoding, "pixels_of", counted)
    monkeypatch.setattr("vitreous.data.image.decoding.check_memory", lambda *_: None)
    monkeypatch.setattr("vitreous.data.image.decoding.MAX_BYTES", int(together * needed))
    monkeypatch.setattr("vitreous.data.image.decoding.LARGE_BYTES", 0)
    threads = [threading.Thread(target=fit, args=(data, (8, 8), Preprocessing())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == expected


def test_small_images_do_not_wait_for_large_ones() -> None:
    small = threading.Thread(target=fit, args=(encoded(np.zeros((50, 50, 3), np.uint8)), (8, 8), Preprocessing()))
    with reserve_memory(MAX_BYTES):
        small.start()
        small.join(10)
        assert not small.is_alive()


def test_conversion_in_strips_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    grey, colour = generator.integers(0, 256, (37, 23)).astype(np.uint8), generator.integers(0, 256, (37, 23, 4))
    rgba = Image.fromarray(colour.astype(np.uint8), "RGBA")
    palette = rgba.convert("RGB").quantize(40)
    images = [rgba, rgba.convert("RGB"), palette, rgba.convert("LA"), rgba.convert("CMYK"), rgba.convert("HSV"),
              Image.fromarray(grey), Image.fromarray(grey).convert("1"), Image.fromarray(grey.astype(np.float32)),
              Image.fromarray(grey.astype(np.uint16) * 257), Image.fromarray(grey.astype(np.int32) * 300)]  # fmt: skip
    seen = palette.copy()
    seen.info["transparency"] = 3
    images.append(seen)
    whole = [decoding.pixels_of(image) for image in images]
    monkeypatch.setattr(decoding, "STRIP", 100)
    for image, expected in zip(images, whole, strict=True):
        assert np.array_equal(decoding.pixels_of(image), expected), image.mode
