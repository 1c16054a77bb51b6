"""Speed and stall limits for downloads."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Generator
from typing import Generic, TypeVar

STALL_SECONDS = 30.0  # maximum time without receiving any data
WINDOW_SECONDS = 60.0  # over which the download rate is measured
MIN_BYTES_PER_SECOND = 4096  # half the rate of a throttled 64 kbit/s mobile connection

T = TypeVar("T")


class BadResponse(OSError):
    """A server response that is too long, too slow or invalid. Retrying would not help."""


class BackgroundReader(Generic[T]):
    """Runs a blocking generator in a daemon thread, so that the caller can stop waiting for the next item.

    A socket timeout is not enough: a server that sends a header or TLS handshake byte by byte keeps resetting
    the timeout.
    """

    def __init__(self, items: Callable[[], Generator[T, None, None]]) -> None:
        self._entries: queue.Queue[tuple[list[T], BaseException | None]] = queue.Queue(maxsize=8)
        self._closed = threading.Event()
        threading.Thread(target=self._run, args=(items,), daemon=True).start()

    def _run(self, items: Callable[[], Generator[T, None, None]]) -> None:
        end: BaseException | None = None
        try:
            with contextlib.closing(items()) as generator:
                for item in generator:
                    self._put([item], None)
                    if self._closed.is_set():
                        return
        except BaseException as error:
            end = error
        self._put([], end)

    def _put(self, item: list[T], error: BaseException | None) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._entries.put((item, error), timeout=0.1)
                return

    def next(self, seconds: float | None) -> T | None:
        """Return the next item, or None at the end. Raise queue.Empty after `seconds`. Re-raise generator errors."""
        item, error = self._entries.get(timeout=None if seconds is None else max(seconds, 0.001))
        if error is not None:
            raise error
        return item[0] if item else None

    def close(self) -> None:
        """Stop the generator at its next item. The thread may block in a read until then."""
        self._closed.set()


class Pace:
    """Tracks the speed of a download over any number of connections and files."""

    def __init__(self, description: str) -> None:
        self.description = description
        self._lock = threading.Lock()
        self._start, self._bytes = time.monotonic(), 0

    def add(self, count: int) -> None:
        """Add `count` received bytes. Raise BadResponse if the download was too slow in the last WINDOW_SECONDS."""
        with self._lock:
            self._bytes += count
            seconds = time.monotonic() - self._start
            if seconds < WINDOW_SECONDS:
                return
            if self._bytes < MIN_BYTES_PER_SECOND * seconds:
                raise BadResponse(
                    f"{self.description} is too slow: {self._bytes:,} bytes in {seconds:.0f} s; the minimum "
                    f"is {MIN_BYTES_PER_SECOND:,} bytes per second"
                )
            self._start, self._bytes = time.monotonic(), 0

    def next(self, reader: BackgroundReader[bytes]) -> bytes | None:
        """Return the reader's next chunk, or None at the end. Raise BadResponse if the download stalls or is slow."""
        stalled_at = time.monotonic() + STALL_SECONDS
        while True:
            self.add(0)
            now = time.monotonic()
            if now >= stalled_at:
                raise BadResponse(f"{self.description} stalled: no data received for {STALL_SECONDS:.0f} s")
            with contextlib.suppress(queue.Empty):
                chunk = reader.next(min(stalled_at, self._start + WINDOW_SECONDS) - now)
                self.add(len(chunk or b""))
                return chunk
