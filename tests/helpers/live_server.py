"""Servers in a process or a thread, and a client that can also send invalid requests."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """Check that an error response has the documented format, and return its code."""
        assert self.headers["content-type"] == "application/json", self
        assert set(self.json) == {"error"}, self
        assert set(self.json["error"]) == {"code", "message"}, self
        assert self.json["error"]["message"], self
        return str(self.json["error"]["code"])


@dataclass(frozen=True)
class Live:
    """A running server, and a client for it."""

    port: int
    process: "subprocess.Popen[str] | None" = None

    @property
    def memory(self) -> float:
        """Peak resident memory in MB."""
        assert self.process is not None
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1e3

    def request(
        self, method: str, path: str, body: bytes = b"", kind: str | None = "image/png", **headers: str
    ) -> Reply:
        """Send one request on a new connection. Underscores in header names become hyphens."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        lines += [f"Content-Type: {kind}"] * (kind is not None and method == "POST")
        lines += [f"Content-Length: {len(body)}"] * (method == "POST")
        return self.send(
            "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {HOST}", *lines]).encode() + b"\r\n\r\n" + body
        )

    def send(self, *parts: bytes, pause: float = 0.0) -> Reply:
        """Send raw bytes with pauses. The server may reply before it has read everything."""
        with socket.create_connection((HOST, self.port), timeout=30) as connection:
            for part in parts:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(part)
                time.sleep(pause)
            return read_reply(connection)

    def wait_until_ready(self) -> None:
        for _ in range(600):
            with contextlib.suppress(OSError):
                if self.request("GET", "/readyz").status == 200:
                    return
            time.sleep(0.1)
        raise TimeoutError("the server was not ready after a minute")


def read_reply(connection: socket.socket) -> Reply:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            raise ConnectionError(f"the server closed the connection after {data!r}")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    return Reply(int(first.split()[1]), headers, body)


@contextlib.contextmanager
def process(checkpoints: Sequence[Path], *flags: str, **environment: str) -> Iterator[Live]:
    """Run `vitreous serve`; it must exit with 0 and write nothing to stderr."""
    command = [sys.executable, "-m", "vitreous", "serve", *map(str, checkpoints), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    ) as running:
        try:
            assert running.stdout is not None
            found = re.search(r":(\d+) ", running.stdout.readline())
            if found is None:
                assert running.stderr is not None
                raise RuntimeError(running.stderr.read())
            live = Live(int(found[1]), running)
            live.wait_until_ready()
            yield live
        finally:
            if running.poll() is None:
                running.send_signal(signal.SIGTERM)
            try:
                _, errors = running.communicate(timeout=60)
            finally:
                running.kill()  # or leaving the block would wait for the server forever
        assert running.returncode == 0, errors
        assert errors == "", errors


@contextlib.contextmanager
def in_thread(served: Sequence[Any], settings: Any = None) -> Iterator[Live]:
    """Run a server in a thread; no threads may be left when it has stopped."""
    from vitreous.serving.app import Server, bind, create_app, uvicorn_config
    from vitreous.serving.settings import Settings

    settings, before = settings or Settings(), set(threading.enumerate())
    listener = bind(HOST, 0)
    app = create_app(served, settings)
    server = Server(uvicorn_config(app, settings), app, "", None)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        live = Live(listener.getsockname()[1])
        live.wait_until_ready()
        yield live
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        left = [one.name for one in threading.enumerate() if one not in before and one.name.startswith("vitreous")]
        assert not left
