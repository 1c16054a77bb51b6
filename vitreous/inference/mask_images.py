"""Masks to look at and to keep: a PNG that holds the ids and shows them in colours, or the colours over the picture.

h, w: height and width.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import check_real, fail
from vitreous.model.options import IGNORED

SOFTWARE = "vitreous"


def background_of(classes: Sequence[str]) -> int | None:
    """The class that is called background, if one is.

    >>> background_of(("pet", "Background"))
    1
    """
    return next((index for index, name in enumerate(classes) if name.strip().lower() == "background"), None)


def palette(background: int | None = None) -> UInt8[np.ndarray, "256 3"]:
    """A colour for each id, in Pascal VOC's way: black for the background, the others as far apart as they are few.

    The bits of a colour's number, from the lowest, go to red, green and blue in turn, and there to the highest bit that
    is still free. Ignored pixels are white.

    >>> palette(background=0)[:3].tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    ids = np.arange(256)
    numbers = ids + 1 if background is None else np.where(ids < background, ids + 1, ids)
    colours = np.zeros((256, 3), np.uint8)
    for bit in range(9):
        colours[:, bit % 3] |= (numbers >> bit & 1).astype(np.uint8) << (7 - bit // 3)
    if background is not None:
        colours[background] = 0
    colours[IGNORED] = 255
    return colours


def write_mask(
    classes: UInt8[np.ndarray, "h w"],
    path: str | os.PathLike[str],
    background: int | None = None,
    ids: Sequence[int] = (),
) -> None:
    """A PNG with a palette, whose indices are the ids: a viewer shows colours, and a reader of masks gets the ids.

    `ids` are those that stand for the classes in the data's own masks; left out, classes are numbered from 0. A palette
    has 256 colours: with larger ids the PNG has 16 bits for a pixel and shows them as grey.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        fail("path", path, "a file that ends in .png: other formats do not keep ids as they are")
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


def write_png(image: Image.Image, path: Path, optimize: bool = False) -> None:
    """Write a PNG, whole or not at all, whose header names this program."""
    about = PngInfo()
    about.add_text("Software", SOFTWARE)
    with atomic_file(path) as aside:
        image.save(aside, "PNG", pnginfo=about, optimize=optimize)


def is_written_here(path: Path) -> bool:
    """True if a file is a PNG of `write_png`."""
    try:
        with Image.open(path) as image:
            return image.info.get("Software") == SOFTWARE
    except OSError:
        return False


def overlay(
    picture: UInt8[np.ndarray, "h w 3"],
    ids: UInt8[np.ndarray, "h w"],
    alpha: float = 0.5,
    background: int | None = None,
) -> UInt8[np.ndarray, "h w 3"]:
    """The picture with `alpha` of its mask's colours laid over it; background and ignored pixels stay as they are."""
    check_real("alpha", alpha, 0, 1)
    if picture.shape[:2] != ids.shape:
        sizes = [" x ".join(map(str, shape)) for shape in (picture.shape[:2], ids.shape)]
        raise ValueError(f"the picture is {sizes[0]} pixels and its mask {sizes[1]}, but they must be equal")
    colours = palette(background)[ids].astype(np.float32)
    bare = (ids == IGNORED) | (ids == (IGNORED if background is None else background))
    return np.rint(picture + np.where(bare, 0, alpha)[..., None] * (colours - picture)).astype(np.uint8)
