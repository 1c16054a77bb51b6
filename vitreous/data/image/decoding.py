"""Decodes images to upright grey or RGB uint8 tensors, with a limit on memory.

Decoding is exact unless a reduction factor is given. JPEGs are then decoded at a reduced scale, which is faster and
changes pixel values by a few levels.

c: channels; h, w: height and width in pixels.
"""

import functools
import importlib
import io
import math
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image, ImageChops, UnidentifiedImageError
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.data.image.jpeg import FACTORS, JpegHeader, decode_rows, read_jpeg_header
from vitreous.data.sources.base import StoredImage

Interpolation = Literal["bilinear", "bicubic"]
ValueRange = tuple[float, float]  # pixel values that become black and white
Pixels = TypeVar("Pixels", np.ndarray, Image.Image)

# Images with more pixels are rejected before decoding, to prevent decompression bombs. Pillow has the same limit.
MAX_PIXELS = 178_956_970
# Limit on the estimated decoding memory of one image, and of all large images that a process decodes concurrently.
MAX_BYTES = 1 << 30
LARGE_BYTES = 1 << 27  # images that need less memory are not counted
HEIC_BRANDS = (b"ftypheic", b"ftypheix", b"ftypmif1")  # bytes 4 to 12 of a file


class UnreadableImage(ValueError):
    """Raised for an image that cannot be decoded. The message gives the reason; callers add the file name."""


# ---- Limits ----------------------------------------------------------------------------------------------------------


class _MemoryBudget:
    """Limits the memory of concurrently decoded large images to a total of MAX_BYTES."""

    def __init__(self) -> None:
        self._queue = threading.Lock()  # first come, first served, so that the largest images do not starve
        self._change = threading.Condition()
        self._used = 0

    @contextmanager
    def reserved(self, needed: int) -> Iterator[None]:
        with self._queue, self._change:
            self._change.wait_for(lambda: not self._used or self._used + needed <= MAX_BYTES)
            self._used += needed
        try:
            yield
        finally:
            with self._change:
                self._used -= needed
                self._change.notify_all()


_memory = _MemoryBudget()


def _after_fork() -> None:
    """Reset the budget in a forked worker, because other threads of the parent may have held the locks."""
    global _memory
    _memory = _MemoryBudget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_memory(size: Size, needed: int) -> None:
    """Raise UnreadableImage if an image has too many pixels or needs too much memory to decode."""
    shown = f"{size[0]} x {size[1]} pixels"
    if math.prod(size) > MAX_PIXELS:
        raise UnreadableImage(f"{shown} exceed the limit of {MAX_PIXELS:,} pixels for safe decoding")
    if needed > MAX_BYTES:
        limit = f"more than the limit of {MAX_BYTES >> 20:,} MiB"
        raise UnreadableImage(f"{shown} need {needed >> 20:,} MiB to decode, {limit}")


def reserve_memory(needed: int) -> AbstractContextManager[None]:
    """Wait until `needed` bytes are available to decode a large image. Small images never wait."""
    return _memory.reserved(needed) if needed > LARGE_BYTES else nullcontext()


