"""Reads the image of a request and checks it by its headers: form field, format, number of pixels.

Nothing is decoded here. The middleware limits the size and duration of every body.
"""

import asyncio
import io
from typing import NamedTuple, cast

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from vitreous.common.checks import Size
from vitreous.data.image import UnreadableImage, decode_errors
from vitreous.data.image.decoding import open_image, read_jpeg_header
from vitreous.serving.errors import ApiError
from vitreous.serving.settings import Settings

SMALL = 65536  # bytes; a larger body may be slow to parse, on purpose, which must not hold up the event loop
TYPES = ("image/jpeg", "image/png", "image/webp")
# Sent by programs that do not know the type; the last is curl's default. The first bytes decide anyway.
UNKNOWN_TYPES = ("image/*", "application/octet-stream", "", "application/x-www-form-urlencoded")
LARGE_PIXELS = 2**22  # an image with more takes a good part of a second to decode, and more than 100 MB
JPEG_ADVANTAGE = 4  # JPEGs are decoded at a reduced size, without copies
MAX_PARTS = 32  # of a form; each costs more time than its bytes suggest


class Upload(NamedTuple):
    """An image that may be decoded. `large`: decoding needs so much time and memory that few may run at once."""

    data: bytes
    large: bool


async def read_image(request: Request, settings: Settings) -> Upload:
    """Read the image from the body, or from the field `image` of a multipart form, without decoding it."""
    body, content_type = await request.body(), request.headers.get("content-type", "")
    if len(body) <= SMALL:
        return check_upload(body, content_type, settings)
    return await asyncio.to_thread(check_upload, body, content_type, settings)


def check_upload(data: bytes, content_type: str, settings: Settings) -> Upload:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        data = form_field(data, content_type, "image")
    elif kind not in (*TYPES, *UNKNOWN_TYPES):
        message = f"unsupported content type {kind!r}: send {', '.join(TYPES)}, or a form with a field 'image'"
        raise ApiError(415, "unsupported_type", message)
    pixels = check_image(data, settings)
    return Upload(data, pixels > LARGE_PIXELS * (JPEG_ADVANTAGE if format_of(data) == "JPEG" else 1))


def check_image(data: bytes, settings: Settings) -> int:
    """Return the number of pixels by the header alone; ApiError if the image must not be decoded."""
    if not data:
        raise ApiError(400, "no_image", "the body is empty, but must be an image")
    if format_of(data) is None:
        raise ApiError(415, "unsupported_type", "unsupported image format: send JPEG, PNG or WebP")
    try:
        height, width = stored_size(data)
    except UnreadableImage as error:
        large = "too large" in str(error)
        raise ApiError(413 if large else 422, "too_many_pixels" if large else "unreadable_image", str(error)) from None
    if height * width > settings.max_pixels:
        message = f"{width} x {height} pixels are {height * width:,}, but at most {settings.max_pixels:,} are accepted"
        raise ApiError(413, "too_many_pixels", message)
    return height * width


def stored_size(data: bytes) -> Size:
    """Height and width as stored, without the orientation: to find that, Pillow may decode a whole PNG."""
    with decode_errors():
        if jpeg := read_jpeg_header(data):
            return jpeg.height, jpeg.width
        if size := _webp_size(data):
            return size
        image = open_image(data)
        return image.height, image.width


def _webp_size(data: bytes) -> Size | None:
    """Read the size before Pillow opens the file, which takes memory for a whole WebP; None for other or odd files."""
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
    """Image format by the first bytes.

    >>> format_of(b"RIFF0000WEBPVP8 "), format_of(b"GIF89a")
    ('WEBP', None)
    """
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def form_field(body: bytes, content_type: str, name: str) -> bytes:
    """Content of the first field `name` of a multipart form; ApiError 400 if it is missing.

    Parsed in memory: the framework's parser writes large files to the disk.

    >>> body = b'--x\\r\\nContent-Disposition: form-data; name="image"\\r\\n\\r\\nabc\\r\\n--x--\\r\\n'
    >>> form_field(body, "multipart/form-data; boundary=x", "image")
    b'abc'
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise ApiError(400, "bad_form", "the form's Content-Type has no boundary")
    parts: list[Field | File] = []

    def add(part: Field | File) -> None:
        parts.append(part)
        if len(parts) > MAX_PARTS:
            raise ApiError(400, "bad_form", f"the form has more than {MAX_PARTS} parts")

    try:
        parser = FormParser("multipart/form-data", add, add, boundary=boundary, config={"MAX_MEMORY_FILE_SIZE": 2**63})
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise ApiError(400, "bad_form", f"the form cannot be parsed: {error}") from None
    for part in parts:
        if part.field_name == name.encode():
            return part.value or b"" if isinstance(part, Field) else cast(io.BytesIO, part.file_object).getvalue()
    raise ApiError(400, "no_image", f"the form has no complete field {name!r}")
