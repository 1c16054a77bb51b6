"""HTTP as uvicorn speaks it, and four things that it leaves open.

A client that connects and does not finish its headers is cut off. Connections are bounded in number. What is not HTTP
at all gets an error in our form. And when the server stops, a request that is on its way on an open connection is still
answered: an idle connection is closed only when nothing has come on it for a moment.
"""

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from vitreous.serve.errors import error_body

HEADER_SECONDS = 10.0
LAST_CALL = 0.25  # seconds after the order to stop
MAX_CONNECTIONS = 2048


class Protocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self._patience: asyncio.TimerHandle | None = None
        self._stopping = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._say("503 Service Unavailable", "busy", "too many connections are open: try again in a second")
            return
        self._be_patient()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._be_patient()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()
        if self._stopping and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.cycle.response_complete and not self.transport.is_closing():
            # The rest of a request that has its answer already: it may come, but not for ever.
            self._patience = self._patience or self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def on_message_complete(self) -> None:
        self._stop_waiting()
        super().on_message_complete()

    def shutdown(self) -> None:
        self._stopping = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LAST_CALL, self._close_if_idle)
        else:
            self.cycle.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        self._say("400 Bad Request", "bad_http", msg)

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    def _be_patient(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # an earlier request is being answered
            self._be_patient()
            return
        self._say("408 Request Timeout", "slow_request", f"no whole headers came in {HEADER_SECONDS:g} s")

    def _say(self, status: str, code: str, message: str) -> None:
        body = json.dumps(error_body(code, message)).encode()
        head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + body)
        self.transport.close()
