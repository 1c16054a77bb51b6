"""The page's numbers over HTTP: a picture is sent once, and then asked about.

Attention and likeness come as bytes (see inspect_binary.py), the rest as JSON. Layers count from 0, patches row by row.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI

from vitreous.serving.inspect import images as inspect_pictures
from vitreous.serving.inspect import layers as inspect_layers
from vitreous.serving.inspect import model as inspect_model
from vitreous.serving.inspect import reasons as inspect_reasons
from vitreous.serving.inspect.service import Desk
from vitreous.serving.models import Served
from vitreous.serving.settings import Settings


def router(served: Sequence[Served], settings: Settings, desk: Desk | None = None) -> APIRouter:
    """Everything below /v1/images, and what can be told of a model without a picture."""
    desk = desk or Desk(served, room=settings.queue)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(desk.worker.close)

    api = APIRouter(lifespan=lifespan, tags=["page"])
    inspect_pictures.add_routes(api, desk, settings)
    inspect_layers.add_routes(api, desk)
    inspect_reasons.add_routes(api, desk)
    inspect_model.add_routes(api, desk)
    return api
