"""Downloads listings and files from an untrusted Hugging Face Hub to huggingface_hub's cache.

huggingface_hub does not limit the size or duration of responses, and derives cache file names from response headers.
Inside `exchange()`, a custom HTTP transport limits and checks responses. Requests by other code are not affected.
"""

import contextlib
import hashlib
import os
import queue
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import httpx2
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import _http

import vitreous
from vitreous.common.network import MIN_BYTES_PER_SECOND, BackgroundReader, BadResponse, Pace

MAX_PATH = 1024  # characters in a file path
WORKERS = 8

_FETCHING = threading.Lock()


def metadata() -> contextlib.AbstractContextManager[None]:
    """Return a context manager that limits every response inside its block to 64 MiB and one minute."""
    return exchange(Exchange())


def fetch(repository: str, files: Collection[RepoSibling], revision: str | None, repo_type: str = "model") -> Path:
    """Download `files` of a repository to the cache, verify their checksums, and return the snapshot folder."""
    pace = Pace(f"{constants.ENDPOINT}: the download of {repository}")

    def fetch_file(file: RepoSibling) -> Path:
        name = file.rfilename
        cached = huggingface_hub.try_to_load_from_cache(repository, name, revision=revision, repo_type=repo_type)
        with exchange(Exchange(name, file.size, pace)):
            path = huggingface_hub.hf_hub_download(
                repository, name, repo_type=repo_type, revision=revision,
                library_name="vitreous", library_version=vitreous.__version__,
            )  # fmt: skip
        folder = Path(path).parents[name.count("/")]
        if path != cached:
            _check_sum(folder, file)
        return folder

    for name in (file.rfilename for file in files):  # no path may escape the snapshot folder
        good = isinstance(name, str) and len(name) <= MAX_PATH and name.isprintable() and not set(name) & set("\\:")
        if not good or {"", ".", ".."} & set(str(name).split("/")):
            raise BadResponse(f"{constants.ENDPOINT} lists {str(name)[:100]!r}, which is not a valid file name")
    # The Xet client would bypass these limits.
    with _FETCHING, _set(constants, "HF_HUB_DISABLE_XET", True), ThreadPoolExecutor(WORKERS) as pool:
        futures = [pool.submit(fetch_file, file) for file in files]
        try:
            folders = {future.result() for future in futures}
        finally:
            pool.shutdown(cancel_futures=True)
    if len(folders) != 1:
        raise BadResponse(f"{repository} changed during the download; try again")
    return folders.pop()


def _check_sum(folder: Path, file: RepoSibling) -> None:
    """Verify the SHA-256 of an LFS file or the git hash of any other file. Remove the file on a mismatch."""
    path = folder / file.rfilename
    with path.open("rb") as stream:
        if file.lfs is not None:
            expected: str | None = file.lfs.sha256
            actual = hashlib.file_digest(stream, "sha256").hexdigest()
        else:
            content = stream.read()
            expected = file.blob_id
            actual = hashlib.sha1(b"blob %d\0%b" % (len(content), content), usedforsecurity=False).hexdigest()
    if expected is not None and actual != expected:
        _remove(folder, path)
        raise BadResponse(f"checksum mismatch for {file.rfilename}: expected {expected}, got {actual}")


def _remove(folder: Path, path: Path) -> None:
    """Remove a file from a snapshot. If the file is a link to a blob in the cache, also remove the blob."""
    blob = Path(os.path.normpath(path.parent / path.readlink())) if path.is_symlink() else None
    path.unlink()
    if blob is not None and blob.parent == folder.parents[1] / "blobs":  # next to snapshots/COMMIT/
        blob.unlink(missing_ok=True)


