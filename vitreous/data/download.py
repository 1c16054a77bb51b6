"""Files from the network, fetched once into the cache: resumable, checked, and never half there under their own name.

A file grows as `NAME.part`, is compared with its published checksum, and only then gets its name. So a file that
exists is whole, and is not fetched again.
"""

import contextlib
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without an answer


def cache_folder(*below: str) -> Path:
    """Where downloads and indices live: VITREOUS_CACHE, or ~/.cache/vitreous. It is made if it is not there."""
    folder = Path(os.environ.get("VITREOUS_CACHE") or Path.home() / ".cache" / "vitreous").expanduser().joinpath(*below)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(url: str, target: Path, checksum: str | None = None) -> Path:
    """The file at `url`, as `target`. A connection that breaks midway is taken up where it broke.

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
            while not _continue(url, part, tag, advance):
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


def _continue(url: str, part: Path, tag: Path, advance: Callable[[int, int | None], None]) -> bool:
    """Add to the part what is missing; False if the connection broke after it brought something."""
    have = part.stat().st_size if part.exists() else 0
    answer = _ask(url, have, tag)
    if answer is None:  # nothing comes after what we have: a process died just before the end, or the file changed
        part.unlink()
        return False
    with answer:
        start = have if answer.status == 206 else 0
        mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "W/"
        if not mark.startswith("W/"):  # a weak tag does not promise the same bytes
            tag.write_text(mark)
        length = answer.headers.get("Content-Length")
        total = start + int(length) if length else None
        size, broken = start, False
        with open(part, "ab" if start else "wb") as file:
            try:
                advance(size, total)
                while chunk := answer.read1(CHUNK):
                    file.write(chunk)
                    size += len(chunk)
                    advance(size, total)
            except (ConnectionError, TimeoutError, http.client.HTTPException):
                broken = True
    if not broken and total in (None, size):
        return True
    if size == start:
        raise OSError(f"could not download {url}: the connection broke after {size:,} bytes; try again to continue")
    return False


def _ask(url: str, have: int, tag: Path) -> http.client.HTTPResponse | None:
    """The server's answer to the wish for what comes after `have` bytes; None if it has no more."""
    headers = {"User-Agent": "vitreous"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag.exists():
            headers["If-Range"] = tag.read_text()  # a file that changed meanwhile is sent whole again
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
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
    console = Console(stderr=True)
    if not console.is_terminal:
        print(title, file=sys.stderr)
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
