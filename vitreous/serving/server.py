"""Runs the app on a socket: load, listen, and stop after every accepted request has been answered."""

import logging
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from vitreous.serving.app import create_app
from vitreous.serving.connection import Connection
from vitreous.serving.models import Precision, check_capacity, load_models
from vitreous.serving.requests import is_loopback
from vitreous.serving.settings import Settings

KEEP_ALIVE = 60  # seconds that an idle connection stays open


class Server(uvicorn.Server):
    """Prints its address when it listens, and exits with 0 after SIGINT or SIGTERM."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, greeting: str, url: str | None):
        super().__init__(config)
        self.app, self.greeting, self.url = app, greeting, url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self.greeting, flush=True)
        if self.url is not None:
            webbrowser.open(self.url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.app.state.ready = False
        super().handle_exit(sig, frame)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()  # uvicorn would raise them again


def run_server(
    checkpoints: Sequence[str | Path],
    settings: Settings,
    image_size: Sequence[int] = (),
    device: str = "auto",
    precision: Precision = "fp32",
    open_page: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM. See `vitreous.serve`."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about every invalid form
    listener = listen(settings.host, settings.port)
    try:
        served = load_models(checkpoints, image_size, device, precision, settings.max_batch)
        for one in served:
            check_capacity(one, settings.max_batch, settings.timeout)
    except BaseException:
        listener.close()
        raise
    host, port = listener.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    if not is_loopback(host) and settings.api_key is None:
        print("vitreous: no API key: everyone who can reach this machine can use the server", file=sys.stderr)
    app = create_app(served, settings)
    names = " and ".join(one.id for one in served)
    greeting = f"Serving {names} at {url} (Ctrl+C stops it)"
    server = Server(uvicorn_config(app, settings), app, greeting, url if open_page else None)
    server.run(sockets=[listener])
    if any(thread.daemon and thread.name.startswith("vitreous") for thread in threading.enumerate()):
        # A thread still computes a result that nobody waits for. torch cannot be interrupted, and a normal exit would
        # tear it down while it runs.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_level="error",  # invalid requests are counted in the metrics, and must not fill a log
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(settings.timeout) + 5,
    )


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket to the address; clients cannot connect before the server starts."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise OSError(f"cannot listen at {host}, port {port}: {error.strerror or error}") from error
    return listener
