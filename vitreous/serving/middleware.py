"""Middleware around the whole app: checks every request by its headers, before its body is read.

It checks the Host header, rejects requests that other websites make a browser send, requires the API key, answers 429
while the queue is full, limits the size and duration of bodies, and adds security headers to every answer.
"""

import asyncio
import hmac
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitreous.serving.errors import ApiError, busy, error_response
from vitreous.serving.prometheus import Metrics
from vitreous.serving.scheduler import Scheduler
from vitreous.serving.settings import MAX_JSON_BYTES, Settings

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
            return too_large(body.limit)
        if path in BATCHED and scope["method"] == "POST" and self.scheduler.full:
            return busy()
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
            raise too_large(self.limit)
        if self.middleware.body_bytes > self.middleware.max_bodies:
            raise busy("too many bytes are being uploaded")
        return message


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"the body of a request to this path may have at most {limit:,} bytes")


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
