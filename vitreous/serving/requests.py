"""Checks of a request: its query parameters, its model and the image in its body.

The format and the number of pixels of an image are read from its header, without decoding the image.
"""

import asyncio
import base64
import io
import json
from collections.abc import Sequence
from typing import NamedTuple, cast

from fastapi import Request
from PIL import Image
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from vitreous.common.checks import Size, suggestion
from vitreous.data.image import UnreadableImage, decode_errors
from vitreous.data.image.decoding import open_image
from vitreous.data.image.jpeg import read_jpeg_header
from vitreous.serving.errors import ApiError
from vitreous.serving.models import ServedModel
from vitreous.serving.settings import Settings

SMALL = 65536  # bytes; larger bodies are parsed in a thread, because parsing could block the event loop
TYPES = ("image/jpeg", "image/png", "image/webp")
# Content types from clients that do not know the format; the last is curl's default. The first bytes show the format.
UNKNOWN_TYPES = ("image/*", "application/octet-stream", "", "application/x-www-form-urlencoded")
LARGE_PIXELS = 2**22  # decoding larger images takes a significant fraction of a second and over 100 MB
JPEG_ADVANTAGE = 4  # factor on LARGE_PIXELS for JPEGs, which are decoded at a reduced size without copies
MAX_PARTS = 32  # maximum number of form parts, because even a small part takes time to parse
MAX_JSON_PARTS = 64  # brackets and commas of a JSON body, because parsed lists take far more memory than their text


def find_model(served: Sequence[ServedModel], id: str | None) -> ServedModel:
    """Return the model with this id, or the first model if `id` is None."""
    for model in served:
        if id is None or model.id == id:
            return model
    known = ", ".join(model.id for model in served)
    raise ApiError(404, "unknown_model", f"unknown model {id!r}; choose from {known}")


def check_query(request: Request) -> None:
    """Raise ApiError for a query parameter that the endpoint does not have, or that is given twice."""
    endpoint = request.scope["route"].dependant
    known = [field.alias for part in (endpoint, *endpoint.dependencies) for field in part.query_params]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            accepted = f"choose from {', '.join(known)}" if known else "this endpoint has none"
            message = f"unknown query parameter {name[:100]!r}{suggestion(name, known)}; {accepted}"
            raise ApiError(422, "bad_parameter", message)
        if given.count(name) > 1:
            raise ApiError(422, "bad_parameter", f"{name} is given {given.count(name)} times; send it once")


class Upload(NamedTuple):
    """An accepted image. `large` images are processed one at a time, because they are expensive to decode."""

    data: bytes
    large: bool


async def read_image(request: Request, settings: Settings) -> Upload:
    """Read one image from the body, from the multipart field `image` or from JSON, without decoding it."""
    upload = await read_images(request, settings)
    if isinstance(upload, list):
        raise ApiError(422, "bad_parameter", "images: this endpoint takes one image, as the field 'image'")
    return upload


async def read_images(request: Request, settings: Settings) -> Upload | list[Upload | ApiError]:
    """Read one image, or the list `images` of a JSON body. An entry of a list that is not an image is an error."""
    body, content_type = await request.body(), request.headers.get("content-type", "")
    if len(body) <= SMALL:
        return check_body(body, content_type, settings)
    return await asyncio.to_thread(check_body, body, content_type, settings)


def check_body(body: bytes, content_type: str, settings: Settings) -> Upload | list[Upload | ApiError]:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        return check_upload(body, content_type, settings)
    images = json_images(body, settings.max_batch)
    if isinstance(images, str):
        return check_upload(from_base64(images, "image"), "", settings)
    uploads: list[Upload | ApiError] = []
    for number, text in enumerate(images):
        try:
            uploads.append(check_upload(from_base64(text, f"images[{number}]"), "", settings))
        except ApiError as error:
            uploads.append(error)
    return uploads


