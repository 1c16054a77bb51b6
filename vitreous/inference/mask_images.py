"""Mask images: indexed PNG files of class ids, and colour overlays on the image.

h, w: height and width.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from vitreous.common.checks import check_real, fail
from vitreous.common.fonts import font_for
from vitreous.common.text import single_spaced
from vitreous.model.options import IGNORED
from vitreous.report.colours import distinct
from vitreous.report.plots import write_png


def background_of(classes: Sequence[str]) -> int | None:
    """Return the index of the class named "background", or None if there is no such class."""
    return next((index for index, name in enumerate(classes) if name.strip().lower() == "background"), None)


def palette(background: int | None = None) -> UInt8[np.ndarray, "256 3"]:
    """Return a distinct colour for each class. The background is black, and ignored pixels are white."""
    colours = distinct().copy()
    if background is not None:
        colours = np.insert(colours, background, 0, axis=0)[:256]
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
    """Write an indexed PNG. Image viewers show colours, while programs that read masks get the ids.

    Args:
        ids: Mask id of each class. Default: the class index. If an id is above 255, it does not fit in a palette, and
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


# ---- Legend ----------------------------------------------------------------------------------------------------------

LINE, SWATCH, GAP = 18, 12, 6  # pixels
LEGEND_WIDTH = 500  # the legends of wider images are enlarged


def with_legend(image: Image.Image, entries: Sequence[tuple[str, Sequence[int]]]) -> Image.Image:
    """Add rows of colour swatches and class names below an image. An image narrower than a name is padded."""
    if not entries:
        return image
    scale = max(round(image.width / LEGEND_WIDTH), 1)
    items, x, y = [], 0, 0
    for index, (name, colour) in enumerate(entries):
        text = single_spaced(name, 40)
        if (font := font_for(text)) is None:
            text, font = f"class {index}", ImageFont.load_default()
        width = SWATCH + 3 * GAP + math.ceil(font.getlength(text))
        if x and x + width > image.width // scale:
            x, y = 0, y + LINE
        items.append((x, y, text, font, tuple(colour)))
        x += width
    room = max(x + SWATCH + 3 * GAP + math.ceil(font.getlength(text)) for x, _, text, font, _ in items)
    legend = Image.new("RGB", (room, y + LINE + GAP), "white")
    draw = ImageDraw.Draw(legend)
    for x, y, text, font, fill in items:
        top = y + (LINE - SWATCH + GAP) // 2
        draw.rectangle((x + GAP, top, x + GAP + SWATCH, top + SWATCH), fill, outline="grey")
        draw.text((x + 2 * GAP + SWATCH, top - 1), text, "black", font)
    legend = legend.resize((legend.width * scale, legend.height * scale), Image.Resampling.BICUBIC)
    whole = Image.new("RGB", (max(image.width, legend.width), image.height + legend.height), "white")
    whole.paste(image, (0, 0))
    whole.paste(legend, (0, image.height))
    return whole
