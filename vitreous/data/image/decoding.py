"""Decode a stored image to uint8 pixels, upright, grey or RGB, within limits on memory.

Decoding is exact unless a reduction factor is given: a JPEG much larger than needed then comes at a reduced scale
(jpeg.py), which is faster and changes pixels by a few levels.

c: channels, h, w: height and width in pixels.
"""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.data.image import colour_modes
from vitreous.data.image.jpeg import FACTORS, JpegHeader, decode_rows, read_header
from vitreous.data.sources.base import StoredImage

Interpolation = Literal["bilinear", "bicubic"]

# Larger images are rejected by their header: a small file can require all of a machine's memory. Pillow's limit.
MAX_PIXELS = 178_956_970
# Memory to decode, estimated from headers: of one image, and of all large ones that a process decodes together.
MAX_BYTES = 1 << 30
LARGE_BYTES = 1 << 27


class UnreadableImage(ValueError):
    """An image that cannot be read, with the reason; the caller adds its name."""


# ---- Limits ----------------------------------------------------------------------------------------------------------


class _MemoryBudget:
    """Lets threads decode large images at the same time while they need at most MAX_BYTES together."""

    def __init__(self) -> None:
        self._queue = threading.Lock()  # in order of arrival, or smaller images would keep the largest waiting
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
    """Reset the budget in a forked worker: other threads of the parent may have held locks and memory."""
    global _memory
    _memory = _MemoryBudget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_memory(size: Size, needed: int) -> None:
    """Reject an image of this size, before it is decoded, if it has too many pixels or needs too much memory."""
    shown = f"{size[0]} x {size[1]} pixels"
    if math.prod(size) > MAX_PIXELS:
        raise UnreadableImage(f"{shown} are more than {MAX_PIXELS:,}: too large to be decoded safely")
    if needed > MAX_BYTES:
        limit = f"more than the limit of {MAX_BYTES >> 20:,} MiB"
        raise UnreadableImage(f"{shown} need {needed >> 20:,} MiB to decode, {limit}: too large to be decoded safely")


def reserve_memory(needed: int) -> AbstractContextManager[None]:
    """Make a large image wait for the memory that others use; small ones never wait."""
    return _memory.reserved(needed) if needed > LARGE_BYTES else nullcontext()


