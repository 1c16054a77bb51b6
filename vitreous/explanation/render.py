"""Maps as pictures: laid over the part that the model saw, or many small ones on a sheet.

h, w: height and width; a picture is uint8.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

from vitreous.common.checks import Size
from vitreous.explanation.seen_region import Box, Canvas, onto
from vitreous.report.colours import heat, paint, signed

Rgb = UInt8[np.ndarray, "h w 3"]
LABEL = (128, 132, 138)  # of text on sheets, which have no ground of their own: legible on white and on black
DIMMED = 0.35  # what is left of the picture where the model did not look
MARK = (255, 255, 255)
MANY = 200  # patches


def scaled(values: np.ndarray, from_zero: bool = True) -> np.ndarray:
    """From 0 to 1, the largest value at 1; `from_zero`: 0 stays 0, otherwise the smallest becomes it.

    >>> scaled(np.array([1.0, 2.0, 4.0])).tolist()
    [0.25, 0.5, 1.0]
    """
    low = min(float(values.min()), 0.0) if from_zero else float(values.min())
    high = float(values.max())
    return (values - low) / (high - low) if high > low else np.zeros_like(values)


# ---- On the picture --------------------------------------------------------------------------------------------------


def overlay(canvas: Canvas, values: np.ndarray, from_zero: bool = True) -> Rgb:
    """A map as heat over the picture without its colours: the more, the brighter and the less transparent.

    Of many patches, the topmost half per cent are all as bright: one outlier would leave the others dark.
    """
    if values.size >= MANY:
        values = np.minimum(values, np.quantile(values, 0.995))
    field = scaled(onto(canvas, values), from_zero)
    strength = (0.35 + 0.55 * field)[..., None]
    return _with_seen(canvas, _grey(_seen(canvas)) * (1 - strength) + paint(field, heat()) * strength)


def signed_overlay(canvas: Canvas, values: np.ndarray) -> Rgb:
    """Red where a map is positive, blue where negative; where it is 0 the picture shows, without its colours."""
    field = onto(canvas, values)
    field = field / max(float(np.abs(field).max()), 1e-12)
    strength = (0.9 * np.abs(field))[..., None]
    ends = paint(np.where(field < 0, 0.0, 1.0), signed())
    return _with_seen(canvas, _grey(_seen(canvas)) * (1 - strength) + ends * strength)


def coloured(canvas: Canvas, colours: np.ndarray, inside: np.ndarray | None = None) -> Rgb:
    """Colours [gh, gw, 3] from 0 to 1 instead of the picture; outside of `inside`, the picture, darkened.

    Patches stay squares: what is between them was never seen.
    """
    part = onto(canvas, colours, smooth=False) * 255
    if inside is not None:
        shown = onto(canvas, inside.astype(np.float32), smooth=False) > 0.5
        part = np.where(shown[..., None], part, 0.35 * _grey(_seen(canvas)))
    return _with_seen(canvas, part)


def patches(canvas: Canvas) -> Rgb:
    """The picture with the lines along which the model cut it."""
    rows, columns = canvas.seen.pixels()
    pixels = _with_seen(canvas, _seen(canvas)).copy()
    (uh, uw), (h, w) = canvas.patch_stride, canvas.image_size
    lines: list[tuple[int | slice, int | slice]] = []
    for side, unit, size, along in ((rows, uh, h, 0), (columns, uw, w, 1)):
        for edge in range(0, size + 1, unit):
            place = min(side.start + round(edge * (side.stop - side.start) / size), side.stop - 1)
            lines.append((place, columns) if along == 0 else (rows, place))
    for line in lines:
        pixels[line] = (0.45 * pixels[line] + 0.55 * 255).astype(np.uint8)
    return pixels


def marked(canvas: Canvas, pixels: Rgb, place: Size) -> Rgb:
    """With a frame around one patch."""
    rows, columns = canvas.seen.pixels()
    (uh, uw), (h, w) = canvas.patch_stride, canvas.image_size
    down, across = (rows.stop - rows.start) / h, (columns.stop - columns.start) / w
    box = Box(rows.start + place[0] * uh * down, columns.start + place[1] * uw * across, uh * down, uw * across)
    y, x = box.pixels()
    image = Image.fromarray(pixels)
    draw = ImageDraw.Draw(image)
    draw.rectangle((x.start - 3, y.start - 3, x.stop + 2, y.stop + 2), outline=(0, 0, 0), width=5)
    draw.rectangle((x.start - 2, y.start - 2, x.stop + 1, y.stop + 1), outline=MARK, width=3)
    return np.asarray(image)


def _seen(canvas: Canvas) -> np.ndarray:
    return canvas.pixels[canvas.seen.pixels()].astype(np.float32)


def _grey(part: np.ndarray) -> np.ndarray:
    """Luma, three times."""
    luma: np.ndarray = part @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    return luma[..., None].repeat(3, axis=-1)


def _with_seen(canvas: Canvas, part: np.ndarray) -> Rgb:
    """The canvas with something else where the model looked, and dimmed where it did not."""
    whole = DIMMED * _grey(canvas.pixels.astype(np.float32)) + (1 - DIMMED) * 128
    whole[canvas.seen.pixels()] = part
    return whole.clip(0, 255).round().astype(np.uint8)


# ---- On a sheet ------------------------------------------------------------------------------------------------------


def sheet(
    tiles: Sequence[Sequence[Rgb]],
    tile: Size,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    gap: int = 6,
    smooth: bool = False,
) -> Image.Image:
    """Rows of tiles, each drawn `tile` high and wide, with names before the rows and above the columns.

    `smooth`: tiles are pictures that are shrunk; otherwise maps, whose places are shown as blocks.
    The ground is transparent, so that a sheet stands on a light page as on a dark one.
    """
    font = ImageFont.load_default(size=15)
    left = max((round(font.getlength(name)) for name in rows), default=-10) + 10
    top = 24 if columns else 0
    across, down = max((len(row) for row in tiles), default=0), len(tiles)
    whole = Image.new(
        "RGBA", (left + max(across * (tile[1] + gap) - gap, 1), top + max(down * (tile[0] + gap) - gap, 1))
    )
    draw = ImageDraw.Draw(whole)
    for index, name in enumerate(columns):
        draw.text((left + index * (tile[1] + gap) + tile[1] / 2, 10), name, LABEL, font, anchor="mm")
    for line, row in enumerate(tiles):
        y = top + line * (tile[0] + gap)
        if rows:
            draw.text((left - 10, y + tile[0] / 2), rows[line], LABEL, font, anchor="rm")
        for index, pixels in enumerate(row):
            way = Image.Resampling.LANCZOS if smooth else Image.Resampling.NEAREST
            whole.paste(Image.fromarray(pixels).resize(tile[::-1], way), (left + index * (tile[1] + gap), y))
    return whole


def tile_for(grid: Size, most: int) -> Size:
    """The size of a tile that shows a grid at its aspect, in whole pixels for each place where it can.

    >>> tile_for((14, 20), 72)
    (42, 60)
    """
    each = max(most // max(grid), 1)
    if max(grid) * each <= most:
        return (grid[0] * each, grid[1] * each)
    return (max(round(most * grid[0] / max(grid)), 1), max(round(most * grid[1] / max(grid)), 1))
