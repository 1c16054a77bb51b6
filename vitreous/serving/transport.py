"""A transport that closes in a way that lets the client read the last answer."""

import asyncio
from typing import Any

LINGER_SECONDS = 2.0
LINGER_BYTES = 64 * 2**20


class LingeringTransport:
    """Wraps an asyncio transport. While `unread` is set, close() lingers: RFC 9112, section 9.6.

    Closing a socket with unread data resets the connection, and a reset discards the answer that the client has not
    read yet. So the sending side is closed first; what the client still sends is dropped until it closes its side, at
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
        except OSError:  # the client has gone
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
