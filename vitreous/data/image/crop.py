"""Crops images to the model's input size: centre crop or padding for evaluation, random crop for training.

Masks are cropped in exactly the same way as their images, with nearest-neighbour interpolation. Everything here runs in
the loader's workers, on one image at a time, with a single antialiased resize on uint8; batch_crop.py does the same on
a GPU. Images that are kept in memory are first reduced by `shrink`.

c: channels; h, w: height and width in pixels.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.data.image.decoding import (
    ImageHeader,
    Interpolation,
    UnreadableImage,
    ValueRange,
    decode_pixels,
    read_image_header,
    reduction_factor,
    repeat_grey,
    reserve_memory,
    resize,
)
from vitreous.data.sources.base import StoredImage
from vitreous.model.centre_crop import centre, resized_for
from vitreous.model.options import IGNORED, Preprocessing

RATIO = (3 / 4, 4 / 3)  # aspect ratios (width / height) of random resized crops

# ---- Evaluation ------------------------------------------------------------------------------------------------------


def fit(
    image: StoredImage, size: Size, preprocessing: Preprocessing, channels: int = 3, fast: bool = False
) -> UInt8[Tensor, "c {size[0]} {size[1]}"]:
    """Resize and crop (or pad) an image for evaluation, according to `preprocessing`."""
    header = read_image_header(image)
    resized = resized_for(header.size, size, preprocessing)
    with reserve_memory(header.bytes):
        factor = _fit_factor(header, resized) if fast else 1
        pixels, _ = decode_pixels(image, header, channels, factor, value_range=preprocessing.value_range)
        for axis in (0, 1):
            pixels, side = _trim(pixels, axis + 1, resized[axis], size[axis])
            resized = (side, resized[1]) if axis == 0 else (resized[0], side)
        pixels = repeat_grey(resize(pixels, resized, preprocessing.interpolation), channels)
    top, left = centre(resized, size, preprocessing)
    if preprocessing.fit == "pad":
        pixels, top, left = _pad(pixels, top, left, size, preprocessing)
    return pixels[:, top : top + size[0], left : left + size[1]].contiguous()


def _fit_factor(header: ImageHeader, resized: Size) -> int:
    """Return a JPEG reduction factor. At least twice `resized` remains, so resizing does most of the filtering."""
    return reduction_factor(header.size, (2 * resized[0], 2 * resized[1])) if header.jpeg else 1


def _pad(
    image: UInt8[Tensor, "c h w"], top: int, left: int, size: Size, preprocessing: Preprocessing
) -> tuple[UInt8[Tensor, "c h2 w2"], int, int]:
    """Pad an image to at least `size` with the mean colour. Also return the new top and left of the crop."""
    mean = preprocessing.mean * (len(image) if len(preprocessing.mean) == 1 else 1)
    colour = torch.tensor([min(max(round(255 * value), 0), 255) for value in mean], dtype=torch.uint8)
    height, width = (max(side, target) for side, target in zip(image.shape[1:], size, strict=True))
    padded = colour[:, None, None].repeat(1, height, width)
    down, right = max(-top, 0), max(-left, 0)
    padded[:, down : down + image.shape[1], right : right + image.shape[2]] = image
    return padded, max(top, 0), max(left, 0)


def _trim(image: UInt8[Tensor, "c h w"], dim: int, resized: int, wanted: int) -> tuple[Tensor, int]:
    """Trim both ends of a very long side before the resize instead of after it.

    Otherwise an image of 1 x 10,000 pixels would be resized to 256 x 2,560,000. The remaining length is four times the
    length of the crop, plus a margin. Neither the new borders nor the rounding of the new length affect the crop.
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
    image: StoredImage,
    size: Size,
    numbers: Sequence[float],
    scale: tuple[float, float],
    interpolation: Interpolation = "bicubic",
    channels: int = 3,
    fast: bool = False,
    value_range: ValueRange | None = None,
) -> UInt8[Tensor, "c {size[0]} {size[1]}"]:
    """Crop an image to the random box that `crop_box` returns for `numbers`, and resize the crop to `size`.

    The result has channels last in memory.
    """
    header = read_image_header(image)
    top, left, height, width = crop_box(header.size, numbers, scale, RATIO)
    reduced = reduction_factor((height, width), size) if fast else 1
    with reserve_memory(header.bytes):
        pixels, factor = decode_pixels(image, header, channels, reduced, bottom=top + height, value_range=value_range)
        crop = pixels[:, top // factor : -(-(top + height) // factor), left // factor : -(-(left + width) // factor)]
        return repeat_grey(resize(crop, size, interpolation), channels)


def crop_box(
    image: Size, numbers: Sequence[float], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of an Inception-style crop: torchvision's distribution without its retries.

    torchvision draws the area fraction uniformly from `scale` and the log aspect ratio (width / height) uniformly from
    log `ratio`, up to ten times, until the crop fits into the image. This is a uniform distribution over the (area,
    aspect) pairs that fit. In an image of log aspect y, a crop of log aspect x fits if its area fraction is at most
    exp(-|x - y|), so the density of x is proportional to the length of the part of `scale` below this limit.

    `numbers` are four uniform random numbers. The first is mapped to x with a tabulated inverse CDF, the second
    determines the area, and the last two determine the position. If no pair fits because the image is too elongated,
    the result is the largest crop of the nearest allowed aspect, at a random position (torchvision centres it).
    """
    height, width = image
    own = math.log(width / height)
    aspects, distribution = _aspects(own, scale, ratio)
    if distribution is not None:
        aspect = float(np.interp(numbers[0], distribution, aspects))
        largest = min(math.exp(-abs(aspect - own)), scale[1])
        area = height * width * (scale[0] + numbers[1] * max(largest - scale[0], 0))
    else:
        aspect = min(max(own, aspects[0]), aspects[-1])
        area = height * width * math.exp(-abs(aspect - own))
    crop_height = min(max(round(math.sqrt(area / math.exp(aspect))), 1), height)
    crop_width = min(max(round(math.sqrt(area * math.exp(aspect))), 1), width)
    top, left = int(numbers[2] * (height - crop_height + 1)), int(numbers[3] * (width - crop_width + 1))
    return top, left, crop_height, crop_width


@functools.lru_cache(4096)  # data sets have few distinct sizes, and this is slower than the rest of the crop
def _aspects(
    own: float, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return evenly spaced log aspect ratios, and the CDF of a crop's log aspect ratio there (None if no crop fits)."""
    aspects = np.linspace(math.log(ratio[0]), math.log(ratio[1]), 65)
    room = np.maximum(np.minimum(np.exp(-np.abs(aspects - own)), scale[1]) - scale[0], 0)
    mass = np.concatenate([[0], np.cumsum(room[1:] + room[:-1])])
    return aspects, mass / mass[-1] if mass[-1] > 0 else None


# ---- Images to be kept in memory -------------------------------------------------------------------------------------


def shrunk(size: Size, side: int) -> Size:
    """Return a size with the same aspect ratio whose shorter side is at most `side`.

    >>> shrunk((300, 450), 200), shrunk((100, 150), 200)
    ((200, 300), (100, 150))
    """
    shorter = min(size)
    return size if shorter <= side else (round(size[0] * side / shorter), round(size[1] * side / shorter))


def shrink(
    image: StoredImage, side: int, interpolation: Interpolation, channels: int = 3, fast: bool = False
) -> UInt8[Tensor, "c h w"]:
    """Decode an image, and downsize it if its shorter side exceeds `side` pixels. Grey images keep one channel."""
    header = read_image_header(image)
    size = shrunk(header.size, side)
    with reserve_memory(header.bytes):
        pixels, _ = decode_pixels(image, header, channels, _fit_factor(header, size) if fast else 1)
        return pixels if pixels.shape[1:] == size else resize(pixels, size, interpolation)


def shrink_mask(ids: UInt8[np.ndarray, "h w"], image: StoredImage, side: int) -> UInt8[np.ndarray, "h2 w2"]:
    """Downsize a mask as `shrink` downsizes its image."""
    header = _header_for_mask(ids, image)
    size = shrunk(header.size, side)
    return _sample_mask(ids, (0, 0, *header.size), 1, size, (0, 0), size).numpy()


# ---- Masks -----------------------------------------------------------------------------------------------------------


def fit_mask(
    ids: UInt8[np.ndarray, "h w"], image: StoredImage, size: Size, preprocessing: Preprocessing, fast: bool = False
) -> UInt8[Tensor, "{size[0]} {size[1]}"]:
    """Resize and crop a mask as `fit` resizes and crops its image. Padding becomes IGNORED."""
    header = _header_for_mask(ids, image)
    resized = resized_for(header.size, size, preprocessing)
    factor = _fit_factor(header, resized) if fast else 1
    return _sample_mask(ids, (0, 0, *header.size), factor, resized, centre(resized, size, preprocessing), size)


def crop_mask(
    ids: UInt8[np.ndarray, "h w"],
    image: StoredImage,
    size: Size,
    numbers: Sequence[float],
    scale: tuple[float, float],
    fast: bool = False,
) -> UInt8[Tensor, "{size[0]} {size[1]}"]:
    """Crop and resize a mask as `random_resized_crop` crops and resizes its image for the same `numbers`."""
    header = _header_for_mask(ids, image)
    box = crop_box(header.size, numbers, scale, RATIO)
    factor = reduction_factor(box[2:], size) if header.jpeg and fast else 1
    return _sample_mask(ids, box, factor, size, (0, 0), size)


def _header_for_mask(ids: np.ndarray, image: StoredImage) -> ImageHeader:
    """Read the header of an image. Raise UnreadableImage if the mask has a different size."""
    header = read_image_header(image)
    if ids.shape != header.size:
        sizes = [" x ".join(map(str, shape)) for shape in (ids.shape, header.size)]
        raise UnreadableImage(f"the mask is {sizes[0]} pixels, but the image is {sizes[1]}")
    return header


def _sample_mask(
    ids: np.ndarray, box: tuple[int, int, int, int], factor: int, resized: Size, start: Size, size: Size
) -> Tensor:
    """Resize a box of the mask to `resized` and return the window of `size` that starts at `start`.

    Each pixel of a JPEG decoded at 1 / factor covers a block of `factor` x `factor` pixels. The box is aligned to these
    blocks; otherwise image and mask would be misaligned by up to a pixel.
    """
    rows_columns, inside = [], []
    for axis in (0, 1):
        first = box[axis] // factor * factor
        length = -(-(box[axis] + box[2 + axis]) // factor) * factor - first
        window = np.arange(start[axis], start[axis] + size[axis])
        # Align pixel centres, as interpolating resizes do.
        nearest = first + (2 * window + 1) * length // (2 * resized[axis])
        rows_columns.append(np.clip(nearest, 0, ids.shape[axis] - 1))  # the last block may extend past the border
        inside.append((window >= 0) & (window < resized[axis]))
    sampled = ids.take(rows_columns[0], axis=0).take(rows_columns[1], axis=1)
    return torch.from_numpy(np.where(np.logical_and.outer(*inside), sampled, np.uint8(IGNORED)))
