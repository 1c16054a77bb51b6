"""From a picture as it is stored to pixels of the size that is needed: upright, 8 bits, grey or RGB.

Everything here runs in the workers, on one picture: decode, then one antialiased resize on uint8. Decoding is exact,
unless the caller asks for `fast`: a JPEG much larger than needed then comes at a reduced scale (jpeg.py), which is
faster and changes pixels by a few levels.

c: channels, h, w: height and width in pixels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.data.image import modes
from vitreous.data.image.crop import crop_box, nearest
from vitreous.data.image.errors import MAX_PIXELS as MAX_PIXELS
from vitreous.data.image.errors import UnreadableImage as UnreadableImage
from vitreous.data.image.errors import check_memory as check_memory
from vitreous.data.image.errors import explained as explained
from vitreous.data.image.errors import reserve_memory
from vitreous.data.image.jpeg import FACTORS, JpegHeader, decode_rows, read_header
from vitreous.data.sources.base import Picture
from vitreous.model.centre_crop import centre, resized_for
from vitreous.model.options import IGNORED, Preprocessing

Interpolation = Literal["bilinear", "bicubic"]


# ---- Headers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Stored:
    """A picture whose header has been read: an array, a JPEG, or an image that Pillow has opened."""

    size: Size  # upright
    bytes: int  # needed to decode it
    orientation: int = 1
    jpeg: JpegHeader | None = None
    image: Image.Image | None = None


def _read(picture: Picture) -> _Stored:
    if isinstance(picture, np.ndarray):
        return _Stored(_array_size(picture), picture.nbytes)
    if not picture:
        raise UnreadableImage("the file is empty")
    with explained():
        jpeg = read_header(picture)
        image = None if jpeg else modes.open_image(picture)
        if jpeg:
            stored, needed = (jpeg.height, jpeg.width), jpeg.bytes
        else:
            assert image is not None
            stored, needed = (image.height, image.width), modes.bytes_to_decode(image)
        check_memory(stored, needed)  # before Pillow looks for EXIF, which may decode the picture
        orientation = jpeg.orientation if jpeg else modes.orientation_of(image, picture)  # type: ignore[arg-type]
        if orientation != 1:  # turning it upright takes another copy
            needed += 3 * math.prod(stored)
            check_memory(stored, needed)
    return _Stored(stored[::-1] if orientation >= 5 else stored, needed, orientation, jpeg, image)


def _array_size(array: np.ndarray) -> Size:
    right = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (1, 3, 4))
    if array.dtype != np.uint8 or not right or array.size == 0:
        shape = " x ".join(map(str, array.shape))
        raise UnreadableImage(f"an array of {shape} {array.dtype}, not of height x width [x 1, 3 or 4] uint8")
    return (array.shape[0], array.shape[1])


def size_of(picture: Picture) -> Size:
    """Height and width of the upright picture, from its header alone.

    >>> size_of(np.zeros((375, 500, 3), dtype=np.uint8))
    (375, 500)
    """
    return _read(picture).size


# ---- Pixels ----------------------------------------------------------------------------------------------------------


def _factor(size: Size, at_least: Size) -> int:
    """The largest reduction of `size` that leaves `at_least`."""
    fits = (f for f in FACTORS if all(side // f >= low for side, low in zip(size, at_least, strict=True)))
    return next(fits, 1)


def _pixels(
    picture: Picture, stored: _Stored, channels: int, factor: int = 1, bottom: int | None = None
) -> tuple[UInt8[Tensor, "c h w"], int]:
    """Decode at 1 / factor of the size if the format can, at least down to row `bottom`; and the factor it was.

    A grey picture has one channel even if three are asked for: repeating it after the resize saves memory.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels is {channels}, but pictures are decoded to 1 (grey) or 3 (RGB)")
    with explained():
        pixels = None
        if stored.jpeg:
            rows = bottom if bottom and stored.orientation == 1 else stored.jpeg.height
            pixels = decode_rows(picture, stored.jpeg, channels == 1, factor, rows)  # type: ignore[arg-type]
        if isinstance(picture, np.ndarray):
            pixels, factor = picture[:, :, None] if picture.ndim == 2 else picture, 1
            pixels = modes.in_strips(pixels, modes.over_white, 3) if pixels.shape[2] == 4 else pixels.copy()
        elif pixels is None:
            image = stored.image or modes.open_image(picture)
            factor = modes.reduce(image, channels == 1, factor)
            pixels = modes.pixels_of(image)
            image.close()  # frees its copy before the resize takes memory
        if channels == 1 and pixels.shape[2] == 3:
            pixels = modes.in_strips(pixels, modes.grey_of, 1)
        return torch.from_numpy(modes.upright(pixels, stored.orientation)).permute(2, 0, 1), factor


