"""HTTP connections: uvicorn's protocol with limits on header time, header size and open connections.

Clients that send too many headers, or send headers too slowly, are disconnected. Invalid HTTP gets an error response in
the JSON format of the API. On shutdown, requests that are still arriving are completed, and idle connections are closed
after a short delay. Before a connection is closed, the client can read the last response.
"""

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitreous.serving.errors import error_body

HEADER_SECONDS = 10.0
MAX_HEADER_BYTES = 2**16  # for the request line and headers, or for the trailers of a chunked body
MAX_HEADERS = 256  # each header takes more memory than its length in bytes
CHUNK = 2**14  # bytes passed to the parser at once; MAX_HEADER_BYTES may be exceeded by this much
IDLE_SECONDS = 0.25  # delay before idle connections are closed on shutdown
MAX_CONNECTIONS = 2048
MAX_REFUSED = 256  # number of connections above the limit that stay open until the client has read the error
LINGER_SECONDS = 2.0
LINGER_BYTES = 64 * 2**20


class LingeringTransport:
    """asyncio transport whose close() lingers if `unread` is set (RFC 9112, section 9.6).

    Closing a socket with unread data resets the connection, which can discard the response before the client reads it.
    close() therefore shuts down the sending side and discards incoming data until the client disconnects, for at most
    LINGER_SECONDS and LINGER_BYTES.
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
        except OSError:  # the client disconnected
            self._transport.close()
            return
        self._transport.resume_reading()
        self._loop.call_later(LINGER_SECONDS, self.close_now)

    def close_now(self) -> None:
        self._transport.close()

    def discard(self, data: bytes) -> None:
        """Count data that arrives while lingering, and close the connection after LINGER_BYTES."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self._transport.close()


class Connection(HttpToolsProtocol):
    """HTTP connection to a client, with limits on the headers and on the number of connections."""

    transport: Any

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._ignoring = False  # ignore further input and close after pending responses
        self._in_body = False  # the headers are complete, but the body is not
        self._header_bytes = 0  # bytes since the parser last completed headers or a body chunk
        self._headers_too_large = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(LingeringTransport(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > MAX_CONNECTIONS:
            message = "too many open connections; try again in a second"
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
            raise ValueError(f"more than {MAX_HEADERS} headers")  # makes the parser call send_400_response

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
            # The response was sent before the whole body arrived. Read the rest of the body, but with a time limit.
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
        if self.cycle is not None and not self.cycle.response_complete:  # an earlier request is still in progress
            self._start_timer()
            return
        message = f"the request headers were not complete after {HEADER_SECONDS:g} s"
        self._refuse("408 Request Timeout", "slow_request", message)

    def _refuse_headers(self) -> None:
        message = f"the request headers exceed {MAX_HEADER_BYTES:,} bytes or {MAX_HEADERS} lines"
        self._refuse("431 Request Header Fields Too Large", "headers_too_large", message)

    def _refuse(self, status: str, code: str, message: str, linger: bool = True) -> None:
        """Send an error for an invalid request and close the connection, unless another response is in progress."""
        self._stop_timer()
        self._ignoring = True
        if self.transport.is_closing():
            return
        self.transport.unread = linger
        if self.cycle is not None and not self.cycle.response_complete:
            if not self._in_body or self.cycle.response_started:  # an earlier request, or a partial response
                self.cycle.keep_alive = False
                return
            self.cycle.disconnected = True  # discard the app's response
            self.cycle.message_event.set()
        elif self._in_body:  # the response was sent; only the rest of the body is invalid
            self.transport.close()
            return
        body = json.dumps(error_body(code, message)).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
