"""The server: an ASGI app with all routes, the page and the middleware, and the uvicorn process that runs the app.

On shutdown, the server first completes all requests that it has accepted.
"""

import asyncio
import io
import logging
import os
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from PIL import Image

import vitreous
from vitreous.common.threads import cores
from vitreous.inference.engine import Precision
from vitreous.page import STATIC
from vitreous.serving import api, errors, inspect
from vitreous.serving.api.schemas import SECURITY, State, error_responses, json_response, named
from vitreous.serving.batch_queue import BATCH_WORKERS, Scheduler
from vitreous.serving.connection import Connection
from vitreous.serving.errors import ApiError
from vitreous.serving.metrics import Metrics, prometheus_text
from vitreous.serving.middleware import OPEN, Middleware, is_loopback
from vitreous.serving.models import ServedModel, add_gallery, check_capacity, load_models
from vitreous.serving.settings import Settings

KEEP_ALIVE = 60  # seconds before an idle connection is closed
NO_KEY = "no API key is set, so anyone who can reach this machine can use the server"
ANY_WEBSITE = "no API key is set and cors_origins has *, so any website in a browser on this machine can use the server"
EXPLAIN_FACTOR = 10  # timeout of explanations, as a multiple of the timeout of other requests


class App(FastAPI):
    """FastAPI app wrapped in the middleware, so that the middleware also applies to FastAPI's error responses."""

    def build_middleware_stack(self) -> Any:
        state = self.state
        return Middleware(super().build_middleware_stack(), state.settings, state.metrics, state.scheduler)

    def openapi(self) -> dict[str, Any]:
        """Return the schema of the API, with the two ways to send the API key if the server has one."""
        schema = super().openapi()
        schema["components"]["securitySchemes"] = SECURITY
        if self.state.settings.api_key is not None:
            for path, operations in schema["paths"].items():
                for operation in operations.values():
                    operation["security"] = [] if path in OPEN else [{name: []} for name in SECURITY]
        return schema


LONG_JOB = 1000  # assumed number of images of a server, so that very small models need no conversion