def _expanded(image: UInt8[Tensor, "c1 h w"], channels: int) -> UInt8[Tensor, "c2 h w"]:
    """Repeat the one channel of a grey picture; channels stay last in memory."""
    if len(image) == channels:
        return image
    return image.permute(1, 2, 0).repeat(1, 1, channels).permute(2, 0, 1)


def decode(picture: Picture, channels: int = 3, at_least: Size | None = None) -> UInt8[Tensor, "c h w"]:
    """Decode to grey (1 channel) or RGB (3), upright, with channels last in memory.

    With `at_least`, for display, a JPEG may come at 1/2, 1/4 or 1/8 of its size as long as neither side falls below.
    Alpha is laid on white, an animation shows its first frame. A file that cannot be read raises UnreadableImage.
    """
    stored = _read(picture)
    with reserve_memory(stored.bytes):
        image, _ = _pixels(picture, stored, channels, _factor(stored.size, at_least) if at_least else 1)
        return _expanded(image, channels)


def resize(
    image: UInt8[Tensor, "c h w"], size: Size, interpolation: Interpolation
) -> UInt8[Tensor, "c {size[0]} {size[1]}"]:
    """Antialiased, as Pillow does it, and several times as fast. The result has its channels last in memory."""
    batch = image[None]
    if len(image) > 1:
        batch = batch.contiguous(memory_format=torch.channels_last)
    return F.interpolate(batch, size, mode=interpolation, antialias=True)[0]


# ---- Evaluation ------------------------------------------------------------------------------------------------------


def fit(
    picture: Picture, size: Size, preprocessing: Preprocessing, channels: int = 3, fast: bool = False
) -> UInt8[Tensor, "c {size[0]} {size[1]}"]:
    """Resize and crop (or pad) a picture for evaluation, as `preprocessing` describes."""
    stored = _read(picture)
    resized = resized_for(stored.size, size, preprocessing)
    with reserve_memory(stored.bytes):
        image, _ = _pixels(picture, stored, channels, _fit_factor(stored, resized) if fast else 1)
        for axis in (0, 1):
            image, side = _trim(image, axis + 1, resized[axis], size[axis])
            resized = (side, resized[1]) if axis == 0 else (resized[0], side)
        image = _expanded(resize(image, resized, preprocessing.interpolation), channels)
    top, left = centre(resized, size, preprocessing)
    if preprocessing.fit == "pad":
        image, top, left = _pad(image, top, left, size, preprocessing)
    return image[:, top : top + size[0], left : left + size[1]].contiguous()


def _fit_factor(stored: _Stored, resized: Size) -> int:
    """The reduction that leaves twice the size needed, so that the resize has most of the say in the pixels."""
    return _factor(stored.size, (2 * resized[0], 2 * resized[1])) if stored.jpeg else 1


def _pad(
    image: UInt8[Tensor, "c h w"], top: int, left: int, size: Size, preprocessing: Preprocessing
) -> tuple[UInt8[Tensor, "c h2 w2"], int, int]:
    """Surround an image that is smaller than `size` with the mean colour; (top, left) is where the window begins."""
    mean = preprocessing.mean * (len(image) if len(preprocessing.mean) == 1 else 1)
    colour = torch.tensor([min(max(round(255 * value), 0), 255) for value in mean], dtype=torch.uint8)
    height, width = (max(side, want) for side, want in zip(image.shape[1:], size, strict=True))
    padded = colour[:, None, None].repeat(1, height, width)
    down, right = max(-top, 0), max(-left, 0)
    padded[:, down : down + image.shape[1], right : right + image.shape[2]] = image
    return padded, max(top, 0), max(left, 0)


