"""The server as one ASGI app: routes, page, middleware, and the steps when it starts and stops."""

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse
from fastapi.staticfiles import StaticFiles
from PIL import Image

import vitreous
from vitreous.common.threads import cores
from vitreous.serving import errors
from vitreous.serving.api import routes as api
from vitreous.serving.api.schemas import IMAGE_ERRORS, State, answers
from vitreous.serving.api.schemas import errors as error_answers
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect import routes as inspect
from vitreous.serving.inspect.service import InspectService
from vitreous.serving.models import ServedModel
from vitreous.serving.requests import Middleware
from vitreous.serving.scheduler import BATCH_WORKERS, Metrics, Scheduler
from vitreous.serving.settings import Settings

PAGE = Path(__file__).parent / "page"
EXPLAIN_FACTOR = 10  # an explanation may take this many times as long as other requests


class App(FastAPI):
    """A FastAPI app inside our middleware, which must also see the framework's error responses."""

    def build_middleware_stack(self) -> Any:
        state = self.state
        return Middleware(super().build_middleware_stack(), state.settings, state.metrics, state.scheduler)


def create_app(served: Sequence[ServedModel], settings: Settings) -> FastAPI:
    """Create the app for models that are in memory. It is ready when each model has computed one image."""
    metrics = Metrics()
    torch_threads = max(cores() // BATCH_WORKERS, 1)
    scheduler = Scheduler(settings.max_batch, settings.max_wait_ms / 1e3, settings.queue, metrics, torch_threads)
    metrics.gauges["vitreous_waiting"] = ("Images that wait for a batch.", lambda: scheduler.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(warm_up(app))
        yield
        app.state.ready = False
        warming.cancel()
        await asyncio.wait([warming])
        await scheduler.stop()

    async def warm_up(app: FastAPI) -> None:
        for one in served:
            try:
                task = one.model.config.task
                await scheduler.batch((one.id, task), blank_image(), one.computes[task])
            except Exception as error:
                errors.logger.error("%s does not answer: %s", one.id, error)
                return
        app.state.ready = True

    app = App(
        title="Vitreous",
        description="A Vision Transformer you can see through: predictions and explanations of images.",
        version=vitreous.__version__,
        docs_url=None,  # Swagger's page would be loaded from another server
        redoc_url=None,
        redirect_slashes=False,  # it would redirect to any host that the request names
        lifespan=lifespan,
    )
    app.state.ready, app.state.settings, app.state.metrics, app.state.scheduler = False, settings, metrics, scheduler
    errors.install(app)
    service = InspectService(served, scheduler, timeout=EXPLAIN_FACTOR * settings.timeout)
    app.include_router(api.router(served, settings, scheduler, service))
    app.include_router(inspect.router(service, settings), responses=error_answers(*IMAGE_ERRORS))
    add_health(app, metrics)
    add_page(app)
    return app


def add_health(app: FastAPI, metrics: Metrics) -> None:
    """Add the routes for operators."""

    @app.get("/healthz", responses=answers(State), tags=["server"])
    async def healthz() -> JSONResponse:
        """The server runs."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", responses=answers(State, 503), tags=["server"])
    async def readyz() -> JSONResponse:
        """The server accepts requests: its models are loaded, and it is not shutting down."""
        if not app.state.ready:
            raise ApiError(503, "not_ready", "the server is starting or shutting down")
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", response_class=PlainTextResponse, responses=error_answers(401, 403), tags=["server"])
    async def prometheus() -> PlainTextResponse:
        """Metrics for Prometheus."""
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_page(app: FastAPI) -> None:
    """Serve the page and the files of its folder."""

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    app.mount("/page", StaticFiles(directory=PAGE), name="page")


def blank_image() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (127, 127, 127)).save(file, "PNG")
    return file.getvalue()
