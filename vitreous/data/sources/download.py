"""Files from the network, fetched once into the cache: resumable, checked, and never half there under their own name.

A file grows as `NAME.part`, is compared with its published checksum, and only then gets its name. So a file that
exists is whole, and is not fetched again.
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

from vitreous.common.network import WINDOW_SECONDS, BackgroundReader, BadAnswer, Pace
from vitreous.common.text import SafeConsole, printable

CHUNK = 1 << 20
TIMEOUT = 20.0  # seconds without a byte, after which the connection counts as broken
MAX_BYTES = 1 << 36  # 64 GiB
MAX_RESTARTS = 5  # of a download from its first byte


def cache_folder(*below: str) -> Path:
    """Where downloads and indices live: VITREOUS_CACHE, or ~/.cache/vitreous. It is made if it is not there."""
    folder = Path(os.environ.get("VITREOUS_CACHE") or Path.home() / ".cache" / "vitreous").expanduser().joinpath(*below)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(url: str, target: Path, checksum: str | None = None, max_bytes: int = MAX_BYTES) -> Path:
    """Download `url` to `target`, unless it is there. A broken connection is resumed where it broke.

    `checksum` is the published md5 (32 digits) or sha256 (64).
    """
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target):
        if target.exists():  # made by another process while this one waited
            return target
        part = target.with_name(target.name + ".part")
        tag = target.with_name(target.name + ".part.tag")
        with progress(f"downloading {url}") as advance:
            download = _Download(url, part, tag, max_bytes, advance)
            while not download.resume():
                pass
        tag.unlink(missing_ok=True)
        if checksum is not None and (actual := digest(part, checksum)) != checksum:
            part.unlink()
            raise ValueError(f"{url} has the checksum {actual}, but should have {checksum}; what came was removed")
        part.replace(target)
    return target


def digest(path: Path, like: str) -> str:
    """The md5 or sha256 of a file, whichever `like` is."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "md5" if len(like) == 32 else "sha256").hexdigest()


class _Download:
    """A download over as many connections as it takes, within the bounds of vitreous.common.network."""

    def __init__(
        self, url: str, part: Path, tag: Path, max_bytes: int, advance: Callable[[int, int | None], None]
    ) -> None:
        self.url, self.part, self.tag, self.max_bytes, self.advance = url, part, tag, max_bytes, advance
        self.pace = Pace(f"the download of {url}")
        self.restarts = 0

    def resume(self) -> bool:
        """Append the missing bytes to the part; return False if the connection broke after it brought something."""
        have = self.part.stat().st_size if self.part.exists() else 0
        reader = BackgroundReader(lambda: _receive(self.url, have, self.tag))
        try:
            return self._append(have, reader)
        finally:
            reader.close()

    def _append(self, have: int, reader: BackgroundReader[Any]) -> bool:
        try:
            answer = reader.next(WINDOW_SECONDS)
        except queue.Empty:
            raise BadAnswer(f"could not download {self.url}: no answer within {WINDOW_SECONDS:.0f} s") from None
        start = have if answer is not None and answer.status == 206 else 0
        if have and not start:
            self.restarts += 1
            if self.restarts > MAX_RESTARTS:
                raise BadAnswer(f"could not download {self.url}: it began anew {self.restarts} times")
        if answer is None:  # nothing comes after what we have: a process died just before the end, or the file changed
            self.part.unlink()
            return False
        total = self._total(start, answer.headers)
        size, broken = start, False
        with open(self.part, "ab" if start else "wb") as file:
            try:
                self.advance(size, total)
                while (chunk := self.pace.next(reader)) is not None:
                    size += len(chunk)
                    if size > self.max_bytes:
                        raise BadAnswer(f"{self.url} is longer than the {self.max_bytes:,} bytes that it may have")
                    file.write(chunk)
                    self.advance(size, total)
            except (ConnectionError, TimeoutError, http.client.HTTPException):
                broken = True
        if not broken and total in (None, size):
            return True
        if size == start:
            raise OSError(
                f"could not download {self.url}: the connection broke after {size:,} bytes; try again to continue"
            )
        return False

    def _total(self, start: int, headers: Message) -> int | None:
        """Return the size of the whole file, if the server declares it, and remember the file's ETag."""
        mark = headers.get("ETag") or headers.get("Last-Modified") or "W/"
        if not mark.startswith("W/"):  # a weak tag does not promise the same bytes
            self.tag.write_text(mark)
        length = headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            return None
        total, free = start + int(length), shutil.disk_usage(self.part.parent).free
        if total > self.max_bytes:
            raise BadAnswer(f"{self.url} has {total:,} bytes, but must have at most {self.max_bytes:,}")
        if int(length) > free:
            raise OSError(f"{self.url} has {total:,} bytes, but {self.part.parent} has only {free:,} left: make room")
        return total


def _receive(url: str, have: int, tag: Path) -> Generator[http.client.HTTPResponse | bytes | None, None, None]:
    """Yield the server's answer to a request for the bytes after `have`, or None if there are none; then its bytes."""
    answer = _ask(url, have, tag)
    yield answer
    if answer is not None:
        with answer:
            while chunk := answer.read1(CHUNK):
                yield chunk


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to http."""

    def redirect_request(self, request: Any, *arguments: Any) -> urllib.request.Request | None:
        *_, url = arguments
        if request.type == "https" and not url.startswith("https:"):
            raise OSError(f"it redirects to {url!r:.200}, which is not encrypted")
        return super().redirect_request(request, *arguments)


def _ask(url: str, have: int, tag: Path) -> http.client.HTTPResponse | None:
    """Request the bytes after `have`; return None if there are none."""
    headers = {"User-Agent": "vitreous"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag.exists():
            headers["If-Range"] = tag.read_text()  # a file that changed meanwhile is sent whole again
    try:
        opener = urllib.request.build_opener(_SafeRedirects)
        answer: http.client.HTTPResponse = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
        return answer
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            return None
        raise OSError(f"could not download {url}: the server answers {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise OSError(f"could not download {url}: {getattr(error, 'reason', None) or error}") from None


@contextlib.contextmanager
def progress(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on a terminal, one plain line otherwise; told how much is done and how much there is."""
    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        print(printable(title), file=sys.stderr)
        yield lambda done, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def only_one(target: Path) -> Iterator[None]:
    """Of several processes that make the same file, one makes it and the others wait and find it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: then at worst the work is done twice
        yield
        return
    # The lock file stays: to remove it would let two processes hold the lock of two files of that name.
    with open(target.with_name(target.name + ".lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
