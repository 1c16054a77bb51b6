"""Fixtures for data tests: a separate cache, and a web server with typical faults."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("VITREOUS_CACHE", str(folder))
    return folder


@dataclass
class Web:
    """Web server with files by path. The next `breaks` responses stop midway; `ranges=False` disables resuming."""

    url: str
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range header of every request
    breaks: int = 0
    ranges: bool = True
    tag: str = '"1"'
    length: bool = True
    seconds_per_byte: float = 0.0
    silences: int = 0  # number of responses that stall midway without closing the connection


@pytest.fixture
def web() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            path, requested_range = self.path.split("?")[0], self.headers.get("Range")
            site.requests.append((path, requested_range))
            if path not in site.files:
                self.send_error(404)
                return
            body, start = site.files[path], 0
            if requested_range and site.ranges and self.headers.get("If-Range", site.tag) == site.tag:
                start = int(requested_range.removeprefix("bytes=").rstrip("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            else:
                self.send_response(200)
            self.send_header("ETag", site.tag)
            rest = body[start:]
            if site.length:
                self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            if site.breaks and len(rest) > 1:
                site.breaks -= 1
                rest = rest[: len(rest) // 2]
            if site.silences:
                site.silences -= 1
                self.wfile.write(rest[: len(rest) // 2])
                time.sleep(1)
            elif site.seconds_per_byte:
                with contextlib.suppress(OSError):
                    for i in range(len(rest)):
                        self.wfile.write(rest[i : i + 1])
                        time.sleep(site.seconds_per_byte)
            else:
                self.wfile.write(rest)
            self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Web(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join()
