"""Request checks: middleware for headers, limits on the body, and checks of the uploaded image.

The middleware checks the Host header and the API key, rejects cross-site requests, returns 429 while the queue is full,
limits the size and upload time of bodies, and adds security headers to every response. The format and the number of
pixels of an image are read from its header, without decoding the image.
"""

import asyncio
import base64
import hmac
import io
import json
import re
import secrets
import time
from collections.abc import Sequence
from typing import NamedTuple, cast, get_args

from fastapi import Request
from PIL import Image
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.common.checks import Size, suggestion
from vitreous.data.image import UnreadableImage, decode_errors
from vitreous.data.image.decoding import open_image, read_jpeg_header
from vitreous.model.base_config import Task
from vitreous.serving.batch_queue import Scheduler
from vitreous.serving.errors import ApiError, error_response, too_many_requests
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import ServedModel
from vitreous.serving.settings import MAX_JSON_BYTES, Settings

# ---- Middleware ------------------------------------------------------------------------------------------------------

BATCHED = frozenset(f"/v1/{task}" for task in get_args(Task))  # these endpoints share one queue
OPEN = frozenset(["/", "/docs", "/healthz", "/readyz", "/openapi.json"])  # without an API key, like files in /page/

POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors "
)
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
PREFLIGHT = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type, x-api-key, x-request-id, x-session-id"),
    (b"access-control-max-age", b"600"),
]
EXPOSED = b"retry-after, server-timing, x-request-id, x-shape"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
# uri-host [":" port] of RFC 3986; the host may be empty.
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.IGNORECASE)