def json_images(body: bytes, most: int) -> str | list[str]:
    """Return the field `image` or the list `images` of a JSON body. At most `most` images are accepted."""
    if sum(body.count(mark) for mark in (b"[", b"{", b",")) > MAX_JSON_PARTS + 2 * most:  # base64 has none of these
        raise ApiError(422, "bad_parameter", "the body has too many parts; send {'image': base64} or {'images': [...]}")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "bad_json", f"the body is not valid JSON: {error}") from None
    match given:
        case {"image": str(image)} if len(given) == 1:
            return image
        case {"images": [*images]} if len(given) == 1 and all(isinstance(image, str) for image in images):
            if not 1 <= len(images) <= most:
                raise ApiError(422, "bad_parameter", f"images: 1 to {most} images are accepted, got {len(images)}")
            return images
    message = "a JSON body must have exactly one field: 'image', a base64 string, or 'images', a list of them"
    raise ApiError(422, "bad_parameter", message)


def from_base64(text: str, name: str) -> bytes:
    """Decode base64, with or without the prefix of a data URL."""
    head, comma, rest = text.partition(",")
    try:
        return base64.b64decode(rest if comma and head.startswith("data:") else text, validate=True)
    except ValueError:
        raise ApiError(422, "bad_parameter", f"{name}: not valid base64") from None


def check_upload(data: bytes, content_type: str, settings: Settings) -> Upload:
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        data = form_field(data, content_type, "image")
    elif kind not in (*TYPES, *UNKNOWN_TYPES):
        message = f"unsupported content type {kind!r}; send {', '.join(TYPES)}, JSON or a form with the field 'image'"
        raise ApiError(415, "unsupported_type", message)
    pixels = check_image(data, settings)
    return Upload(data, pixels > LARGE_PIXELS * (JPEG_ADVANTAGE if format_of(data) == "JPEG" else 1))


def check_image(data: bytes, settings: Settings) -> int:
    """Return the number of pixels from the image header. Raise ApiError if the image must not be decoded."""
    if not data:
        raise ApiError(400, "no_image", "the body is empty; send an image")
    if format_of(data) is None:
        raise ApiError(415, "unsupported_type", "unsupported image format; send JPEG, PNG or WebP")
    try:
        height, width = stored_size(data)
    except UnreadableImage as error:
        large = isinstance(error.__context__, Image.DecompressionBombError)  # more pixels than Pillow accepts
        raise ApiError(413 if large else 422, "too_many_pixels" if large else "unreadable_image", str(error)) from None
    if (pixels := height * width) > settings.max_pixels:
        message = f"the image has {pixels:,} pixels ({width} x {height}); the maximum is {settings.max_pixels:,}"
        raise ApiError(413, "too_many_pixels", message)
    return pixels


def stored_size(data: bytes) -> Size:
    """Return the stored height and width. EXIF orientation is ignored: Pillow may decode a whole PNG to read it."""
    with decode_errors():
        if jpeg := read_jpeg_header(data):
            return jpeg.height, jpeg.width
        if size := _webp_size(data):
            return size
        image = open_image(data)
        return image.height, image.width


def _webp_size(data: bytes) -> Size | None:
    """Return the size of a WebP image, or None if unknown. Pillow would allocate memory for the whole image."""
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
    """Detect the image format from the first bytes. Return None if the format is not supported."""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def form_field(body: bytes, content_type: str, name: str) -> bytes:
    """Return the field `name` of a multipart form. Raise ApiError with status 400 unless there is exactly one.

    The form is parsed in memory, because the parser of FastAPI writes large files to disk.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise ApiError(400, "bad_form", "the Content-Type of the form has no boundary")
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
    found = [part for part in parts if part.field_name == name.encode()]
    if not found:
        raise ApiError(400, "no_image", f"the form has no field {name!r}, or the field is incomplete")
    if len(found) > 1:
        raise ApiError(400, "bad_form", f"the form has {len(found)} fields {name!r}; send one image per request")
    [part] = found
    return part.value or b"" if isinstance(part, Field) else cast(io.BytesIO, part.file_object).getvalue()
