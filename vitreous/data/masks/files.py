"""A mask on disk: a PNG whose pixels are class ids, as grey levels of up to 16 bits or as indices into a palette.

Grey levels may have been saved as RGB, by mistake, as long as nothing was lost: red, green and blue are then the same.
The palette is only there to be looked at: the index is the id. Pillow decodes; what kind of PNG it is, is read from the
first bytes, because Pillow stretches grey levels of 2 and 4 bits to 0..255, and ids must stay as they are.
"""

import struct
from dataclasses import dataclass

import numpy as np

from vitreous.common.checks import Size
from vitreous.data.image import modes
from vitreous.data.image.decode import UnreadableImage, check_memory, explained

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _PALETTE = 0, 3
_COLOURED = {2: "RGB", 4: "grey with alpha", 6: "RGB with alpha"}
HEAD = 26  # bytes that hold everything a header says


class ColouredMask(UnreadableImage):
    """A mask that shows colours instead of holding ids."""


@dataclass(frozen=True)
class MaskHeader:
    """What kind of PNG it is."""

    size: Size
    bits: int  # of a pixel
    coloured: str | None  # what its pixels are, if they are no ids
    palette: bool


def read_header(data: bytes) -> MaskHeader:
    """From the first HEAD bytes of a file."""
    if not data:
        raise UnreadableImage("the file is empty")
    if not data.startswith(_SIGNATURE) or len(data) < HEAD or data[12:16] != b"IHDR":
        raise UnreadableImage("not a PNG file")
    width, height, bits, kind = struct.unpack_from(">IIBB", data, 16)
    if kind not in (_GREY, _PALETTE, *_COLOURED) or not width or not height:
        raise UnreadableImage("a PNG file with a broken header")
    # Pillow's copy, numpy's, and a third while one is made of the other
    check_memory((height, width), height * width * (12 if kind in _COLOURED else 3 * max(bits // 8, 1)))
    return MaskHeader((height, width), bits, _COLOURED.get(kind), kind == _PALETTE)


def read_ids(data: bytes) -> np.ndarray:
    """The ids of a mask, [h, w] of uint8 or uint16. A file that cannot be read raises UnreadableImage."""
    header = read_header(data)
    with explained():
        ids = np.asarray(modes.open_image(data))
    if header.coloured is not None:
        if not header.coloured.startswith("RGB") or header.bits != 8 or not _is_grey(ids):
            raise ColouredMask(f"shows colours ({header.coloured}), but a mask holds class ids")
        return ids[..., 0]
    if header.bits == 16:
        return ids.astype(np.uint16)
    if header.bits in (2, 4) and not header.palette:
        return ids // np.uint8(255 // (2**header.bits - 1))
    return ids.astype(np.uint8)  # one bit comes as True and False


def _is_grey(pixels: np.ndarray) -> bool:
    levels, alpha = pixels[..., :3], pixels[..., 3:]
    return bool((levels == levels[..., :1]).all() and (alpha == 255).all())


def ids_in(ids: np.ndarray) -> list[int]:
    """Which ids occur. Counting bytes is ten times as fast as sorting them."""
    if ids.dtype == np.uint8:
        return np.flatnonzero(np.bincount(ids.ravel(), minlength=256)).tolist()
    return np.unique(ids).tolist()


def colours_in(data: bytes, most: int = 4) -> list[tuple[int, ...]]:
    """The most frequent colours of a picture, as (red, green, blue)."""
    with explained():
        image = modes.open_image(data).convert("RGB")
        counts = image.getcolors(image.width * image.height) or []
    often = sorted(counts, key=lambda pair: pair[0], reverse=True)[:most]
    return [colour for _, colour in often if isinstance(colour, tuple)]