class Middleware:
    """ASGI middleware around the whole app."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, scheduler: Scheduler):
        self.app, self.settings, self.metrics, self.scheduler = app, settings, metrics, scheduler
        self.max_body, self.max_bodies = settings.max_body, 8 * settings.max_body
        framing = POLICY + (" ".join(settings.frame_origins) or "'none'")
        self.headers = [(b"content-security-policy", framing.encode()), *HEADERS]
        self.body_bytes = 0  # total size of request bodies in memory
        self.open = 0  # requests in progress
        metrics.gauges["vitreous_open_requests"] = ("Requests in progress.", lambda: self.open)
        metrics.gauges["vitreous_held_bytes"] = ("Bytes of request bodies in memory.", lambda: self.body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        scope["deadline"] = began + self.settings.timeout
        given = header(scope, b"x-request-id") or ""
        scope["request_id"] = given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        origin = header(scope, b"origin") if _has_allowed_origin(scope, self.settings) else None
        body = LimitedBody(self, scope, receive)

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *self.headers]
                message["headers"].append((b"x-request-id", scope["request_id"].encode()))
                message["headers"].append((b"server-timing", body.timing(began).encode()))
                if self.settings.cors_origins:
                    message["headers"].append((b"vary", b"origin"))
                if origin is not None:
                    message["headers"].append((b"access-control-allow-origin", origin.encode("latin-1")))
                    message["headers"].append((b"access-control-expose-headers", EXPOSED))
                if scope["path"] in ("/", "/docs") or scope["path"].startswith("/page/"):
                    message["headers"].append((b"cache-control", b"no-cache"))  # reload scripts after an upgrade
                if status >= 400 and not body.may_be_skipped:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        self.open += 1
        try:
            error = self._header_error(scope, body)
            if error is None and origin is not None and _is_preflight(scope):
                await respond({"type": "http.response.start", "status": 204, "headers": PREFLIGHT})
                await respond({"type": "http.response.body"})
            elif error is None:
                await self.app(scope, body.receive, respond)
            else:
                await error_response(error)(scope, receive, respond)
        except Exception:
            status = status or 500
            raise
        finally:
            self.open -= 1
            self.body_bytes -= body.size
            self.metrics.request(_route(scope), status, time.monotonic() - began)

    def _header_error(self, scope: Scope, body: "LimitedBody") -> ApiError | None:
        path, key = scope["path"], self.settings.api_key
        if not _has_valid_host(scope):
            return ApiError(400, "bad_host", "invalid Host header; send exactly one, as HOST or HOST:PORT")
        if _is_rebound(scope, self.settings):
            return ApiError(421, "wrong_host", "unexpected Host header; use localhost, 127.0.0.1 or [::1]")
        allowed = _has_allowed_origin(scope, self.settings)
        if path not in OPEN and not path.startswith("/page/") and not (allowed and _is_preflight(scope)):
            if key is None and _is_cross_site(scope) and not allowed:
                message = "cross-site requests are not allowed; use this server's own page or an HTTP client"
                return ApiError(403, "cross_site", message)
            if key is not None and not _has_key(scope, key):
                message = "missing or invalid API key; send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
                return ApiError(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})
        if body.declared is not None and body.declared > body.limit:
            return body.too_large()
        if path in BATCHED and scope["method"] == "POST" and self.scheduler.full:
            return too_many_requests()
        return None


class LimitedBody:
    """Request body with limits on size and upload time."""

    def __init__(self, middleware: Middleware, scope: Scope, receive: Receive):
        self.middleware, self.scope, self._receive = middleware, scope, receive
        self.size, self.complete, self.late = 0, False, False
        self.arrived: float | None = None  # time of the last byte
        self.limit = middleware.max_body
        if scope["path"].endswith("/masked"):  # a JSON body; all other bodies are images
            self.limit = min(self.limit, MAX_JSON_BYTES)
        length = header(scope, b"content-length")
        self.declared = int(length) if length is not None and length.isdigit() else None

    @property
    def may_be_skipped(self) -> bool:
        """True if the rest of the body can be read and discarded to keep the connection open."""
        if self.complete:
            return True
        if self.declared is None:
            return header(self.scope, b"transfer-encoding") is None  # no body
        return self.declared <= self.limit and not self.late

    def timing(self, began: float) -> str:
        """Return the Server-Timing header: milliseconds to receive the request, and to compute the response."""
        received, now = self.arrived or began, time.monotonic()
        return f"upload;dur={(received - began) * 1e3:.1f}, compute;dur={(now - received) * 1e3:.1f}"

    def too_large(self) -> ApiError:
        return ApiError(413, "body_too_large", f"the request body is larger than {self.limit:,} bytes")

    async def receive(self) -> Message:
        if self.complete:  # the next message is a disconnect
            return await self._receive()
        try:
            async with asyncio.timeout(max(self.scope["deadline"] - time.monotonic(), 0)):
                message = await self._receive()
        except TimeoutError:
            self.late = True
            seconds = self.middleware.settings.timeout
            raise ApiError(408, "slow_upload", f"the request was not complete after {seconds:g} s") from None
        if message["type"] != "http.request":
            return message
        count = len(message.get("body", b""))
        self.size += count
        self.middleware.body_bytes += count
        self.complete = not message.get("more_body", False)
        self.arrived = time.monotonic()
        if self.size > self.limit:
            raise self.too_large()
        if self.middleware.body_bytes > self.middleware.max_bodies:
            raise too_many_requests("too many bytes are being uploaded")
        return message


def header(scope: Scope, name: bytes) -> str | None:
    return next(iter(headers(scope, name)), None)


def headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def _has_valid_host(scope: Scope) -> bool:
    """Return True if there is exactly one Host header and it is valid (RFC 9112, section 3.2). HTTP/1.0 may omit it."""
    hosts = headers(scope, b"host")
    if not hosts:
        return scope.get("http_version") == "1.0"
    return len(hosts) == 1 and HOST.fullmatch(hosts[0]) is not None


def _is_rebound(scope: Scope, settings: Settings) -> bool:
    """Return True for a possible DNS rebinding attack, in which a website resolves its own name to 127.0.0.1.

    The browser then treats this server as part of that website and sends the name of the website as Host. Therefore,
    only loopback names are accepted. There is no check if the server is reachable from other machines, because its
    names are then unknown, or if it has an API key, because the website does not know the key.
    """
    server = scope.get("server")
    if not is_loopback(settings.host) or settings.api_key is not None or server is None or not is_loopback(server[0]):
        return False
    match = HOST.fullmatch(header(scope, b"host") or "")
    return match is None or match[1].lower() not in ("localhost", "127.0.0.1", "[::1]", settings.host)


def is_loopback(host: str) -> bool:
    return host in ("::1", "localhost") or host.startswith("127.")


def _is_cross_site(scope: Scope) -> bool:
    """Return True if a browser sent the request from another origin, according to Sec-Fetch-Site or Origin."""
    site = header(scope, b"sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")  # none: a typed address or a bookmark
    origin = header(scope, b"origin")  # old browsers, or plain HTTP
    return origin is not None and origin.lower().partition("://")[2] != (header(scope, b"host") or "").lower()


def _has_allowed_origin(scope: Scope, settings: Settings) -> bool:
    """Return True if a browser sent the request from a website of `cors_origins`."""
    origin = header(scope, b"origin")
    return origin is not None and ("*" in settings.cors_origins or origin.lower() in settings.cors_origins)


def _is_preflight(scope: Scope) -> bool:
    """Return True for the request by which a browser asks whether a website may send the actual request."""
    return bool(scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method"))


def _has_key(scope: Scope, key: str) -> bool:
    """Return True if the request has the API key. The keys are compared in constant time."""
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    sent = token.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key") or ""
    return hmac.compare_digest(sent.encode(), key.encode())


def _route(scope: Scope) -> str:
    """Return the path template of a route for the metrics. If raw paths were counted, clients could fill the memory."""
    if scope["path"] in BATCHED:
        return str(scope["path"])
    return str(getattr(scope.get("route"), "path", "other"))


# ---- The model and the image -----------------------------------------------------------------------------------------

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
