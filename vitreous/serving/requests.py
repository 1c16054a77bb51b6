"""Checks of every request before a route computes: middleware by headers, limits of the body, and the image in it.

The middleware checks the Host header, rejects requests that other websites make a browser send, requires the API key,
answers 429 while the queue is full, limits the size and duration of bodies, and adds security headers to every answer.
An image is checked by its own header (format, number of pixels); nothing is decoded here.
"""

import asyncio
import hmac
import io
import re
import time
from collections.abc import Sequence
from typing import NamedTuple, cast

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.common.checks import Size
from vitreous.data.image import UnreadableImage, decode_errors
from vitreous.data.image.decoding import open_image, read_jpeg_header
from vitreous.serving.batch_queue import Metrics, Scheduler
from vitreous.serving.errors import ApiError, error_response, too_many_requests
from vitreous.serving.models import ServedModel
from vitreous.serving.settings import MAX_JSON_BYTES, Settings

# ---- Middleware ------------------------------------------------------------------------------------------------------

BATCHED = frozenset(["/v1/classify", "/v1/embed", "/v1/segment"])  # they share one queue
OPEN = frozenset(["/", "/healthz", "/readyz", "/openapi.json"])  # need no key, like the page's files

POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
# uri-host [":" port] of RFC 3986; the host may be empty.
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.IGNORECASE)


class Middleware:
    """Wraps the whole app."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, scheduler: Scheduler):
        self.app, self.settings, self.metrics, self.scheduler = app, settings, metrics, scheduler
        self.max_body, self.max_bodies = settings.max_body, 8 * settings.max_body
        self.body_bytes = 0  # of all bodies in memory
        self.open = 0  # requests without an answer so far
        metrics.gauges["vitreous_open_requests"] = ("Requests in progress.", lambda: self.open)
        metrics.gauges["vitreous_held_bytes"] = ("Bytes of request bodies in memory.", lambda: self.body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        scope["deadline"] = began + self.settings.timeout
        body = LimitedBody(self, scope, receive)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
                if scope["path"] == "/" or scope["path"].startswith("/page/"):
                    message["headers"].append((b"cache-control", b"no-cache"))  # a new version has new scripts
                if status >= 400 and not body.may_be_skipped:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        self.open += 1
        try:
            error = self._header_error(scope, body)
            if error is None:
                await self.app(scope, body.receive, answer)
            else:
                await error_response(error)(scope, receive, answer)
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
            return ApiError(400, "bad_host", "invalid Host header: send exactly one, HOST or HOST:PORT")
        if _is_rebound(scope, self.settings):
            return ApiError(421, "wrong_host", "unexpected Host header: use localhost, 127.0.0.1 or [::1]")
        if path not in OPEN and not path.startswith("/page/"):
            if key is None and _is_cross_site(scope):
                message = "cross-site request: use this server's own page, or a program"
                return ApiError(403, "cross_site", message)
            if key is not None and not _has_key(scope, key):
                message = "missing or invalid API key: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
                return ApiError(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})
        if body.declared is not None and body.declared > body.limit:
            return body.too_large()
        if path in BATCHED and scope["method"] == "POST" and self.scheduler.full:
            return too_many_requests()
        return None


class LimitedBody:
    """A request's body with limits on its bytes and its duration."""

    def __init__(self, middleware: Middleware, scope: Scope, receive: Receive):
        self.middleware, self.scope, self._receive = middleware, scope, receive
        self.size, self.complete, self.late = 0, False, False
        self.limit = middleware.max_body
        if scope["path"].endswith("/masked"):  # JSON; all other bodies are images
            self.limit = min(self.limit, MAX_JSON_BYTES)
        length = header(scope, b"content-length")
        self.declared = int(length) if length is not None and length.isdigit() else None

    @property
    def may_be_skipped(self) -> bool:
        """True if the rest of the body is short enough to be read, so that the connection can be kept."""
        if self.complete:
            return True
        if self.declared is None:
            return header(self.scope, b"transfer-encoding") is None  # no body at all
        return self.declared <= self.limit and not self.late

    def too_large(self) -> ApiError:
        message = f"the body of a request to this path may have at most {self.limit:,} bytes"
        return ApiError(413, "body_too_large", message)

    async def receive(self) -> Message:
        if self.complete:  # only a disconnect can follow
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
    """RFC 9112, section 3.2: one Host header with a valid value. Only HTTP/1.0 may omit it."""
    hosts = headers(scope, b"host")
    if not hosts:
        return scope.get("http_version") == "1.0"
    return len(hosts) == 1 and HOST.fullmatch(hosts[0]) is not None


def _is_rebound(scope: Scope, settings: Settings) -> bool:
    """True for a DNS rebinding attack: a website points its own name to 127.0.0.1, so that the browser takes this
    server for a part of that site. The Host header then holds that name, so only loopback names are accepted. Not
    checked if the server is reachable from elsewhere, under names that it does not know, nor with an API key, which the
    website does not have."""
    server = scope.get("server")
    if not is_loopback(settings.host) or settings.api_key is not None or server is None or not is_loopback(server[0]):
        return False
    match = HOST.fullmatch(header(scope, b"host") or "")
    return match is None or match[1].lower() not in ("localhost", "127.0.0.1", "[::1]", settings.host)


def is_loopback(host: str) -> bool:
    return host in ("::1", "localhost") or host.startswith("127.")


def _is_cross_site(scope: Scope) -> bool:
    """True if a browser sends the request for a page of another origin. Programs send neither of the two headers."""
    site = header(scope, b"sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")  # none: the user typed the address
    origin = header(scope, b"origin")  # from browsers without Sec-Fetch-Site, and where there is no HTTPS
    return origin is not None and origin.lower().partition("://")[2] != (header(scope, b"host") or "").lower()


def _has_key(scope: Scope, key: str) -> bool:
    """Compare the API key in constant time."""
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    sent = token.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key") or ""
    return hmac.compare_digest(sent.encode(), key.encode())


def _route(scope: Scope) -> str:
    """The declared path of the route: made-up paths in the metrics would fill the memory."""
    if scope["path"] in BATCHED:
        return str(scope["path"])
    return str(getattr(scope.get("route"), "path", "other"))


# ---- The model and the image -----------------------------------------------------------------------------------------

SMALL = 65536  # bytes; a larger body may be slow to parse, on purpose, which must not hold up the event loop
TYPES = ("image/jpeg", "image/png", "image/webp")
# Sent by programs that do not know the type; the last is curl's default. The first bytes decide anyway.
UNKNOWN_TYPES = ("image/*", "application/octet-stream", "", "application/x-www-form-urlencoded")
LARGE_PIXELS = 2**22  # an image with more takes a good part of a second to decode, and more than 100 MB
JPEG_ADVANTAGE = 4  # JPEGs are decoded at a reduced size, without copies
MAX_PARTS = 32  # of a form; each costs more time than its bytes suggest


def find_model(served: Sequence[ServedModel], id: str | None) -> ServedModel:
    """Return the model with this id; the first if the request names none."""
    for one in served:
        if id is None or one.id == id:
            return one
    raise ApiError(404, "unknown_model", f"unknown model {id!r}: use {', '.join(one.id for one in served)}")


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
    """Image format by the first bytes."""
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    return "WEBP" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None


def form_field(body: bytes, content_type: str, name: str) -> bytes:
    """Content of the first field `name` of a multipart form; ApiError 400 if it is missing.

    Parsed in memory: the framework's parser writes large files to the disk.
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
