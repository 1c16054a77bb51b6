"""The door: every request passes here first, before anything is read of it and before the framework sees it.

It looks at the name that it is called by, asks for the key, sends away at once whoever comes while the line is full,
counts the bytes that come in and the time that they take, and gives every answer the headers that keep a browser from
doing more than the page needs.
"""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from vitreous.serve.errors import ApiError, busy, error_body
from vitreous.serve.metrics import Metrics
from vitreous.serve.settings import JSON_BODY, Settings, is_loopback

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
DRAIN_SECONDS = 2.0  # for which a body that is too large is read on, so that its sender hears why


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
        """What the headers alone are enough for."""
        path = scope["path"]
        if _is_misled(scope, self.settings):
            said = "this server is for its own machine: call it localhost, 127.0.0.1 or [::1]"
            return ApiError(421, "wrong_host", said)
        guarded = self.settings.api_key is not None and path not in OPEN and not path.startswith("/page/")
        if guarded and not _has_key(scope, self.settings.api_key or ""):
            said = "this server wants its key, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
            return ApiError(401, "unauthorized", said, {"WWW-Authenticate": "Bearer"})
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
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _is_misled(scope: Scope, settings: Settings) -> bool:
    """A stranger's page may let its own name point to 127.0.0.1, and then a browser takes this server for a part of it.
    But it says the name. Where the app listens elsewhere, whatever its settings say, names are not ours to judge; and
    where there is a key, a stranger's page does not have it."""
    named, server = header(scope, b"host"), scope.get("server")
    if named is None or not settings.local or settings.api_key is not None:
        return False
    if server is None or not is_loopback(server[0]):
        return False
    name, _, port = named.lower().rpartition(":")
    if not port.isdecimal():  # there is none: the colon, if any, is within [::1]
        name = named.lower()
    return name not in ("localhost", "127.0.0.1", "[::1]", settings.host)


def _has_key(scope: Scope, key: str) -> bool:
    """Compared in a time that does not tell how much of it was right."""
    scheme, _, token = (header(scope, b"authorization") or "").partition(" ")
    said = token.strip() if scheme.lower() == "bearer" else header(scope, b"x-api-key") or ""
    return hmac.compare_digest(said.encode(), key.encode())


def _route(scope: Scope) -> str:
    """As it was declared: paths that strangers make up would fill the memory."""
    if scope["path"] in BATCHED:
        return str(scope["path"])
    return str(getattr(scope.get("route"), "path", "other"))