def _trim(image: UInt8[Tensor, "c h w"], dim: int, resized: int, wanted: int) -> tuple[Tensor, int]:
    """Cut off some of what the centre crop will, equally at both ends, where a side is far too long.

    1 x 10000 pixels would become 256 x 2,560,000. What is left is four times the crop and a margin, so that neither
    the new ends nor the rounding of the new length show in it.
    """
    if resized <= 16 * wanted:
        return image, resized
    length = image.shape[dim]
    keep = math.ceil(4 * wanted * length / resized) + 8
    if keep >= length:
        return image, resized
    cut = (length - keep) // 2
    kept = length - 2 * cut
    return image.narrow(dim, cut, kept), round(resized * kept / length)


# ---- Training --------------------------------------------------------------------------------------------------------


def random_resized_crop(
    picture: Picture,
    size: Size,
    numbers: Sequence[float],
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    interpolation: Interpolation = "bicubic",
    channels: int = 3,
    fast: bool = False,
) -> UInt8[Tensor, "c {size[0]} {size[1]}"]:
    """A part of the picture, chosen by four uniform `numbers` (see `crop_box`), resized to `size`.

    Its channels are last in memory, as decoders and `resize` like them; a batch of that layout saves a transposition.
    """
    stored = _read(picture)
    top, left, height, width = crop_box(stored.size, numbers, scale, ratio)
    reduced = _factor((height, width), size) if fast else 1
    with reserve_memory(stored.bytes):
        image, factor = _pixels(picture, stored, channels, reduced, bottom=top + height)
        part = image[:, top // factor : -(-(top + height) // factor), left // factor : -(-(left + width) // factor)]
        return _expanded(resize(part, size, interpolation), channels)


# ---- Masks -----------------------------------------------------------------------------------------------------------


def fit_mask(
    ids: UInt8[np.ndarray, "h w"], picture: Picture, size: Size, preprocessing: Preprocessing, fast: bool = False
) -> UInt8[Tensor, "{size[0]} {size[1]}"]:
    """Resize and crop a mask exactly as `fit` does its picture, taking the nearest id; padding is ignored."""
    stored = _read_with(ids, picture)
    resized = resized_for(stored.size, size, preprocessing)
    factor = _fit_factor(stored, resized) if fast else 1
    return _nearest(ids, (0, 0, *stored.size), factor, resized, centre(resized, size, preprocessing), size)


def crop_mask(
    ids: UInt8[np.ndarray, "h w"],
    picture: Picture,
    size: Size,
    numbers: Sequence[float],
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    fast: bool = False,
) -> UInt8[Tensor, "{size[0]} {size[1]}"]:
    """Crop and resize a mask exactly as `random_resized_crop` does its picture with the same numbers."""
    stored = _read_with(ids, picture)
    box = crop_box(stored.size, numbers, scale, ratio)
    return _nearest(ids, box, _factor(box[2:], size) if stored.jpeg and fast else 1, size, (0, 0), size)


def _read_with(ids: np.ndarray, picture: Picture) -> _Stored:
    """The picture's header. Were the mask not as large as the picture, the two would be cut at different places."""
    stored = _read(picture)
    if ids.shape != stored.size:
        sizes = [" x ".join(map(str, shape)) for shape in (ids.shape, stored.size)]
        raise UnreadableImage(f"its mask is {sizes[0]} pixels, but the picture {sizes[1]}")
    return stored


def _nearest(
    ids: np.ndarray, box: tuple[int, int, int, int], factor: int, resized: Size, start: Size, size: Size
) -> Tensor:
    """Resize a box of the mask to `resized` and cut out the window of `size` that begins at `start`.

    A JPEG that was decoded at 1 / factor shows whole groups of so many pixels. The mask's box must begin and end with
    one as well, or the two would be apart by up to a pixel.
    """
    places, inside = [], []
    for axis in (0, 1):
        first = box[axis] // factor * factor
        length = -(-(box[axis] + box[2 + axis]) // factor) * factor - first
        at = nearest(first, length, resized[axis], start[axis], size[axis])
        places.append(np.clip(at, 0, ids.shape[axis] - 1))  # the last group may reach beyond the end
        window = np.arange(start[axis], start[axis] + size[axis])
        inside.append((window >= 0) & (window < resized[axis]))
    shown = ids.take(places[0], axis=0).take(places[1], axis=1)
    return torch.from_numpy(np.where(np.logical_and.outer(*inside), shown, np.uint8(IGNORED)))
