"""The server as one object: routes, page, limits, and what happens when it starts and stops."""

import asyncio
import io
from collections.abc import AsyncIterator, Callable, Sequence
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
from vitreous.serving.api import explain as explanations
from vitreous.serving.api import routes as api
from vitreous.serving.api.schemas import WRONG, State, answers
from vitreous.serving.api.schemas import errors as may_go_wrong
from vitreous.serving.batching import WORKERS, Batcher
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect import routes as inspect
from vitreous.serving.inspect.service import Desk
from vitreous.serving.metrics import Metrics
from vitreous.serving.middleware import Asgi, Guard
from vitreous.serving.models import Served
from vitreous.serving.settings import Settings

PAGE = Path(__file__).parent / "page"


class App(FastAPI):
    """With a guard around everything else."""

    def __init__(self, guard: Callable[[Asgi], Asgi], **options: Any):
        super().__init__(**options)
        self.guard = guard

    def build_middleware_stack(self) -> Any:
        return self.guard(super().build_middleware_stack())


def create_app(served: Sequence[Served], settings: Settings) -> FastAPI:
    """Everything that answers, for models that are in memory. It is ready when each has answered once."""
    metrics = Metrics()
    threads = max(cores() // WORKERS, 1)
    batcher = Batcher(settings.max_batch, settings.max_wait_ms / 1e3, settings.queue, metrics, threads)
    metrics.gauges["vitreous_waiting"] = ("Pictures that wait for a batch.", lambda: batcher.waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        batcher.start()
        warming = asyncio.create_task(warm_up(app))
        yield
        app.state.ready = False
        warming.cancel()
        await asyncio.wait([warming])
        await batcher.stop()

    async def warm_up(app: FastAPI) -> None:
        for one in served:
            try:
                await batcher.ask((one.id, one.task), blank_picture(), api.compute_for(one, one.task))
            except Exception as error:
                errors.logger.error("%s does not answer: %s", one.id, error)
                return
        app.state.ready = True

    app = App(
        lambda inside: Guard(inside, settings, metrics, lambda: batcher.full),
        title="Vitreous",
        description="A Vision Transformer you can see through: pictures in, answers and reasons out.",
        version=vitreous.__version__,
        docs_url=None,  # Swagger's page would come from somebody else's server
        redoc_url=None,
        redirect_slashes=False,  # it would send people to whatever host their request names
        lifespan=lifespan,
    )
    app.state.ready = False
    errors.install(app)
    app.include_router(api.router(served, settings, batcher))
    desk = Desk(served, room=settings.queue, patience=explanations.TIMES * settings.timeout)
    app.include_router(explanations.router(settings, desk))
    app.include_router(inspect.router(served, settings, desk), responses=may_go_wrong(*WRONG))
    add_states(app, metrics)
    add_page(app)
    return app


def add_states(app: FastAPI, metrics: Metrics) -> None:
    """What those ask who keep servers."""

    @app.get("/healthz", responses=answers(State), tags=["server"])
    async def healthz() -> JSONResponse:
        """The server runs."""
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", responses=answers(State, 503), tags=["server"])
    async def readyz() -> JSONResponse:
        """It also answers questions: its models are loaded, and it is not being shut down."""
        if not app.state.ready:
            raise ApiError(503, "not_ready", "the server is starting or shutting down")
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", response_class=PlainTextResponse, responses=may_go_wrong(401, 403), tags=["server"])
    async def figures() -> PlainTextResponse:
        """Figures for Prometheus."""
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def add_page(app: FastAPI) -> None:
    """The page for people, and nothing but the files of its folder."""

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    app.mount("/page", StaticFiles(directory=PAGE), name="page")


def blank_picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), (127, 127, 127)).save(file, "PNG")
    return file.getvalue()
