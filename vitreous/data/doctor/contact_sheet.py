"""Contact sheet with sample images of every class."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vitreous.common.checks import fail
from vitreous.common.fonts import font_for
from vitreous.data.image.decoding import UnreadableImage, ValueRange, decode
from vitreous.data.sources.base import Source

THUMB, GAP, CAPTION = 96, 6, 18


def check_name(path: Path) -> None:
    """Raise BadValue if the path is not a .png file name."""
    if path.suffix.lower() != ".png" or path.is_dir():
        fail("out", path, "a .png file name")


def write_sheet(splits: Mapping[str, Source], path: Path, value_range: ValueRange | None = None) -> Path:
    """Write the contact sheet of `splits` to `path`, creating the folder if necessary."""
    check_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    contact_sheet(splits, value_range).save(path)
    return path


def contact_sheet(splits: Mapping[str, Source], value_range: ValueRange | None = None) -> Image.Image:
    """Draw one row of images per class. If there are many classes, rows are shorter and fill several columns."""
    classes = next(iter(splits.values())).classes
    each = 8 if len(classes) <= 20 else 4 if len(classes) <= 200 else 2
    across = 1 if len(classes) <= 20 else max(1, round(math.sqrt(len(classes) / each)))
    down = math.ceil(len(classes) / across)
    width, height = each * (THUMB + GAP) + GAP, THUMB + CAPTION + GAP
    sheet = Image.new("RGB", (across * width + GAP, down * height + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    for number, name in enumerate(classes):
        x, y = number // down * width + GAP, number % down * height + GAP
        total = sum(int((source.labels == number).sum()) for source in splits.values())
        caption = f"{name}  ({total:,})"
        if (font := font_for(caption)) is None:
            caption, font = f"class {number}  ({total:,})", font_for("")
        draw.text((x, y + 2), caption, fill="black", font=font)
        for column, thumb in enumerate(_thumbnails(splits, number, each, value_range)):
            left, top = x + column * (THUMB + GAP), y + CAPTION
            sheet.paste(thumb, (left + (THUMB - thumb.width) // 2, top + (THUMB - thumb.height) // 2))
    return sheet


def _thumbnails(
    splits: Mapping[str, Source], label: int, count: int, value_range: ValueRange | None
) -> list[Image.Image]:
    """Return up to `count` thumbnails of a class, from the first split or, if it has too few, also from the next."""
    thumbs: list[Image.Image] = []
    for source in splits.values():
        inside = np.flatnonzero(source.labels == label)
        wanted = min(count - len(thumbs), len(inside))
        for index in inside[np.linspace(0, len(inside) - 1, wanted).astype(int)].tolist() if wanted else []:
            try:
                decoded = decode(source.image(index), at_least=(THUMB, THUMB), value_range=value_range)
            except (UnreadableImage, OSError):
                continue
            image = Image.fromarray(np.ascontiguousarray(decoded.permute(1, 2, 0).numpy()))
            scale = THUMB / max(image.size)
            size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
            thumbs.append(image.resize(size, Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BICUBIC))
    return thumbs