@contextlib.contextmanager
def _set(owner: object, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def check_commit(commit: object) -> str:
    """Return the commit hash, or raise BadResponse if it is invalid and thus unsafe as a folder name."""
    if not isinstance(commit, str) or not re.fullmatch("[0-9a-f]{40}", commit):
        raise BadResponse(f"{constants.ENDPOINT} sent the commit {str(commit)[:100]!r}; expected 40 hex digits")
    return commit


# ---- Limited transport -----------------------------------------------------------------------------------------------


MAX_METADATA_BYTES = 1 << 26  # 64 MiB, a listing of about 250,000 files
METADATA_SECONDS = 60.0  # for a complete response
MAX_WAIT_SECONDS = 60  # the longest accepted Retry-After
OFFICIAL = "https://huggingface.co"


@dataclass
class Exchange:
    """Context of the HTTP requests made by one Hub call, either for a repository or for one of its files."""

    file: str | None = None
    size: int | None = None  # file size in bytes, as listed by the Hub
    pace: Pace | None = None


_EXCHANGE: ContextVar[Exchange | None] = ContextVar("exchange", default=None)
_INSTALLING = threading.Lock()


@contextlib.contextmanager
def exchange(requests: Exchange) -> Iterator[None]:
    """Limit and check all responses that this thread receives inside the block."""
    with _INSTALLING:
        factory = _http._GLOBAL_CLIENT_FACTORY
        if not isinstance(factory, _BoundedFactory):
            huggingface_hub.set_client_factory(_BoundedFactory(factory))
    token = _EXCHANGE.set(requests)
    try:
        yield
    finally:
        _EXCHANGE.reset(token)


@dataclass(frozen=True)
class _BoundedFactory:
    factory: Callable[[], httpx2.Client]

    def __call__(self) -> httpx2.Client:
        client = self.factory()
        client._transport = BoundedTransport(client._transport)
        client._mounts = {key: mount and BoundedTransport(mount) for key, mount in client._mounts.items()}
        return client


class BoundedTransport(httpx2.BaseTransport):
    """HTTP transport that limits and checks responses inside `exchange()`."""

    def __init__(self, transport: httpx2.BaseTransport) -> None:
        self.transport = transport

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _EXCHANGE.get()
        if exchange is None:
            return self.transport.handle_request(request)
        if exchange.pace is not None:
            exchange.pace.add(0)  # time spent on broken connections counts too
        request.headers["Accept-Encoding"] = "identity"  # compressed responses could be decompression bombs
        if not may_see_token(request.url):
            request.headers.pop("Authorization", None)

        def receive() -> Generator[httpx2.Response | bytes, None, None]:
            response = self.transport.handle_request(request)
            stream = response.stream
            assert isinstance(stream, httpx2.SyncByteStream)
            try:
                yield response
                yield from stream
            finally:
                stream.close()

        reader = BackgroundReader(receive)
        end = _deadline(request)
        try:
            response = reader.next(None if end is None else end - time.monotonic())
            assert isinstance(response, httpx2.Response)
            _check_headers(exchange, request, response)
            limit = _check_size(exchange, request, response)
        except queue.Empty:
            reader.close()
            raise BadResponse(f"{_named(request)} did not start within {METADATA_SECONDS:.0f} s") from None
        except BaseException:
            reader.close()
            raise
        pace = exchange.pace if _is_file(exchange, request, response) else None
        response.stream = _BoundedStream(reader, limit, end, pace, _named(request))
        return response

    def close(self) -> None:
        self.transport.close()


@dataclass
class _BoundedStream(httpx2.SyncByteStream):
    """Response body with a size and time limit."""

    reader: BackgroundReader[httpx2.Response | bytes]
    limit: int
    end: float | None
    pace: Pace | None
    name: str

    def __iter__(self) -> Iterator[bytes]:
        total = 0
        while (chunk := self._next()) is not None:
            total += len(chunk)
            if total > self.limit:
                raise BadResponse(f"{self.name} exceeds the limit of {self.limit:,} bytes")
            yield chunk

    def _next(self) -> bytes | None:
        reader: BackgroundReader[bytes] = self.reader  # type: ignore[assignment]  # only bytes follow the response
        if self.pace is not None:
            return self.pace.next(reader)
        try:
            return reader.next(None if self.end is None else self.end - time.monotonic())
        except queue.Empty:
            raise BadResponse(f"{self.name} was not complete within {METADATA_SECONDS:.0f} s") from None

    def close(self) -> None:
        self.reader.close()


def _named(request: httpx2.Request) -> str:
    """Name a response by the method and URL of its request. The query may contain a signature and is omitted."""
    return f"the response to {request.method} {request.url.copy_with(query=None)}"


def _deadline(request: httpx2.Request) -> float | None:
    """Return the deadline for sending the request and receiving the response, or None if the upload size is unknown."""
    if "Transfer-Encoding" in request.headers:
        return None  # an upload of unknown length
    to_send = int(request.headers.get("Content-Length") or 0)
    return time.monotonic() + METADATA_SECONDS + to_send / MIN_BYTES_PER_SECOND


def _is_file(exchange: Exchange, request: httpx2.Request, response: httpx2.Response) -> bool:
    return exchange.file is not None and request.method == "GET" and response.is_success


def may_see_token(url: httpx2.URL) -> bool:
    """Return True if the token may be sent to `url`, because `url` is on the configured Hub or on the official Hub.

    The official Hub is included because mirrors redirect to it.
    """
    hub = httpx2.URL(constants.ENDPOINT)
    upgraded = url.scheme == "https" and url.host == hub.host
    return upgraded or url.origin in (hub.origin, httpx2.URL(OFFICIAL).origin)


# ---- Response checks -------------------------------------------------------------------------------------------------


def _check_headers(exchange: Exchange, request: httpx2.Request, response: httpx2.Response) -> None:
    def bad(header: str, accepted: str) -> BadResponse:
        found = response.headers[header][:100]
        return BadResponse(f"{_named(request)} has the header {header}: {found!r}; expected {accepted}")

    for header, value in response.headers.items():
        if not value.isprintable():
            raise bad(header, "no control characters")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise bad("Content-Encoding", "no encoding, because none was requested")
    # huggingface_hub derives file and folder names from these headers.
    if not re.fullmatch("[0-9a-f]{40}", response.headers.get("X-Repo-Commit", "0" * 40)):
        raise bad("X-Repo-Commit", "40 hex digits")
    if exchange.file is not None and request.method == "HEAD":
        for header in ("X-Linked-Etag", "ETag"):
            file_name = response.headers.get(header, "-").lstrip("W/").strip('"')  # as huggingface_hub does
            if not re.fullmatch(r"[\w-][\w.-]{0,127}", file_name, re.ASCII):
                raise bad(header, "only letters, digits, '.', '-' and '_'")
    if response.has_redirect_location:
        check_redirect(exchange, request, response)
    if (wait := _requested_wait(response)) > MAX_WAIT_SECONDS:
        requested = f"has status {response.status_code} and requests a retry after {wait:,} s"
        raise BadResponse(f"{_named(request)} {requested}; the maximum is {MAX_WAIT_SECONDS} s")


def _requested_wait(response: httpx2.Response) -> int:
    """Return the number of seconds that huggingface_hub would wait before retrying."""
    if response.status_code not in (408, 429, 500, 502, 503, 504):
        return 0
    limit = _http.parse_ratelimit_headers(response.headers)
    if response.status_code == 429 and limit is not None and limit.remaining == 0:
        return limit.reset_in_seconds
    seconds = response.headers.get("Retry-After", "").strip()
    return int(seconds) if seconds.isdigit() else 0


def check_redirect(exchange: Exchange, request: httpx2.Request, response: httpx2.Response) -> None:
    """Reject redirects from HTTPS to HTTP. For repository requests, also reject redirects to other hosts."""
    location = response.headers["Location"]
    try:
        target = request.url.join(location)
    except httpx2.InvalidURL:
        target = httpx2.URL("")
    schemes = ("https",) if request.url.scheme == "https" else ("http", "https")
    good = target.scheme in schemes and target.host
    if not good or (exchange.file is None and not may_see_token(target)):
        raise BadResponse(
            f"{_named(request)} redirects to {location[:200]!r}, which is not allowed: a redirect must be a valid URL, "
            "keep HTTPS and, for repository requests, stay on the Hub"
        )


def _check_size(exchange: Exchange, request: httpx2.Request, response: httpx2.Response) -> int:
    """Return the maximum size of the body. Raise BadResponse if a declared size is too large or inconsistent."""
    length = response.headers.get("Content-Length")
    if exchange.file is not None and request.method == "HEAD" and not response.is_error:
        size = response.headers.get("X-Linked-Size") or (None if response.is_redirect else length)
        if size is not None and not (size.isascii() and size.isdecimal()):
            raise BadResponse(f"{_named(request)} has the size {size[:30]!r}; expected a number of bytes")
        if exchange.size is None and size is not None:
            check_space(exchange.file, int(size))
            exchange.size = int(size)
        if size is not None and int(size) != exchange.size:
            raise BadResponse(
                f"{_named(request)} has a size of {int(size):,} bytes, but the Hub lists {exchange.file} as "
                f"{exchange.size:,} bytes"
            )
    limit = MAX_METADATA_BYTES
    if _is_file(exchange, request, response):
        if exchange.size is None:
            raise BadResponse(f"{_named(request)} does not declare its size, which is required to limit the download")
        limit = exchange.size
    if request.method != "HEAD" and length is not None and int(length) > limit:
        raise BadResponse(f"{_named(request)} has a size of {int(length):,} bytes; the maximum is {limit:,}")
    return limit


def check_space(name: str, size: int) -> None:
    """Raise OSError if fewer than `size` bytes are free on the disk that contains the cache."""
    cache = Path(constants.HF_HUB_CACHE).absolute()
    free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.exists())).free
    if size > free:
        raise OSError(
            f"{name} requires {size / 1e6:,.1f} MB in {cache}, but only {free / 1e6:,.1f} MB is available; free up "
            "space or set HF_HOME to a folder on a larger disk"
        )
