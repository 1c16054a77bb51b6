"""JPEG headers, and fast decoding of only the rows and the scale that are needed (with simplejpeg, if installed).

An image can be decoded at 1/2, 1/4 or 1/8 of its size, straight from its DCT coefficients. And rows are stored from top
to bottom, so decoding can stop where a crop ends: it does if the height in the header is lowered. simplejpeg wraps
libjpeg-turbo, as Pillow does, with less overhead.
"""

import functools
import importlib
import struct
from dataclasses import dataclass
from types import ModuleType

import numpy as np

# Scales other than these have no vectorised code in libjpeg-turbo: 5/8 takes longer than the full size.
FACTORS = (8, 4, 2, 1)
# Rows decoded below the last one needed: chroma upsampling reads one row ahead, at any scale.
_MARGIN = 16
_START, _END = b"\xff\xd8", b"\xff\xd9"


@dataclass(frozen=True)
class JpegHeader:
    """Header of the image as stored; `orientation` is EXIF's, from 1 (upright) to 8."""

    height: int
    width: int
    components: int
    orientation: int
    height_at: int  # offset of the height
    scan_at: int  # offset of the coded pixels
    one_scan: bool  # rows follow each other from top to bottom; a progressive file has several passes over all rows

    @property
    def bytes(self) -> int:
        """Memory to decode it: the pixels, Pillow's copy if it decodes, and the coefficients of several passes."""
        copy = 4 if self.components == 4 or _simplejpeg() is None else 0
        return self.height * self.width * (3 + copy + (0 if self.one_scan else 2 * self.components))


def read_header(data: bytes) -> JpegHeader | None:
    """Parse the segments up to the coded pixels; None if this is not a JPEG, or an unusual one."""
    if not data.startswith(_START):
        return None
    try:
        return _walk(data)
    except (IndexError, struct.error):  # a segment reaches beyond the end
        return None


def _walk(data: bytes) -> JpegHeader | None:
    at, orientation = 2, 1
    frame, height_at, height, width, components = 0, 0, 0, 0, 0
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if marker == 0xDA:  # start of scan
            if height == 0 or width == 0:
                return None
            one_scan = frame in (0xC0, 0xC1) and data[at + 4] == components
            return JpegHeader(height, width, components, orientation, height_at, at, one_scan)
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):  # start of frame
            frame, height_at = marker, at + 5
            height, width, components = struct.unpack_from(">HHB", data, height_at)
        elif marker == 0xE1 and data.startswith(b"Exif\0\0", at + 4):
            orientation = _exif_orientation(data[at + 10 : at + 2 + length])
        at += 2 + length
    return None


def _exif_orientation(tiff: bytes) -> int:
    """Read the orientation from EXIF, a small TIFF: a byte order, then a table of 12-byte entries."""
    order = "<" if tiff.startswith(b"II") else ">"
    try:
        (table,) = struct.unpack_from(order + "I", tiff, 4)
        (count,) = struct.unpack_from(order + "H", tiff, table)
        for at in range(table + 2, table + 2 + 12 * count, 12):
            tag, kind = struct.unpack_from(order + "HH", tiff, at)
            if tag == 0x0112:
                (value,) = struct.unpack_from(order + ("I" if kind == 4 else "H"), tiff, at + 8)
                return int(value) if 1 <= value <= 8 else 1
    except struct.error:  # broken EXIF does not make an image unreadable
        pass
    return 1


def decode_rows(data: bytes, header: JpegHeader, grey: bool, factor: int, bottom: int) -> np.ndarray | None:
    """Decode uint8 [h, w, 1 or 3] at 1 / factor of the size, at least down to row `bottom` of the full size.

    None if that needs Pillow: without simplejpeg, for CMYK, and for data that is slightly invalid.
    """
    simplejpeg = _simplejpeg()
    if simplejpeg is None or header.components not in (1, 3):
        return None
    height, source = header.height, data
    lowered = bottom + _MARGIN
    # A file without an end was truncated. It is decoded whole, so that it fails for every crop.
    if header.one_scan and lowered < height and data.rfind(_END, header.scan_at) >= 0:
        height, source = lowered, _with_height(data, header, lowered)
    size = -(-height // factor), -(-header.width // factor)
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(
            source,
            colorspace="GRAY" if grey else "RGB",
            min_height=size[0],
            min_width=size[1],
            strict=source is data,  # the rows that remain count as a recoverable error
            # Not worth it: fastdct saves 3% and moves pixels by a level on average, fastupsample saves 5% and moves
            # colours at hard edges by up to 37 levels after the resize.
            fastdct=False,
            fastupsample=False,
        )
    except ValueError:
        return None
    return pixels if pixels.shape[:2] == size else None


def _with_height(data: bytes, header: JpegHeader, height: int) -> bytes:
    return b"".join((data[: header.height_at], height.to_bytes(2, "big"), data[header.height_at + 2 :]))


@functools.cache  # a failed import searches the disk every time
def _simplejpeg() -> ModuleType | None:
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None
