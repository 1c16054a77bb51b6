"""Decoding of EXIF orientations, CMYK, bit depths, alpha, palettes, animations and arrays."""

import struct
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image, ImageOps

from images import as_array, difference, encoded, jpeg_decoder, smooth
from vitreous.data.image import UnreadableImage, decode, fit, random_resized_crop, size_of
from vitreous.data.image.decoding import brightest_value, range_for
from vitreous.model.options import Preprocessing


@pytest.fixture(params=["simplejpeg", "Pillow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from jpeg_decoder(request.param, monkeypatch)


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF", "GIF", "PPM"])
def test_lossless_formats_are_exact(format: str) -> None:
    pixels = smooth(20, 30)
    if format == "GIF":  # at most 256 colours
        pixels = np.array(Image.fromarray(pixels).quantize(200).convert("RGB"))
    image = decode(encoded(pixels, format))
    assert np.array_equal(as_array(image), pixels)
    assert image.dtype == torch.uint8
    grey = decode(encoded(pixels, format), channels=1)
    assert np.array_equal(as_array(grey)[..., 0], np.array(Image.fromarray(pixels).convert("L")))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation_is_applied(decoder: str, format: str, orientation: int) -> None:
    upright = Image.fromarray(smooth(40, 60))
    # The inverse transform; only the two 90-degree rotations are not their own inverse.
    inverse = {5: 5, 6: 8, 7: 7, 8: 6}.get(orientation, orientation)
    tag = Image.Exif()
    tag[0x0112] = inverse
    turned = upright.copy()
    turned.info["exif"] = tag.tobytes()
    stored = ImageOps.exif_transpose(turned)
    tag[0x0112] = orientation
    options = {"JPEG": {"quality": 98, "subsampling": 0}, "WEBP": {"lossless": True}}.get(format, {})
    data = encoded(stored, format, exif=tag, **options)
    assert size_of(data) == (40, 60)
    assert difference(decode(data), np.array(upright)) <= (6 if format == "JPEG" else 0)
    crop = random_resized_crop(data, (30, 30), (0.5, 0.5, 0.3, 0.6), (0.5, 0.5))
    same = random_resized_crop(np.array(upright), (30, 30), (0.5, 0.5, 0.3, 0.6), (0.5, 0.5))
    assert difference(crop, as_array(same)) <= 6


def test_png_orientation_after_the_pixels_is_applied() -> None:
    tag = Image.Exif()
    tag[0x0112] = 6
    data = encoded(smooth(20, 30), exif=tag)
    at = data.index(b"eXIf") - 4
    (length,) = struct.unpack_from(">I", data, at)
    chunk, end = data[at : at + 12 + length], data.index(b"IEND") - 4
    moved = data[:at] + data[at + 12 + length : end] + chunk + data[end:]
    assert size_of(moved) == (30, 20)
    assert torch.equal(decode(moved), decode(data))


def test_cmyk_jpeg(decoder: str) -> None:
    inks = Image.fromarray(smooth(24, 32)).convert("CMYK")
    data = encoded(inks, "JPEG", quality=98)
    assert b"Adobe" in data  # so the values are inverted
    expected = np.array(inks.convert("RGB"))
    assert difference(decode(data), expected) <= 8
    # Without Adobe's segment, the same stored values are not inverted.
    at = data.index(b"Adobe") - 4
    (length,) = struct.unpack_from(">H", data, at + 2)
    plain = data[:at] + data[at + 2 + length :]
    ink = 255 - np.array(inks).astype(int)
    opposite = (255 - ink[..., :3]) * (255 - ink[..., 3:]) / 255
    assert difference(decode(plain), opposite) <= 8


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(format: str) -> None:
    values = np.linspace(0, 65535, 40 * 50).reshape(40, 50).astype(np.uint16)
    image = as_array(decode(encoded(values, format)))
    assert np.abs(image[..., 0] - values / 257).max() <= 0.5 + 1e-6
    assert np.array_equal(image[..., 0], image[..., 2])
    dark = decode(encoded(values // 512, format))  # still 16 bits although all values are below 128
    assert dark.max() <= 1


@pytest.mark.parametrize(("top", "expected"), [(1.0, 255), (200.0, 200), (60_000.0, 233), (1e6, 255)])
def test_floats_and_wide_integers_are_scaled_by_the_smallest_common_range(top: float, expected: int) -> None:
    ramp = np.linspace(0, top, 12, dtype=np.float32).reshape(3, 4)
    image = as_array(decode(encoded(Image.fromarray(ramp), "TIFF")))[..., 0]
    assert np.abs(image - ramp / top * expected).max() <= 1
    if top > 255:
        assert np.abs(as_array(decode(encoded(ramp.astype(np.int32), "TIFF")))[..., 0] - image).max() <= 1


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_value_range_maps_twelve_bits_to_the_whole_range(format: str) -> None:
    values = np.linspace(0, 4095, 40 * 50).reshape(40, 50).astype(np.uint16)
    data = encoded(values, format)
    assert decode(data).max() == 16  # nearly black
    pixels = decode(data, channels=1, value_range=(0, 4095))[0].numpy()
    assert np.abs(pixels - values / 4095 * 255).max() <= 0.5
    clipped = decode(data, channels=1, value_range=(1000, 2000))
    assert (clipped == 0).float().mean() == pytest.approx(1000 / 4095, abs=0.01)
    assert (clipped == 255).float().mean() == pytest.approx(2095 / 4095, abs=0.01)
    whole = Preprocessing(crop_fraction=1.0, value_range=(0, 4095))
    assert fit(data, (40, 50), whole, channels=1).max() == 255
    crop = random_resized_crop(data, (40, 50), [0.5] * 4, (1.0, 1.0), value_range=(0, 4095))
    assert crop.float().mean() == pytest.approx(127.5, abs=2)
    colour = encoded(smooth(20, 30))
    assert decode(colour, value_range=(0, 4095)).equal(decode(colour))


def test_used_bits_of_sixteen_bit_images_are_found() -> None:
    values = np.array([[0, 7], [3000, 5]], np.uint16)
    assert brightest_value(encoded(values)) == 3000
    assert brightest_value(encoded(values, "TIFF")) == 3000
    assert brightest_value(encoded(smooth(20, 30), "JPEG")) is None
    assert [range_for(value) for value in (3000, 4096, 16383)] == [(0, 4095), (0, 8191), (0, 16383)]
    assert range_for(16384) is range_for(0) is None
    with pytest.raises(UnreadableImage):
        brightest_value(b"not an image")


def test_nan_becomes_black() -> None:
    image = decode(encoded(Image.fromarray(np.array([[np.nan, 0.5, np.inf, 1]], dtype=np.float32)), "TIFF"))
    assert image[0].tolist() == [[0, 128, 0, 255]]


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_alpha_is_blended_with_white(mode: str) -> None:
    image = Image.fromarray(smooth(20, 30)).convert(mode)
    image.putalpha(Image.fromarray(np.tile(np.arange(30) * 255 // 29, (20, 1)).astype(np.uint8)))
    page = Image.new("RGBA", image.size, "white")
    page.alpha_composite(image.convert("RGBA"))
    expected = np.array(page.convert("RGB"))
    assert difference(decode(encoded(image)), expected) <= 1
    assert (decode(encoded(image))[:, :, 0] == 255).all()
    if mode == "RGBA":
        assert difference(decode(np.array(image)), expected) <= 1


def test_transparent_palette_colour_becomes_white() -> None:
    image = Image.fromarray(smooth(20, 30)).quantize(16)
    clear = image.getpixel((0, 0))
    decoded = as_array(decode(encoded(image, "GIF", transparency=clear)))
    invisible = np.array(image) == clear
    assert (decoded[invisible] == 255).all()
    assert np.array_equal(decoded[~invisible], np.array(image.convert("RGB"))[~invisible])


def test_one_bit_images_are_decoded() -> None:
    bits = np.random.default_rng(0).random((9, 13)) < 0.5
    assert np.array_equal(as_array(decode(encoded(Image.fromarray(bits))))[..., 1], bits * 255)


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP"])
def test_animation_is_decoded_to_its_first_frame(format: str) -> None:
    frames = [Image.new("RGB", (12, 8), colour) for colour in ("red", "lime", "blue")]
    data = encoded(
        frames[0], format, save_all=True, append_images=frames[1:], **({"lossless": True} if format == "WEBP" else {})
    )
    assert (as_array(decode(data)) == (255, 0, 0)).all()


@pytest.mark.parametrize("shape", [(6, 9), (6, 9, 1), (6, 9, 3), (6, 9, 4)], ids=str)
def test_arrays_are_accepted(shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    if shape[-1] == 4:
        array[..., 3] = 255
    array.flags.writeable = False  # like a memory map
    colour, grey = decode(array), decode(array, channels=1)
    assert size_of(array) == (6, 9)
    assert (colour.shape, grey.shape) == ((3, 6, 9), (1, 6, 9))
    assert np.array_equal(as_array(colour), np.broadcast_to(array.reshape(6, 9, -1)[..., :3], (6, 9, 3)))
    assert np.array_equal(
        as_array(grey)[..., 0], np.array(Image.fromarray(colour.permute(1, 2, 0).numpy()).convert("L"))
    )


def test_postscript_is_not_passed_to_ghostscript(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("a program was started"))
    postscript = encoded(smooth(20, 30), "EPS")
    with pytest.raises(UnreadableImage, match="format"):
        decode(postscript)
    with pytest.raises(UnreadableImage, match="format"):
        size_of(postscript)
