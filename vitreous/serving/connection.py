"""One HTTP connection: uvicorn's protocol with limits on time, size and number, and a close that keeps the last answer.

A client that does not finish its headers in time is disconnected, and so is one whose headers are too long. The number
of connections is limited. Data that is not HTTP is answered with an error in the API's form. On shutdown, a request
that is arriving on an open connection is still answered: an idle connection is closed only after a moment without data.
"""

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitreous.serving.errors import error_body

HEADER_SECONDS = 10.0
MAX_HEADER_BYTES = 2**16  # of a request line with its headers, and of the trailers after a chunked body
MAX_HEADERS = 256  # each costs more memory than its bytes
CHUNK = 2**14  # bytes given to the parser at once, by which MAX_HEADER_BYTES may be exceeded
IDLE_SECONDS = 0.25  # between the shutdown signal and the closing of idle connections
MAX_CONNECTIONS = 2048
MAX_REFUSED = 256  # connections beyond these that stay open until the client has read the error
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 * 2**20


class LingeringTransport:
    """An asyncio transport whose close() lingers while `unread` is set (RFC 9112, section 9.6).

    Closing a socket with unread data resets the connection, and a reset discards the answer that the client has not
    read yet. So the sending side is closed first, and incoming data is dropped until the client closes its side, at
    most for LINGER_SECONDS and LINGER_BYTES.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop):
        self.unread = False
        self.lingering = False
        self._transport, self._loop = transport, loop
        self._bytes_left = LINGER_BYTES

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.lingering or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if not self.unread or not self._transport.can_write_eof():
            self._transport.close()
            return
        self.lingering = True
        try:
            self._transport.write_eof()
        except OSError:  # the client has disconnected
            self._transport.close()
            return
        self._transport.resume_reading()
        self._loop.call_later(LINGER_SECONDS, self.close_now)

    def close_now(self) -> None:
        self._transport.close()

    def discard(self, data: bytes) -> None:
        """Account for data that arrived while lingering."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self._transport.close()


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    transport: Any

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._ignoring = False  # further input: the connection closes after the pending answers
        self._in_body = False  # the headers of a request are complete, its body is not
        self._header_bytes = 0  # since the parser last completed something
        self._headers_too_large = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(LingeringTransport(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > MAX_CONNECTIONS:
            message = "too many open connections: try again in a second"
            linger = len(self.connections) <= MAX_CONNECTIONS + MAX_REFUSED
            self._refuse("503 Service Unavailable", "busy", message, linger)
            return
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.lingering:
            self.transport.discard(data)
            return
        for start in range(0, len(data), CHUNK):
            if self._ignoring or self.transport.is_closing():
                return
            chunk = data[start : start + CHUNK]
            self._header_bytes += len(chunk)
            super().data_received(chunk)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse_headers()

    # ---- Called by the parser ----

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.transport.unread = True
        self._start_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._headers_too_large = True
            raise ValueError("too many headers")  # stops the parser, which then calls send_400_response

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._header_bytes, self._in_body = 0, True
        super().on_headers_complete()
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._header_bytes = 0
        super().on_body(body)
        if self.cycle.response_complete and not self.transport.is_closing():
            # The rest of a request that has already been answered: read it, but only for a while.
            self._timer = self._timer or self.loop.call_later(HEADER_SECONDS, self.transport.close_now)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._header_bytes, self._in_body = 0, False
        self.transport.unread = False
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._headers_too_large:
            self._refuse_headers()
        else:
            self._refuse("400 Bad Request", "bad_http", msg)

    # ---- Closing ----

    def shutdown(self) -> None:
        self._stopping = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(IDLE_SECONDS, self._close_if_idle)
        else:
            self.cycle.keep_alive = False

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEADER_SECONDS, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # an earlier request is being answered
            self._start_timer()
            return
        message = f"the headers were not complete after {HEADER_SECONDS:g} s"
        self._refuse("408 Request Timeout", "slow_request", message)

    def _refuse_headers(self) -> None:
        message = f"the headers may have at most {MAX_HEADER_BYTES:,} bytes and {MAX_HEADERS} lines"
        self._refuse("431 Request Header Fields Too Large", "headers_too_large", message)

    def _refuse(self, status: str, code: str, message: str, linger: bool = True) -> None:
        """Answer a request that cannot be read, and close the connection, unless other answers are being sent on it."""
        self._stop_timer()
        self._ignoring = True
        if self.transport.is_closing():
            return
        self.transport.unread = linger
        if self.cycle is not None and not self.cycle.response_complete:
            if not self._in_body or self.cycle.response_started:  # an earlier request, or an answer half sent
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True  # the app's answer is no longer needed
            self.cycle.message_event.set()
        elif self._in_body:  # already answered; only the rest of the body is invalid
            self.transport.close()
            return
        body = json.dumps(error_body(code, message)).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