@contextmanager
def decode_errors() -> Iterator[None]:
    """Convert any exception raised by a decoder to UnreadableImage with a one-line reason."""
    try:
        yield
    except (UnreadableImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise UnreadableImage("not an image in a supported format") from None
    except Image.DecompressionBombError:
        raise UnreadableImage(f"exceeds the limit of {MAX_PIXELS:,} pixels for safe decoding") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImage(f"cannot be decoded: {reason}") from error


# ---- Headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageHeader:
    """Size, orientation and decoding memory of an image."""

    size: Size  # after rotation by EXIF
    bytes: int  # memory needed to decode the image
    orientation: int = 1
    jpeg: JpegHeader | None = None
    opened: Image.Image | None = None


def read_image_header(image: StoredImage) -> ImageHeader:
    """Read the header of an image. Raise UnreadableImage if the image is too large to decode."""
    if isinstance(image, np.ndarray):
        right = image.ndim == 2 or (image.ndim == 3 and image.shape[2] in (1, 3, 4))
        if image.dtype != np.uint8 or not right or image.size == 0:
            got = f"{image.dtype} {list(image.shape)}"
            raise UnreadableImage(f"expected a uint8 array [h, w] or [h, w, c] with 1, 3 or 4 channels, got {got}")
        return ImageHeader((image.shape[0], image.shape[1]), image.nbytes)
    if not image:
        raise UnreadableImage("the file is empty")
    with decode_errors():
        opened = None
        if jpeg := read_jpeg_header(image):
            stored, needed = (jpeg.height, jpeg.width), jpeg.bytes
            check_memory(stored, needed)
            orientation = jpeg.orientation
        else:
            opened = open_image(image)
            stored, needed = (opened.height, opened.width), bytes_to_decode(opened)
            check_memory(stored, needed)  # before reading EXIF, for which Pillow may decode the image
            orientation = orientation_of(opened, image)
        if orientation != 1:  # rotation needs another copy
            needed += 3 * math.prod(stored)
            check_memory(stored, needed)
    return ImageHeader(stored[::-1] if orientation >= 5 else stored, needed, orientation, jpeg, opened)


def size_of(image: StoredImage) -> Size:
    """Read the (height, width) of the upright image from its header."""
    return read_image_header(image).size


# ---- Pixels ----------------------------------------------------------------------------------------------------------


def reduction_factor(size: Size, at_least: Size) -> int:
    """Return the largest JPEG reduction factor that keeps both sides of `size` at or above `at_least`."""
    fits = (f for f in FACTORS if all(side // f >= low for side, low in zip(size, at_least, strict=True)))
    return next(fits, 1)


def decode_pixels(
    image: StoredImage,
    header: ImageHeader,
    channels: int,
    factor: int = 1,
    bottom: int | None = None,
    value_range: ValueRange | None = None,
) -> tuple[UInt8[Tensor, "c h w"], int]:
    """Decode an image at 1 / factor of its size, or at full size if the format cannot be reduced.

    Also return the actual factor. Rows below `bottom` may be skipped. `value_range` is defined in `Preprocessing`. A
    grey image keeps one channel even for `channels=3`; repeating the channel after the resize saves memory.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels must be 1 (grey) or 3 (RGB), got {channels}")
    with decode_errors():
        pixels = None
        if isinstance(image, np.ndarray):
            pixels, factor = image[:, :, None] if image.ndim == 2 else image, 1
            pixels = _in_strips(pixels, over_white, 3) if pixels.shape[2] == 4 else pixels.copy()
        elif header.jpeg:
            rows = bottom if bottom and header.orientation == 1 else header.jpeg.height
            pixels = decode_rows(image, header.jpeg, channels == 1, factor, rows)
        if pixels is None:
            assert isinstance(image, bytes)
            opened = header.opened or open_image(image)
            factor = reduce(opened, channels == 1, factor)
            pixels = pixels_of(opened, value_range)
            opened.close()  # free Pillow's copy of the pixels before the resize allocates memory
        if channels == 1 and pixels.shape[2] == 3:
            pixels = _in_strips(pixels, grey_of, 1)
        return torch.from_numpy(upright(pixels, header.orientation)).permute(2, 0, 1), factor


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate and flip pixels [h, w, c] according to the EXIF orientation."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])


def repeat_grey(image: UInt8[Tensor, "c1 h w"], channels: int) -> UInt8[Tensor, "c2 h w"]:
    """Repeat the channel of a grey image `channels` times, with channels last in memory."""
    if len(image) == channels:
        return image
    return image.permute(1, 2, 0).repeat(1, 1, channels).permute(2, 0, 1)


def decode(
    image: StoredImage, channels: int = 3, at_least: Size | None = None, value_range: ValueRange | None = None
) -> UInt8[Tensor, "c h w"]:
    """Decode an image to upright grey (1 channel) or RGB (3 channels), channels last in memory.

    Transparent images are blended over white; animations are reduced to their first frame. With `at_least`, a JPEG may
    be decoded at 1/2, 1/4 or 1/8 of its size, if the result is at least that large. Raise UnreadableImage on failure.
    """
    header = read_image_header(image)
    with reserve_memory(header.bytes):
        factor = reduction_factor(header.size, at_least) if at_least else 1
        pixels, _ = decode_pixels(image, header, channels, factor, value_range=value_range)
        return repeat_grey(pixels, channels)


def resize(
    image: UInt8[Tensor, "c h w"], size: Size, interpolation: Interpolation
) -> UInt8[Tensor, "c {size[0]} {size[1]}"]:
    """Resize with antialiasing like Pillow, but several times faster. The result has channels last in memory."""
    batch = image[None]
    if len(image) > 1:
        batch = batch.contiguous(memory_format=torch.channels_last)
    return F.interpolate(batch, size, mode=interpolation, antialias=True)[0]


# ---- Other formats and colour modes, decoded with Pillow -------------------------------------------------------------

STRIP = 1 << 20  # pixels to convert at a time
# Bytes per pixel that Pillow's decoders allocate in addition to the image, e.g. for animation frames.
DECODER_BYTES = {"WEBP": 12, "AVIF": 12, "HEIF": 12, "JPEG2000": 16, "TIFF": 4, "GIF": 1}

PROGRAMS = ("EPS", "WMF")  # formats that Pillow would pass to Ghostscript or Windows, which execute them

_PILLOW = r"PIL\."  # module pattern
_FROM_PILLOW = ("ignore", None, Warning, re.compile(_PILLOW), 0)  # entry in warnings.filters


def open_image(data: bytes) -> Image.Image:
    """Open an image with Pillow without decoding it."""
    # Ignore Pillow's warnings about odd metadata and large images. The filter stays in place because `catch_warnings`
    # is not thread-safe: it restores the filters of the whole process.
    if _FROM_PILLOW not in warnings.filters:
        warnings.filterwarnings("ignore", module=_PILLOW)
    _register_heif()
    try:
        image = Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        if data[4:12] in HEIC_BRANDS:
            raise UnreadableImage('HEIC images require pillow-heif: pip install "vitreous[heic]"') from None
        raise
    if image.format in PROGRAMS:
        raise UnidentifiedImageError
    return image


@functools.cache
def _register_heif() -> None:
    """Make Pillow read HEIC files if the pillow-heif plugin is installed."""
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener()


def orientation_of(image: Image.Image, data: bytes) -> int:
    """Return the EXIF orientation, 1 to 8, without decoding."""
    if image.format == "TIFF":  # Pillow rotates TIFFs when loading them, and reports the rotated size
        return 1
    if image.format == "PNG" and b"eXIf" not in data:  # Pillow would decode the image to find EXIF data after it
        return 1
    value = image.getexif().get(0x0112, 1)
    return value if value in range(1, 9) else 1


def reduce(image: Image.Image, grey: bool, factor: int) -> int:
    """Make Pillow decode a JPEG at 1 / factor of its size if possible. Return the actual factor."""
    width, height = image.size
    if factor == 1 or image.format not in ("JPEG", "MPO"):
        return 1
    image.draft("L" if grey else None, (width // factor, height // factor))
    return factor if image.size == (-(-width // factor), -(-height // factor)) else 1


def bytes_to_decode(image: Image.Image) -> int:
    """Estimate the memory to decode and resize an image: Pillow's image, the decoder's buffers and the result."""
    own = 2 if image.mode.startswith("I;16") else 1 if image.mode in ("1", "L", "P") else 4
    result = 1 if _is_grey(image) else 3
    resizing = 4 if result == 1 else 0  # torch's kernel expands one channel to four
    each = result + max(own + DECODER_BYTES.get(image.format or "", 0), resizing)
    return image.width * image.height * each


def pixels_of(image: Image.Image, value_range: ValueRange | None = None) -> np.ndarray:
    """Decode to uint8 [h, w, 1] for a grey image, otherwise [h, w, 3], with little extra memory."""
    image.load()
    if _is_deep(image):
        return _eight_bits(image, value_range)
    if image.has_transparency_data:
        return _in_strips(image, lambda strip: over_white(np.asarray(strip.convert("RGBA"))), 3)
    if image.mode in ("1", "L"):
        return _in_strips(image, lambda strip: np.asarray(strip.convert("L"))[..., None], 1)
    # Adobe stores CMYK inverted and marks the file. Pillow assumes that every CMYK JPEG is from Adobe.
    if image.mode == "CMYK" and image.format in ("JPEG", "MPO") and "adobe" not in image.info:
        return _in_strips(image, lambda strip: np.asarray(ImageChops.invert(strip).convert("RGB")), 3)
    return _in_strips(image, lambda strip: np.asarray(strip.convert("RGB")), 3)


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "F" or image.mode.startswith("I")


def _is_grey(image: Image.Image) -> bool:
    return _is_deep(image) or (image.mode in ("1", "L") and not image.has_transparency_data)


def _strips(image: Pixels) -> Iterator[tuple[slice, Pixels]]:
    """Yield strips of a few rows each, because conversions need several times the memory of the pixels."""
    height, width = image.shape[:2] if isinstance(image, np.ndarray) else (image.height, image.width)
    count = max(STRIP // width, 1)
    for top in range(0, height, count):
        rows = slice(top, min(top + count, height))
        yield rows, image[rows] if isinstance(image, np.ndarray) else image.crop((0, rows.start, width, rows.stop))


def _in_strips(image: Pixels, convert: Callable[[Pixels], np.ndarray], channels: int) -> np.ndarray:
    height, width = image.shape[:2] if isinstance(image, np.ndarray) else (image.height, image.width)
    result = np.empty((height, width, channels), np.uint8)
    for rows, strip in _strips(image):
        result[rows] = convert(strip)
    return result


def brightest_value(data: StoredImage) -> int | None:
    """Return the highest value of a 16-bit grey image, or None for other images."""
    if isinstance(data, np.ndarray):
        return None
    with decode_errors():
        image = open_image(data)
        if not _is_16_bit(image):
            return None
        check_memory((image.height, image.width), bytes_to_decode(image))
        image.load()
        return max(int(np.asarray(strip).max()) for _, strip in _strips(image))


def range_for(brightest: int) -> tuple[int, int] | None:
    """Return the value range for 16-bit images if their brightest value has at most 14 bits, otherwise None.

    With the full 16-bit range, such images would be nearly black.
    """
    bits = brightest.bit_length()
    return (0, 2**bits - 1) if 0 < bits <= 14 else None


def _is_16_bit(image: Image.Image) -> bool:
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def _eight_bits(image: Image.Image, value_range: ValueRange | None = None) -> np.ndarray:
    """Scale the value range of an image to 0..255. Pillow's conversion would clip values above 255.

    The range starts at 0. For integers, its maximum is 65535. For floats, its maximum is the first of 1, 255 and 65535
    that no pixel exceeds. If a pixel exceeds 65535, the maximum is the value of the brightest pixel. `value_range`
    overrides this range.
    """
    if value_range is None and _is_16_bit(image):
        return _in_strips(image, lambda strip: ((np.asarray(strip).astype(np.uint32) + 128) // 257)[..., None], 1)

    def values(strip: Image.Image) -> np.ndarray:
        return np.nan_to_num(np.asarray(strip).astype(np.float64), posinf=0, neginf=0)

    if value_range is None:
        brightest = max(float(values(strip).max()) for _, strip in _strips(image))
        ranges = (1.0, 255.0, 65535.0) if image.mode == "F" else (65535.0,)
        value_range = (0.0, next((top for top in ranges if brightest <= top), brightest))
    low, high = value_range
    factor = 255 / (high - low)
    return _in_strips(image, lambda strip: np.clip(np.rint((values(strip) - low) * factor), 0, 255)[..., None], 1)


def over_white(rgba: np.ndarray) -> np.ndarray:
    """Blend an RGBA image over white.

    Dropping alpha, as `convert("RGB")` does, would expose the arbitrary colours of transparent pixels.
    """
    colour, alpha = rgba[..., :3].astype(np.uint16), rgba[..., 3:].astype(np.uint16)
    return ((colour * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def grey_of(rgb: np.ndarray) -> np.ndarray:
    """Convert RGB to ITU-R 601 luma (Pillow's mode L, JPEG's Y), uint8 [h, w, 1]."""
    weighted = rgb @ np.array([19595, 38470, 7471], dtype=np.uint32)
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[..., None]
