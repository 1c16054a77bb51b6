"""A local hub whose responses can be replaced by hostile ones, and a second host as a target for redirects."""

import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import constants

REPOSITORY, COMMIT = "eve/model", "a" * 40
TOKEN = "hf_" + "s" * 34


@dataclass
class HostileHub:
    """A hub with one repository that contains `files`.

    `responses` replaces the response to a kind of request: "listing", "tree", "head" or "file". Each value is a
    function from the file name to the parts of a raw HTTP response, which are sent one after the other.
    """

    url: str = ""
    other_host: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    responses: dict[str, Callable[[str], Iterable[bytes]]] = field(default_factory=dict)
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)  # host, method and path, Authorization
    sent: int = 0  # bytes sent in response bodies and headers

    def listing(self, **changes: object) -> bytes:
        """Return the listing that the real Hub would send, updated with `changes`."""
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
            for name, content in self.files.items()
        ]
        return json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings} | changes).encode()

    def respond(self, kind: str, name: str) -> Iterable[bytes]:
        if kind in self.responses:
            return self.responses[kind](name)
        if kind == "listing":
            return [response(self.listing(), {"Content-Type": "application/json"})]
        if kind == "tree":
            entries = [
                {"type": "file", "path": name, "size": len(content), "oid": git_hash(content)}
                for name, content in self.files.items()
            ]
            return [response(json.dumps(entries).encode(), {"Content-Type": "application/json"})]
        content = self.files[name]
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return [response(content, headers, body=kind == "file")]


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()


def response(content: bytes, headers: dict[str, str], body: bool = True, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", "Connection: close"]
    if "RateLimit" not in headers:
        lines.append('RateLimit: "api";r=499;t=271')  # the real Hub sends it with every response
    lines += [f"{name}: {value}" for name, value in ({"Content-Length": str(len(content))} | headers).items() if value]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + (content if body else b"")


def start(hub: HostileHub) -> Callable[[], None]:
    """Start serving a hub and return a function that stops it."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            host = "other_host" if self.server is servers[1] else "hub"
            path = self.path.split("?")[0]
            hub.requests.append((host, f"{self.command} {path}", self.headers.get("Authorization")))
            kind = "head" if self.command == "HEAD" else "file"
            if path.startswith("/api/"):
                kind = "tree" if "/tree/" in path else "listing"
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            try:
                for piece in hub.respond(kind, path.rsplit("/", 1)[-1]):
                    self.connection.sendall(piece)
                    hub.sent += len(piece)
            except OSError:
                pass  # the client closed the connection

        do_HEAD = do_GET

    servers = [ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    hub.url, hub.other_host = (
        f"http://{host}:{server.server_port}" for host, server in zip(HOSTS, servers, strict=True)
    )

    def stop() -> None:
        for server in servers:
            server.shutdown()
            server.server_close()

    return stop


HOSTS = ("127.0.0.1", "localhost")


def use(monkeypatch: pytest.MonkeyPatch, hub: HostileHub, cache: Path) -> None:
    """Apply the settings that HF_ENDPOINT and HF_HUB_CACHE would set in a new process."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
