"""Middleware around the whole app: checks every request by its headers, before its body is read.

It checks the Host header, refuses requests that other websites make a browser send, requires the API key, refuses
requests while the queue is full, limits the size and duration of bodies, and adds security headers to every answer.
"""

import asyncio
import hmac
import json
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from vitreous.serving.errors import ApiError, busy, error_body
from vitreous.serving.metrics import Metrics
from vitreous.serving.settings import JSON_BODY, Settings, is_loopback

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]

BATCHED = frozenset(["/v1/classify", "/v1/embed", "/v1/segment"])  # they wait in one line
OPEN = frozenset(["/", "/healthz", "/readyz", "/openapi.json"])  # without a key, as are the page's files

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


class Guard:
    """Around the whole app. `full`: has the line for batches no more room?"""

    def __init__(self, app: Asgi, settings: Settings, metrics: Metrics, full: Callable[[], bool]):
        self.app, self.settings, self.metrics, self.full = app, settings, metrics, full
        self.held = 0  # bytes of bodies in memory
        self.open = 0  # requests that are not answered yet
        metrics.gauges["vitreous_open_requests"] = ("Requests that are not answered yet.", lambda: self.open)
        metrics.gauges["vitreous_held_bytes"] = ("Bytes of bodies in memory.", lambda: self.held)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 0
        scope["deadline"] = began + self.settings.timeout
        body = Body(self, scope, receive)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS]
                if scope["path"] == "/" or scope["path"].startswith("/page/"):
                    message["headers"].append((b"cache-control", b"no-cache"))  # another version has other scripts
                if status >= 400 and not body.may_be_passed_over:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        self.open += 1
        try:
            refusal = self._refusal(scope, body)
            if refusal is None:
                await self.app(scope, body.receive, answer)
            else:
                await refuse(refusal, answer)
        except Exception:
            status = status or 500
            raise
        finally:
            self.open -= 1
            self.held -= body.size
            self.metrics.request(_route(scope), status, time.monotonic() - began)

    def _refusal(self, scope: Scope, body: "Body") -> ApiError | None:
        """The error that the headers alone give rise to, if any."""
        path, key = scope["path"], self.settings.api_key
        if not _has_valid_host(scope):
            return ApiError(400, "bad_host", "a request must have one Host header, of the form HOST or HOST:PORT")
        if _is_rebound(scope, self.settings):
            message = "this server answers only to the names localhost, 127.0.0.1 and [::1]"
            return ApiError(421, "wrong_host", message)
        if path not in OPEN and not path.startswith("/page/"):
            if key is None and _is_cross_site(scope):
                message = "requests from other websites are refused: use this server's own page, or a program"
                return ApiError(403, "cross_site", message)
            if key is not None and not _has_key(scope, key):
                message = "missing or invalid API key: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
                return ApiError(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})
        if body.declared is not None and body.declared > body.limit:
            return too_large(body.limit)
        if path in BATCHED and scope["method"] == "POST" and self.full():
            return busy()
        return None


class Body:
    """A request's body as it comes: no more bytes and no more time than are allowed."""

    def __init__(self, guard: Guard, scope: Scope, receive: Receive):
        self.guard, self.scope, self._receive = guard, scope, receive
        self.size, self.whole, self.late = 0, False, False
        self.limit = guard.settings.max_body
        if scope["path"].endswith("/masked"):  # JSON; all else that has a body is a picture
            self.limit = min(self.limit, JSON_BODY)
        length = header(scope, b"content-length")
        self.declared = int(length) if length is not None and length.isdigit() else None

    @property
    def may_be_passed_over(self) -> bool:
        """An answer was given before the body had come: is the connection worth keeping, or would more come than is
        worth reading?"""
        if self.whole:
            return True
        if self.declared is None:
            return header(self.scope, b"transfer-encoding") is None  # there is no body at all
        return self.declared <= self.limit and not self.late

    async def receive(self) -> Message:
        if self.whole:  # what comes now is only that the client has left
            return await self._receive()
        try:
            async with asyncio.timeout(max(self.scope["deadline"] - time.monotonic(), 0)):
                message = await self._receive()
        except TimeoutError:
            self.late = True
            said = f"the request was not complete after {self.guard.settings.timeout:g} s"
            raise ApiError(408, "slow_upload", said) from None
        if message["type"] != "http.request":
            return message
        count = len(message.get("body", b""))
        self.size += count
        self.guard.held += count
        self.whole = not message.get("more_body", False)
        if self.size > self.limit:
            raise too_large(self.limit)
        if self.guard.held > self.guard.settings.max_held:
            raise busy("too much is being uploaded")
        return message


async def refuse(error: ApiError, send: Send) -> None:
    """Without the framework, which costs more than the refusal is worth."""
    body = json.dumps(error_body(error.code, error.message)).encode()
    sent = [(name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()]
    sent += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status_code, "headers": sent})
    await send({"type": "http.response.body", "body": body})


def too_large(limit: int) -> ApiError:
    return ApiError(413, "body_too_large", f"a body for this path may have at most {limit:,} bytes")


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this name."""
    return next(iter(headers(scope, name)), None)


def headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def _has_valid_host(scope: Scope) -> bool:
    """RFC 9112, section 3.2: one Host header with a valid value. Only HTTP/1.0 may do without."""
    hosts = headers(scope, b"host")
    if not hosts:
        return scope.get("http_version") == "1.0"
    return len(hosts) == 1 and HOST.fullmatch(hosts[0]) is not None


def _is_rebound(scope: Scope, settings: Settings) -> bool:
    """True for a DNS rebinding attack: a website lets its own name point to 127.0.0.1, so that the browser takes this
    server for a part of that site. Then the Host header has that name, so only loopback names are accepted, and no
    request without a name. Not checked where the server can be reached from elsewhere, by names that it does not know,
    nor where there is an API key, which the website does not have."""
    server = scope.get("server")
    if not settings.local or settings.api_key is not None or server is None or not is_loopback(server[0]):
        return False
    match = HOST.fullmatch(header(scope, b"host") or "")
    return match is None or match[1].lower() not in ("localhost", "127.0.0.1", "[::1]", settings.host)


def _is_cross_site(scope: Scope) -> bool:
    """True if a browser sends the request for a page of another origin. Programs send neither of these headers."""
    site = header(scope, b"sec-fetch-site")
    if site is not None:
        return site not in ("same-origin", "none")  # none: the user typed the address
    origin = header(scope, b"origin")  # from browsers without Sec-Fetch-Site, and where there is no HTTPS
    return origin is not None and origin.lower().partition("://")[2] != (header(scope, b"host") or "").lower()


def _has_key(scope: Scope, key: str) -> bool:
    """Compares in constant time."""
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    sent = token.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key") or ""
    return hmac.compare_digest(sent.encode(), key.encode())


def _route(scope: Scope) -> str:
    """As it was declared: paths that strangers make up would fill the memory."""
    if scope["path"] in BATCHED:
        return str(scope["path"])
    return str(getattr(scope.get("route"), "path", "other"))
