"""Middleware: checks of headers, and limits on the size and upload time of bodies.

It checks the Host header and the API key, rejects cross-site requests, returns 429 while the queue is full, and adds
security headers to every response.
"""

import asyncio
import hmac
import re
import secrets
import time
from typing import get_args

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.model.base_config import Task
from vitreous.serving.batch_queue import Scheduler
from vitreous.serving.errors import ApiError, error_response, too_many_requests
from vitreous.serving.metrics import Metrics
from vitreous.serving.settings import MAX_JSON_BYTES, Settings

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
