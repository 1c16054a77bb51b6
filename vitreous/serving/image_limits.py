"""Checks uploaded images by their headers: format and number of pixels. Nothing is decoded here.

The size and duration of bodies are limited for every request alike, in guard.py.
"""

import asyncio
from typing import NamedTuple

from fastapi import Request

from vitreous.common.checks import Size
from vitreous.data.image import UnreadableImage, decode_errors
from vitreous.data.image.colour_modes import open_image
from vitreous.data.image.jpeg import read_header
from vitreous.serving.api.forms import form_field
from vitreous.serving.errors import ApiError
from vitreous.serving.settings import Settings

SMALL = 65536  # bytes: the header of a larger file may be long to read, on purpose, and nobody should wait for that
TYPES = ("image/jpeg", "image/png", "image/webp")
# What programs say that do not say what they send; the last is what curl says. The first bytes decide anyway.
UNTOLD = ("image/*", "application/octet-stream", "", "application/x-www-form-urlencoded")


LARGE_PIXELS = 2**22  # an image with more takes a good part of a second to decode, and more than 100 MB
JPEG_ADVANTAGE = 4  # JPEGs are decoded at a reduced size, without copies


class Upload(NamedTuple):
    """An image that may be decoded. `large`: it needs so much time and memory that few may be decoded at once."""

    data: bytes
    large: bool


async def read_picture(request: Request, settings: Settings) -> Upload:
    """The image that came as the body, or as the field `image` of a form; not yet decoded, but not too large."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    data = await request.body()
    if kind == "multipart/form-data":
        said = request.headers["content-type"]
        if len(data) <= SMALL:
            data = form_field(data, said, "image")
        else:
            data = await asyncio.to_thread(form_field, data, said, "image")
    elif kind not in (*TYPES, *UNTOLD):
        said = f"the body is {kind!r}, but must be {', '.join(TYPES)}, or multipart/form-data with a field 'image'"
        raise ApiError(415, "unsupported_type", said)
    if len(data) <= SMALL:
        pixels = check_picture(data, settings)
    else:
        pixels = await asyncio.to_thread(check_picture, data, settings)
    return Upload(data, pixels > LARGE_PIXELS * (JPEG_ADVANTAGE if format_of(data) == "JPEG" else 1))


def check_picture(data: bytes, settings: Settings) -> int:
    """The number of pixels by the header alone; ApiError if the image must not be decoded."""
    if not data:
        raise ApiError(400, "no_image", "the body is empty, but must be a picture")
    if format_of(data) is None:
        raise ApiError(415, "unsupported_type", "this is not a picture in a format that is read: JPEG, PNG or WebP")
    try:
        height, width = stored_size(data)
    except UnreadableImage as error:
        large = "too large" in str(error)
        raise ApiError(413 if large else 422, "too_many_pixels" if large else "unreadable_image", str(error)) from None
    if height * width > settings.max_pixels:
        said = f"{width} x {height} pixels are {height * width:,}, but at most {settings.max_pixels:,} are decoded"
        raise ApiError(413, "too_many_pixels", said)
    return height * width


def stored_size(data: bytes) -> Size:
    """Height and width as they are stored. Which way is up is not asked: for that, Pillow may decode a whole PNG."""
    with decode_errors():
        if jpeg := read_header(data):
            return jpeg.height, jpeg.width
        if size := _webp_size(data):
            return size
        image = open_image(data)
        return image.height, image.width


def _webp_size(data: bytes) -> Size | None:
    """Before Pillow opens it, which takes memory for a whole WebP at once. None: not a WebP, or not a usual one."""
    kind, bits = data[12:16], int.from_bytes(data[21:25], "little")
    if format_of(data) != "WEBP" or len(data) < 30:
        return None
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[27:30], "little"), 1 + int.from_bytes(data[24:27], "little")
    if kind == b"VP8L":
        return 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF)
    if kind == b"VP8 ":
        return int.from_bytes(data[28:30], "little") & 0x3FFF, int.from_bytes(data[26:28], "little") & 0x3FFF
    return None


def format_of(data: bytes) -> str | None:
    """By its first bytes, whatever it is called.

    >>> format_of(b"RIFF0000WEBPVP8 "), format_of(b"GIF89a")
    ('WEBP', None)
    """
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None
