"""Mask images: indexed PNG files of class ids, and colour overlays on the image.

h, w: height and width.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vitreous.common.checks import check_real, fail
from vitreous.model.options import IGNORED
from vitreous.report.plots import write_png


def background_of(classes: Sequence[str]) -> int | None:
    """Return the index of the class named "background", or None."""
    return next((index for index, name in enumerate(classes) if name.strip().lower() == "background"), None)


def palette(background: int | None = None) -> UInt8[np.ndarray, "256 3"]:
    """Return the Pascal VOC palette, with black for the background and white for ignored pixels."""
    ids = np.arange(256)
    numbers = ids + 1 if background is None else np.where(ids < background, ids + 1, ids)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(9):  # low bits of a class index set high bits of red, green and blue in turn
        colours[:, bit % 3] |= (numbers >> bit & 1).astype(np.uint8) << (7 - bit // 3)
    if background is not None:
        colours[background] = 0
    colours[IGNORED] = 255
    return colours


def hex_colours(classes: Sequence[str]) -> list[str]:
    """Return the colour of each class as `#rrggbb`."""
    return [f"#{bytes(row).hex()}" for row in palette(background_of(classes))[: len(classes)]]


def write_mask(
    classes: UInt8[np.ndarray, "h w"],
    path: str | os.PathLike[str],
    background: int | None = None,
    ids: Sequence[int] = (),
) -> None:
    """Write an indexed PNG: image viewers show colours, and mask readers get the ids.

    Args:
        ids: Mask id of each class; by default, the class index. If an id is above 255, which does not fit in a palette,
            the mask is written as a 16-bit greyscale PNG instead.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        fail("path", path, "a .png file, because other formats do not preserve ids")
    table = np.arange(256)
    table[: len(ids)] = ids
    wide = max(ids, default=0) > 255
    image = Image.fromarray(table.astype(np.uint16 if wide else np.uint8)[classes])
    if not wide:
        count = len(ids) or 256
        colours = np.full((256, 3), 255, np.uint8)
        colours[table[:count]] = palette(background)[:count]
        image.putpalette(colours.tobytes())
    write_png(image, path)


def overlay(
    image: UInt8[np.ndarray, "h w 3"], ids: UInt8[np.ndarray, "h w"], alpha: float = 0.5, background: int | None = None
) -> UInt8[np.ndarray, "h w 3"]:
    """Blend mask colours over an image with opacity `alpha`. Background and ignored pixels are unchanged."""
    check_real("alpha", alpha, 0, 1)
    if image.shape[:2] != ids.shape:
        sizes = [" x ".join(map(str, shape)) for shape in (image.shape[:2], ids.shape)]
        raise ValueError(f"image and mask must have the same size, got {sizes[0]} and {sizes[1]} pixels")
    colours = palette(background)[ids].astype(np.float32)
    bare = (ids == IGNORED) | (ids == (IGNORED if background is None else background))
    return np.rint(image + np.where(bare, 0, alpha)[..., None] * (colours - image)).astype(np.uint8)