@contextmanager
def decode_errors() -> Iterator[None]:
    """Turn the many exceptions that decoders raise for broken files into UnreadableImage with a one-line reason."""
    try:
        yield
    except (UnreadableImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise UnreadableImage("not an image in a supported format") from None
    except Image.DecompressionBombError:
        raise UnreadableImage(f"more than {MAX_PIXELS:,} pixels: too large to be decoded safely") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImage(f"cannot be decoded: {reason}") from error


# ---- Headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageHeader:
    """Header of an array, a JPEG, or an image that Pillow has opened."""

    size: Size  # upright
    bytes: int  # needed to decode it
    orientation: int = 1
    jpeg: JpegHeader | None = None
    opened: Image.Image | None = None


def read_image_header(image: StoredImage) -> ImageHeader:
    """Read the header and reject images that are too large to decode."""
    if isinstance(image, np.ndarray):
        return ImageHeader(_array_size(image), image.nbytes)
    if not image:
        raise UnreadableImage("the file is empty")
    with decode_errors():
        opened = None
        if jpeg := read_header(image):
            stored, needed = (jpeg.height, jpeg.width), jpeg.bytes
            check_memory(stored, needed)
            orientation = jpeg.orientation
        else:
            opened = colour_modes.open_image(image)
            stored, needed = (opened.height, opened.width), colour_modes.bytes_to_decode(opened)
            check_memory(stored, needed)  # before Pillow reads EXIF, which may decode the image
            orientation = colour_modes.orientation_of(opened, image)
        if orientation != 1:  # turning it upright takes another copy
            needed += 3 * math.prod(stored)
            check_memory(stored, needed)
    return ImageHeader(stored[::-1] if orientation >= 5 else stored, needed, orientation, jpeg, opened)


def _array_size(array: np.ndarray) -> Size:
    right = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if array.dtype != np.uint8 or not right or array.size == 0:
        shape = " x ".join(map(str, array.shape))
        raise UnreadableImage(f"an array of {shape} {array.dtype}, not of height x width [x 1, 3 or 4] uint8")
    return (array.shape[0], array.shape[1])


def size_of(image: StoredImage) -> Size:
    """Height and width of the upright image, from its header alone.

    >>> size_of(np.zeros((375, 500, 3), dtype=np.uint8))
    (375, 500)
    """
    return read_image_header(image).size


# ---- Pixels ----------------------------------------------------------------------------------------------------------


def reduction_factor(size: Size, at_least: Size) -> int:
    """The largest reduction of `size` that leaves `at_least`."""
    fits = (f for f in FACTORS if all(side // f >= low for side, low in zip(size, at_least, strict=True)))
    return next(fits, 1)


def decode_pixels(
    image: StoredImage, header: ImageHeader, channels: int, factor: int = 1, bottom: int | None = None
) -> tuple[UInt8[Tensor, "c h w"], int]:
    """Decode at 1 / factor of the size if the format can, at least down to row `bottom`; also return the factor used.

    A grey image has one channel even for `channels=3`: repeating it after the resize saves memory.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels is {channels}, but images are decoded to 1 (grey) or 3 (RGB)")
    with decode_errors():
        pixels = None
        if isinstance(image, np.ndarray):
            pixels, factor = image[:, :, None] if image.ndim == 2 else image, 1
            over_white = pixels.shape[2] == 4
            pixels = colour_modes.in_strips(pixels, colour_modes.over_white, 3) if over_white else pixels.copy()
        elif header.jpeg:
            rows = bottom if bottom and header.orientation == 1 else header.jpeg.height
            pixels = decode_rows(image, header.jpeg, channels == 1, factor, rows)
        if pixels is None:
            assert isinstance(image, bytes)
            opened = header.opened or colour_modes.open_image(image)
            factor = colour_modes.reduce(opened, channels == 1, factor)
            pixels = colour_modes.pixels_of(opened)
            opened.close()  # frees its copy before the resize takes memory
        if channels == 1 and pixels.shape[2] == 3:
            pixels = colour_modes.in_strips(pixels, colour_modes.grey_of, 1)
        return torch.from_numpy(upright(pixels, header.orientation)).permute(2, 0, 1), factor


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Rotate and mirror pixels [h, w, c] by EXIF's orientation."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    rows = -1 if orientation in (3, 4, 7, 8) else 1
    columns = -1 if orientation in (2, 3, 6, 7) else 1
    return np.ascontiguousarray(pixels[::rows, ::columns])


def repeat_grey(image: UInt8[Tensor, "c1 h w"], channels: int) -> UInt8[Tensor, "c2 h w"]:
    """Repeat the one channel of a grey image; channels stay last in memory."""
    if len(image) == channels:
        return image
    return image.permute(1, 2, 0).repeat(1, 1, channels).permute(2, 0, 1)


def decode(image: StoredImage, channels: int = 3, at_least: Size | None = None) -> UInt8[Tensor, "c h w"]:
    """Decode to grey (1 channel) or RGB (3), upright, with channels last in memory.

    With `at_least`, for display, a JPEG may come at 1/2, 1/4 or 1/8 of its size as long as neither side falls below.
    Alpha is laid on white, an animation shows its first frame. A file that cannot be read raises UnreadableImage.
    """
    header = read_image_header(image)
    with reserve_memory(header.bytes):
        factor = reduction_factor(header.size, at_least) if at_least else 1
        return repeat_grey(decode_pixels(image, header, channels, factor)[0], channels)


def resize(
    image: UInt8[Tensor, "c h w"], size: Size, interpolation: Interpolation
) -> UInt8[Tensor, "c {size[0]} {size[1]}"]:
    """Resize with antialiasing as Pillow does, several times as fast; the result has its channels last in memory."""
    batch = image[None]
    if len(image) > 1:
        batch = batch.contiguous(memory_format=torch.channels_last)
    return F.interpolate(batch, size, mode=interpolation, antialias=True)[0]
