"""JPEG headers, and partial decoding at a reduced scale with simplejpeg if it is installed.

A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size directly from its DCT coefficients. Rows are stored from top to
bottom, so decoding can stop at the end of a crop; this is done by reducing the height in the header. simplejpeg wraps
libjpeg-turbo, as Pillow does, with less overhead.
"""

import functools
import importlib
import struct
from dataclasses import dataclass
from types import ModuleType

import numpy as np

# libjpeg-turbo has no SIMD code for other scales: 5/8 is slower than full size.
FACTORS = (8, 4, 2, 1)
# Extra rows to decode, because chroma upsampling reads one row ahead at any scale.
_MARGIN = 16
_START, _END = b"\xff\xd8", b"\xff\xd9"


@dataclass(frozen=True)
class JpegHeader:
    """JPEG header. Height and width are those before the EXIF rotation."""

    height: int
    width: int
    components: int
    orientation: int  # EXIF orientation, 1 (upright) to 8
    height_at: int  # byte offset of the height
    scan_at: int  # byte offset of the compressed pixels
    one_scan: bool  # False for progressive files, which have several passes over all rows

    @property
    def bytes(self) -> int:
        """Decoding memory: pixels, Pillow's copy if Pillow is used, and the coefficients of progressive files."""
        copy = 4 if self.components == 4 or _simplejpeg() is None else 0
        return self.height * self.width * (3 + copy + (0 if self.one_scan else 2 * self.components))


def read_jpeg_header(data: bytes) -> JpegHeader | None:
    """Parse the segments before the compressed pixels. Return None for other formats and for unusual JPEGs."""
    if not data.startswith(_START):
        return None
    at, orientation = 2, 1
    frame, height_at, height, width, components = 0, 0, 0, 0, 0
    try:
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
    except (IndexError, struct.error):  # a segment extends past the end
        pass
    return None


def _exif_orientation(tiff: bytes) -> int:
    """Read the orientation from EXIF data, which is a small TIFF: byte order, then a table of 12-byte entries."""
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
    """Decode a JPEG to uint8 [h, w, 1 or 3] at 1 / factor of its size.

    Rows below `bottom` (in the full-size image) may be skipped. Return None if Pillow must be used instead: simplejpeg
    is missing, the image is CMYK, or the data has minor errors.
    """
    simplejpeg = _simplejpeg()
    if simplejpeg is None or header.components not in (1, 3):
        return None
    height, source = header.height, data
    lowered = bottom + _MARGIN
    # A file without an end marker is truncated. Decode all of it, so that every crop raises an error.
    if header.one_scan and lowered < height and data.rfind(_END, header.scan_at) >= 0:
        height, source = lowered, _with_height(data, header, lowered)
    size = -(-height // factor), -(-header.width // factor)
    try:
        pixels: np.ndarray = simplejpeg.decode_jpeg(
            source,
            colorspace="GRAY" if grey else "RGB",
            min_height=size[0],
            min_width=size[1],
            strict=source is data,  # the skipped rows cause a recoverable error
            # fastdct is only 3% faster and changes pixels by one level on average; fastupsample is 5% faster and
            # changes colours at sharp edges by up to 37 levels after the resize.
            fastdct=False,
            fastupsample=False,
        )
    except ValueError:
        return None
    return pixels if pixels.shape[:2] == size else None


def _with_height(data: bytes, header: JpegHeader, height: int) -> bytes:
    return b"".join((data[: header.height_at], height.to_bytes(2, "big"), data[header.height_at + 2 :]))


@functools.cache  # Python does not cache failed imports
def _simplejpeg() -> ModuleType | None:
    try:
        return importlib.import_module("simplejpeg")
    except ImportError:
        return None
