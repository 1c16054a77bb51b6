"""Images as callers give them: paths, encoded files, arrays, Pillow images, or images of a data source."""

import os
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vitreous.common.untrusted_files import read_regular
from vitreous.data.image import UnreadableImage
from vitreous.data.image.decoding import ValueRange, pixels_of, upright
from vitreous.data.sources.base import Source, StoredImage

STREAM = 1000  # assumed number of images if it is unknown
_PILLOW = threading.Lock()


@dataclass(frozen=True)
class SourceImage:
    """Image in a data source. A decoding thread reads it."""

    source: Source
    index: int


# A path, an encoded file, uint8 pixels [h, w] or [h, w, c], a Pillow image, or an image in a data source.
Input = str | os.PathLike[str] | bytes | np.ndarray | Image.Image | SourceImage
Images = Input | Iterable[Input] | Source


def as_stream(images: Images) -> Iterator[Input]:
    """Iterate over one image or many. A 4D array is a batch of images."""
    if isinstance(images, Source):
        return (SourceImage(images, index) for index in range(len(images)))
    if isinstance(images, np.ndarray):
        return iter(images if images.ndim == 4 else [images])
    return iter([images] if isinstance(images, str | os.PathLike | bytes | Image.Image | SourceImage) else images)


def expected_count(images: Images) -> int:
    """Return the number of images, or an estimate if it is unknown."""
    if isinstance(images, Source | list | tuple) or (isinstance(images, np.ndarray) and images.ndim == 4):
        return len(images)
    return 1 if isinstance(images, str | os.PathLike | bytes | np.ndarray | Image.Image | SourceImage) else STREAM


def name_of(image: Input, index: int) -> str:
    """Return the path of an image if it has one, otherwise "image {index}"."""
    if isinstance(image, SourceImage):
        return image.source.name(image.index)
    if isinstance(image, str | os.PathLike):
        return os.fspath(image)
    if not isinstance(image, bytes | np.ndarray | Image.Image):
        raise TypeError(f"images must be paths, bytes, uint8 arrays or Pillow images, got {type(image).__name__}")
    return str(getattr(image, "filename", "")) or f"image {index}"


def encoded(image: Input, value_range: ValueRange | None = None) -> StoredImage:
    """Return the encoded bytes or the pixels of an image. See `Preprocessing` for `value_range`."""
    if isinstance(image, SourceImage):
        return image.source.image(image.index)
    if isinstance(image, str | os.PathLike):
        return read_regular(image)
    if isinstance(image, Image.Image):
        with _PILLOW:  # Pillow decodes lazily, and the same image can be in the input twice
            return _pixels(image, value_range)
    return image


def _pixels(image: Image.Image, value_range: ValueRange | None) -> np.ndarray:
    """Return the pixels of a Pillow image, rotated according to its EXIF orientation."""
    try:
        pixels = pixels_of(image, value_range)
        orientation = 1 if image.format == "TIFF" else image.getexif().get(0x0112, 1)  # Pillow rotates TIFF files
    except Exception as error:  # Pillow raises many kinds of exceptions
        raise UnreadableImage(f"cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}") from error
    return upright(pixels, orientation if orientation in range(1, 9) else 1)