def create_app(served: Sequence[ServedModel], settings: Settings, threads: int | None = None) -> FastAPI:
    """Create the app for loaded models. The app is ready once each model has processed one image.

    `threads`: Number of CPU cores to use. Default: all.
    """
    for model in served:
        model.predictor.prepare(LONG_JOB)
    metrics = Metrics()
    torch_threads = max((threads or cores()) // BATCH_WORKERS, 1)
    scheduler = Scheduler(settings.max_batch, settings.max_wait_ms / 1e3, settings.queue, metrics, torch_threads)
    metrics.gauges["vitreous_waiting"] = ("Images waiting for a batch.", lambda: scheduler.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(warm_up(app))
        yield
        app.state.ready = False
        warming.cancel()
        await asyncio.wait([warming])
        await scheduler.stop()

    async def warm_up(app: FastAPI) -> None:
        blank = io.BytesIO()
        Image.new("RGB", (64, 64), (127, 127, 127)).save(blank, "PNG")
        for model in served:
            try:
                task = model.model.config.task
                await scheduler.batch((model.id, task), blank.getvalue(), api.computations(model)[task])
            except Exception as error:
                errors.logger.error("%s failed on a test image: %s", model.id, error)
                return
        app.state.ready = True

    app = App(
        title="Vitreous",
        description="A Vision Transformer you can see through: image predictions and explanations.",
        version=vitreous.__version__,
        docs_url=None,  # Swagger UI would be loaded from another host; page/static/docs shows the schema
        redoc_url=None,
        redirect_slashes=False,  # a redirect would go to whatever host the request names
        lifespan=lifespan,
    )
    app.state.ready, app.state.settings, app.state.metrics, app.state.scheduler = False, settings, metrics, scheduler
    errors.install(app)
    service = inspect.InspectService(served, scheduler, timeout=EXPLAIN_FACTOR * settings.timeout)
    app.include_router(api.router(served, settings, scheduler, service))
    app.include_router(inspect.router(service, settings))
    add_health(app, metrics)

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html")

    @app.api_route("/docs", methods=["GET", "HEAD"], include_in_schema=False)
    async def documentation() -> FileResponse:
        return FileResponse(STATIC / "docs" / "index.html")

    app.mount("/page", StaticFiles(directory=STATIC), name="page")
    return app


def add_health(app: FastAPI, metrics: Metrics) -> None:
    """Add the health and metrics endpoints."""

    @app.get("/healthz", **named("getHealth", "Liveness"), responses=json_response(State, 500), tags=["server"])
    async def healthz() -> JSONResponse:
        """Return ok while the server is running."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", **named("getReadiness", "Readiness"), responses=json_response(State, 500, 503), tags=["server"])
    async def readyz() -> JSONResponse:
        """Return ok if the models are loaded and the server is not shutting down."""
        if not app.state.ready:
            raise ApiError(503, "not_ready", "the server is starting or shutting down")
        return JSONResponse({"status": "ok"})

    @app.get(
        "/metrics",
        **named("getMetrics", "Prometheus metrics"),
        response_class=PlainTextResponse,
        responses=error_responses(401, 403, 500),
        tags=["server"],
    )
    async def prometheus() -> PlainTextResponse:
        """Return metrics in the Prometheus text format."""
        return PlainTextResponse(prometheus_text(metrics), media_type="text/plain; version=0.0.4; charset=utf-8")


# ---- Running the server ----------------------------------------------------------------------------------------------


class Server(uvicorn.Server):
    """uvicorn server that prints its address and exits with 0 after SIGINT or SIGTERM."""

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
            self._captured_signals.clear()  # otherwise uvicorn would raise the signals again


def run_server(
    checkpoints: Sequence[str | Path],
    settings: Settings,
    image_size: Sequence[int] = (),
    device: str = "auto",
    precision: Precision = "fp32",
    open_page: bool = False,
    gallery: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. See `vitreous.serve`."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # would warn about every invalid form
    with bind(settings.host, settings.port) as listener:
        served = load_models(checkpoints, image_size, device, precision, settings.max_batch)
        for model in served:
            check_capacity(model, settings.timeout)
        if gallery is not None:
            served = add_gallery(served, gallery)
        host, port = listener.getsockname()[:2]
        url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        warn_without_key(host, settings)
        app = create_app(served, settings)
        greeting = f"Serving {', '.join(model.id for model in served)} at {url} (press Ctrl+C to stop)"
        server = Server(uvicorn_config(app, settings), app, greeting, url if open_page else None)
        listener.listen()  # fails if another server took the port during loading, which uvicorn would not report
        server.run(sockets=[listener])
    if any(thread.daemon and thread.name.startswith("vitreous") for thread in threading.enumerate()):
        # A thread is still computing a cancelled result. torch cannot be interrupted, and a normal exit would destroy
        # the state of torch while the thread runs.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def warn_without_key(host: str, settings: Settings) -> None:
    """Print a warning if other machines or any website can use the server without an API key."""
    if settings.api_key is None and not is_loopback(host):
        print(f"vitreous: warning: {NO_KEY}", file=sys.stderr)
    if settings.api_key is None and "*" in settings.cors_origins:
        print(f"vitreous: warning: {ANY_WEBSITE}", file=sys.stderr)


def uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_level="error",  # invalid requests are counted in the metrics and must not fill the log
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(settings.timeout) + 5,
    )


def bind(host: str, port: int) -> socket.socket:
    """Bind a socket without listening yet, so that clients cannot connect before the server starts."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        with ExitStack() as stack:  # closes the socket if it cannot be bound
            listener = stack.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            stack.pop_all()
    except OSError as error:
        raise OSError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    return listener
