"""Serves a folder like a static host, optionally with the headers that allow threads in WebAssembly."""

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ISOLATION = {"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp"}


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


class IsolatingHandler(Handler):
    def end_headers(self) -> None:
        for name, value in ISOLATION.items():
            self.send_header(name, value)
        super().end_headers()


@contextmanager
def static_site(folder: Path, isolated: bool = False) -> Iterator[str]:
    """Yield the URL of a server for the folder."""
    handler = functools.partial(IsolatingHandler if isolated else Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
