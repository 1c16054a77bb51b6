"""Overlays of maps on the image region that the model receives, and contact sheets of small maps.

h, w: height and width; images are uint8.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from vitreous.common.checks import Size
from vitreous.data.image import decode, size_of
from vitreous.data.sources.base import StoredImage
from vitreous.model.base_config import ModelConfig
from vitreous.model.centre_crop import centre, resized_for
from vitreous.model.options import Preprocessing
from vitreous.report.colours import heat, paint, signed

Rgb = UInt8[np.ndarray, "h w 3"]
LONGEST, SHORTEST = 960, 448  # maximum and minimum length of the longer side
TINY = 64  # images up to this length of the longer side are enlarged without smoothing
LABEL = (128, 132, 138)  # text colour on transparent sheets; legible on white and on black
DIMMED = 0.35  # contrast outside the model's region
MANY = 200  # outliers are clipped in maps with at least this many patches

# ---- Image and region that the model receives ------------------------------------------------------------------------


class Box(NamedTuple):
    """Rectangle in an image, in fractional pixels."""

    top: float
    left: float
    height: float
    width: float

    def pixels(self) -> tuple[slice, slice]:
        """Return the rows and columns of the box as slices, rounded to whole pixels."""
        rows = slice(round(self.top), round(self.top + self.height))
        return rows, slice(round(self.left), round(self.left + self.width))


@dataclass(frozen=True)
class Canvas:
    """RGB image at display size, and the region that the model receives."""

    pixels: Rgb
    region: Box
    image_size: Size  # size of the model's input
    patch_stride: Size  # in pixels of the model's input
    grid: Size
    blocky: bool  # tiny image, enlarged without smoothing


def model_region(image: Size, size: Size, how: Preprocessing) -> Box:
    """Return the image region that the model receives, in image pixels. Padding extends it beyond the image."""
    resized = resized_for(image, size, how)
    scale = [there / here for there, here in zip(image, resized, strict=True)]
    top, left = centre(resized, size, how)
    return Box(top * scale[0], left * scale[1], size[0] * scale[0], size[1] * scale[1])


def canvas_of(image: StoredImage, config: ModelConfig) -> Canvas:
    """Decode an image and resize its longer side to between SHORTEST and LONGEST pixels."""
    height, width = size_of(image)
    longest = max(height, width)
    scale = min(LONGEST / longest, 1.0)
    blocky = longest < TINY
    if longest < SHORTEST:
        scale = -(-SHORTEST // longest) if blocky else SHORTEST / longest
    shown = (max(round(height * scale), 1), max(round(width * scale), 1))
    decoded = decode(image, config.channels, shown, config.preprocessing.value_range)
    if config.channels == 1:
        decoded = decoded.expand(3, -1, -1)
    mode = {"mode": "nearest-exact"} if blocky else {"mode": "bicubic", "antialias": True}
    pixels = F.interpolate(decoded[None].contiguous(), shown, **mode)[0].permute(1, 2, 0).contiguous().numpy()
    region = model_region((height, width), config.image_size, config.preprocessing)
    down, across = shown[0] / height, shown[1] / width
    box = Box(region.top * down, region.left * across, region.height * down, region.width * across)
    if config.preprocessing.fit == "pad":
        pixels, box = _padded(pixels, box)
    return Canvas(pixels, box, config.image_size, config.map_stride, config.map_grid, blocky)


def _padded(pixels: Rgb, box: Box) -> tuple[UInt8[np.ndarray, "h2 w2 3"], Box]:
    """Add white margins so that the box lies inside the image."""
    height, width, _ = pixels.shape
    above, left = math.ceil(max(-box.top, 0)), math.ceil(max(-box.left, 0))
    below = math.ceil(max(box.top + box.height - height, 0))
    right = math.ceil(max(box.left + box.width - width, 0))
    pixels = np.pad(pixels, ((above, below), (left, right), (0, 0)), constant_values=255)
    return pixels, box._replace(top=box.top + above, left=box.left + left)


def onto(canvas: Canvas, values: np.ndarray, smooth: bool = True) -> np.ndarray:
    """Resize a patch map [gh, gw] or [gh, gw, 3] to the model's region. Small grids are drawn as blocks.

    If the grid extends beyond the image, the part of the map outside the image is cropped.
    """
    rows, columns = canvas.region.pixels()
    target = (rows.stop - rows.start, columns.stop - columns.start)
    (gh, gw), (ph, pw), (h, w) = canvas.grid, canvas.patch_stride, canvas.image_size
    whole = (round(target[1] * gw * pw / w), round(target[0] * gh * ph / h))
    smooth = smooth and min(canvas.grid) >= 7 and not canvas.blocky
    way = Image.Resampling.BILINEAR if smooth else Image.Resampling.NEAREST
    planes = [
        np.asarray(Image.fromarray(np.ascontiguousarray(plane, dtype=np.float32)).resize(whole, way))
        for plane in np.moveaxis(np.atleast_3d(values), -1, 0)
    ]
    return np.stack(planes, axis=-1).reshape(*planes[0].shape, *values.shape[2:])[: target[0], : target[1]]


# ---- Maps over the image ---------------------------------------------------------------------------------------------


def scaled(values: np.ndarray, from_zero: bool = True) -> np.ndarray:
    """Scale values to [0, 1]. With `from_zero`, 0 stays 0 unless there are negative values."""
    low = min(float(values.min()), 0.0) if from_zero else float(values.min())
    high = float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


def overlay(canvas: Canvas, values: np.ndarray, from_zero: bool = True) -> Rgb:
    """Draw a heat map over the greyscale image; larger values are brighter and more opaque."""
    if values.size >= MANY:  # clip outliers, which would darken all other values
        values = np.minimum(values, np.quantile(values, 0.995))
    field = scaled(onto(canvas, values), from_zero)
    return _blended(canvas, paint(field, heat()), 0.35 + 0.55 * field)


def signed_overlay(canvas: Canvas, values: np.ndarray) -> Rgb:
    """Draw positive values in red and negative values in blue over the greyscale image; 0 is transparent."""
    field = onto(canvas, values)
    field = field / max(float(np.abs(field).max()), 1e-12)
    return _blended(canvas, paint(np.where(field < 0, 0.0, 1.0), signed()), 0.9 * np.abs(field))


def coloured(canvas: Canvas, colours: np.ndarray) -> Rgb:
    """Draw colours [gh, gw, 3] in [0, 1] as blocks; NaN shows the darkened greyscale image."""
    region = onto(canvas, colours, smooth=False) * 255
    return _with_region(canvas, np.where(np.isnan(region), 0.35 * _grey(_region(canvas)), region))


def patches(canvas: Canvas) -> Rgb:
    """Draw the patch borders over the image."""
    rows, columns = canvas.region.pixels()
    pixels = _with_region(canvas, _region(canvas)).copy()
    for axis, (side, stride, size) in enumerate(
        zip((rows, columns), canvas.patch_stride, canvas.image_size, strict=True)
    ):
        for edge in range(0, size + 1, stride):
            place = min(side.start + round(edge * (side.stop - side.start) / size), side.stop - 1)
            line = (place, columns) if axis == 0 else (rows, place)
            pixels[line] = (0.45 * pixels[line] + 0.55 * 255).astype(np.uint8)
    return pixels


def marked(canvas: Canvas, pixels: Rgb, place: Size) -> Rgb:
    """Draw a frame around one patch."""
    rows, columns = canvas.region.pixels()
    (ph, pw), (h, w) = canvas.patch_stride, canvas.image_size
    down, across = (rows.stop - rows.start) / h, (columns.stop - columns.start) / w
    box = Box(rows.start + place[0] * ph * down, columns.start + place[1] * pw * across, ph * down, pw * across)
    y, x = box.pixels()
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    draw.rectangle((x.start - 3, y.start - 3, x.stop + 2, y.stop + 2), outline=(0, 0, 0), width=5)
    draw.rectangle((x.start - 2, y.start - 2, x.stop + 1, y.stop + 1), outline=(255, 255, 255), width=3)
    return np.asarray(image)


def _region(canvas: Canvas) -> np.ndarray:
    return canvas.pixels[canvas.region.pixels()].astype(np.float32)


def _grey(pixels: np.ndarray) -> np.ndarray:
    """Convert to greyscale with three channels."""
    luma: np.ndarray = pixels @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return luma[..., None].repeat(3, axis=-1)


def _blended(canvas: Canvas, colours: np.ndarray, alpha: np.ndarray) -> Rgb:
    return _with_region(canvas, _grey(_region(canvas)) * (1 - alpha[..., None]) + colours * alpha[..., None])


def _with_region(canvas: Canvas, region: np.ndarray) -> Rgb:
    """Replace the model's region of the canvas and dim the rest."""
    whole = DIMMED * _grey(canvas.pixels.astype(np.float32)) + (1 - DIMMED) * 128
    whole[canvas.region.pixels()] = region
    return whole.clip(0, 255).round().astype(np.uint8)


