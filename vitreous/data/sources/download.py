"""Resumable, size-limited and verified downloads to the cache.

A file is downloaded as `NAME.part` and renamed once its checksum is verified, so a file that exists is complete and is
not downloaded again. (Neither pooch nor urlretrieve can resume a download, or limit its size and duration.)
"""

import contextlib
import hashlib
import http.client
import os
import queue
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterator
from email.message import Message
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from vitreous.common.network import WINDOW_SECONDS, BackgroundReader, BadResponse, Pace
from vitreous.common.text import SafeConsole, printable

CHUNK = 1 << 20
TIMEOUT = 20.0  # seconds without data before a connection counts as broken
MAX_BYTES = 1 << 36  # 64 GiB
MAX_RESTARTS = 5  # from the first byte


def cache_folder(*below: str) -> Path:
    """Return a folder below VITREOUS_CACHE or ~/.cache/vitreous, creating it if necessary."""
    folder = Path(os.environ.get("VITREOUS_CACHE") or Path.home() / ".cache" / "vitreous").expanduser().joinpath(*below)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(url: str, target: Path, checksum: str | None = None, max_bytes: int = MAX_BYTES) -> Path:
    """Download `url` to `target` unless `target` exists. Resume after broken connections.

    `checksum` is an MD5 (32 digits) or SHA-256 (64 digits) hash.
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(target):
        if target.exists():  # downloaded by another process in the meantime
            return target
        download = _Download(url, target, max_bytes)
        with progress(f"downloading {url}") as advance:
            while not download.resume(advance):
                pass
        download.tag.unlink(missing_ok=True)
        if checksum is not None:
            with open(download.part, "rb") as file:
                actual = hashlib.file_digest(file, "md5" if len(checksum) == 32 else "sha256").hexdigest()
            if actual != checksum:
                download.part.unlink()
                raise ValueError(
                    f"checksum mismatch for {url}: expected {checksum}, got {actual}; the download was deleted"
                )
        download.part.replace(target)
    return target


class _Download:
    """A download over any number of connections. It fails below the minimum speed set in vitreous.common.network."""

    def __init__(self, url: str, target: Path, max_bytes: int) -> None:
        self.url, self.max_bytes = url, max_bytes
        self.part, self.tag = (target.with_name(target.name + ending) for ending in (".part", ".part.tag"))
        self.pace = Pace(f"the download of {url}")
        self.restarts = 0

    def resume(self, advance: Callable[[int, int | None], None]) -> bool:
        """Download the remaining bytes. Return False if another attempt is needed."""
        have = self.part.stat().st_size if self.part.exists() else 0
        reader: BackgroundReader[Any] = BackgroundReader(lambda: self._receive(have))
        with contextlib.closing(reader):
            try:
                response = reader.next(WINDOW_SECONDS)
            except queue.Empty:
                raise self._failed(f"no response within {WINDOW_SECONDS:.0f} s") from None
            start = have if response is not None and response.status == 206 else 0
            if have and not start:
                self.restarts += 1
                if self.restarts > MAX_RESTARTS:
                    raise self._failed(f"the download had to be restarted {self.restarts} times")
            if response is None:  # the server has no more bytes: the .part file is complete, or the file changed
                self.part.unlink()
                return False
            return self._append(start, self._total(start, response.headers), reader, advance)

    def _append(
        self, start: int, total: int | None, reader: BackgroundReader[Any], advance: Callable[[int, int | None], None]
    ) -> bool:
        size, broken = start, False
        with open(self.part, "ab" if start else "wb") as file:
            try:
                advance(size, total)
                while (chunk := self.pace.next(reader)) is not None:
                    size += len(chunk)
                    if size > self.max_bytes:
                        raise BadResponse(f"{self.url} exceeds the limit of {self.max_bytes:,} bytes")
                    file.write(chunk)
                    advance(size, total)
            except (ConnectionError, TimeoutError, http.client.HTTPException):
                broken = True
        if size == start and (broken or total not in (None, size)):
            raise self._failed(f"the connection broke after {size:,} bytes; run again to resume", OSError)
        return not broken and total in (None, size)

    def _total(self, start: int, headers: Message) -> int | None:
        """Return the total size in bytes, or None if the server does not send it. Also save the ETag."""
        mark = headers.get("ETag") or headers.get("Last-Modified") or "W/"
        if not mark.startswith("W/"):  # a weak ETag does not guarantee identical bytes
            self.tag.write_text(mark)
        length = headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            return None
        total, free = start + int(length), shutil.disk_usage(self.part.parent).free
        if total > self.max_bytes:
            raise BadResponse(f"{self.url} exceeds the limit of {self.max_bytes:,} bytes: it has {total:,} bytes")
        if int(length) > free:
            raise OSError(f"{self.url} needs {int(length):,} bytes, but only {free:,} are free in {self.part.parent}")
        return total

    def _receive(self, have: int) -> Generator[http.client.HTTPResponse | bytes | None, None, None]:
        """Request the bytes from offset `have`. Yield the response (None if no bytes are left), then its chunks."""
        headers = {"User-Agent": "vitreous"}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.tag.exists():
                headers["If-Range"] = self.tag.read_text()  # if the file changed, the server sends all of it
        try:
            request = urllib.request.Request(self.url, headers=headers)
            response = urllib.request.build_opener(_SafeRedirects).open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 416 or not have:
                raise self._failed(f"HTTP {error.code} {error.reason}", OSError) from None
            yield None
            return
        except (OSError, http.client.HTTPException) as error:
            raise self._failed(getattr(error, "reason", None) or error, OSError) from None
        yield response
        with response:
            while chunk := response.read1(CHUNK):
                yield chunk

    def _failed(self, reason: object, kind: type[OSError] = BadResponse) -> OSError:
        return kind(f"could not download {self.url}: {reason}")


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http."""

    def redirect_request(self, request: Any, *arguments: Any) -> urllib.request.Request | None:
        *_, url = arguments
        if request.type == "https" and not url.startswith("https:"):
            raise OSError(f"refused a redirect from https to {url!r:.200}, which is not encrypted")
        return super().redirect_request(request, *arguments)


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a callback `advance(done, total)`, in bytes. Show a progress bar on a terminal, otherwise one line."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        print(printable(title), file=sys.stderr)
        yield lambda done, total: None
        return
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def file_lock(target: Path) -> Iterator[None]:
    """Hold an exclusive lock while `target` is created. Other processes wait for the lock."""
    try:
        import fcntl
    except ImportError:  # not available on Windows, where the work may be done twice
        yield
        return
    # Keep the lock file: if it were deleted, two processes could lock two different files with that name.
    with open(target.with_name(target.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