# ---- Sheets ----------------------------------------------------------------------------------------------------------


def sheet(
    tiles: Sequence[Sequence[Rgb]],
    tile: Size,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    gap: int = 6,
    smooth: bool = False,
) -> Image.Image:
    """Arrange tiles in a labelled grid on a transparent background. If `smooth`, resizing interpolates."""
    font = ImageFont.load_default(size=15)
    left = max((round(font.getlength(name)) for name in rows), default=-10) + 10
    top = 24 if columns else 0
    across, down = max((len(row) for row in tiles), default=0), len(tiles)
    size = (left + max(across * (tile[1] + gap) - gap, 1), top + max(down * (tile[0] + gap) - gap, 1))
    whole = Image.new("RGBA", size)
    draw = ImageDraw.Draw(whole)
    for index, name in enumerate(columns):
        draw.text((left + index * (tile[1] + gap) + tile[1] / 2, 10), name, LABEL, font, anchor="mm")
    way = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
    for line, row in enumerate(tiles):
        y = top + line * (tile[0] + gap)
        if rows:
            draw.text((left - 10, y + tile[0] / 2), rows[line], LABEL, font, anchor="rm")
        for index, pixels in enumerate(row):
            whole.paste(Image.fromarray(pixels).resize(tile[::-1], way), (left + index * (tile[1] + gap), y))
    return whole


def tile_for(grid: Size, most: int) -> Size:
    """Return a tile size for a grid: at most `most` pixels per side and, if possible, a multiple of the grid size."""
    each = max(most // max(grid), 1)
    if max(grid) * each <= most:
        return (grid[0] * each, grid[1] * each)
    return (max(round(most * grid[0] / max(grid)), 1), max(round(most * grid[1] / max(grid)), 1))
