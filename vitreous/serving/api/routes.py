"""The API for programs: classify, embed, segment, and what is being served."""

import asyncio
import functools
import time
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from vitreous.inference.predictions import top_labels
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.serving.api.about import about
from vitreous.serving.api.parameters import Model
from vitreous.serving.api.schemas import PICTURE_BODY, WRONG, Classified, Embedded, Models, Segmented, answers
from vitreous.serving.api.segments import masks
from vitreous.serving.batching import Batcher, Compute
from vitreous.serving.disconnect import unless_gone
from vitreous.serving.errors import ApiError, unreadable
from vitreous.serving.image_limits import read_picture
from vitreous.serving.models import Served, Task, pick
from vitreous.serving.settings import Settings

MOST = 1000  # classes of an answer
Top = Annotated[int, Query(ge=1, le=MOST, description="So many classes, the likeliest first.")]


def router(served: Sequence[Served], settings: Settings, batcher: Batcher) -> APIRouter:
    """Routes for pictures that share batches."""
    routes = APIRouter(prefix="/v1", tags=["pictures"])

    async def ask(request: Request, one: Served, task: Task) -> Any:
        picture = await read_picture(request, settings)
        try:
            async with asyncio.timeout(max(request.scope["deadline"] - time.monotonic(), 0)):
                answer = batcher.ask((one.id, task), picture.data, compute_for(one, task), picture.large)
                return await unless_gone(request, answer)
        except TimeoutError:
            raise ApiError(503, "timeout", f"there was no answer after {settings.timeout:g} s") from None

    @routes.post("/classify", responses=answers(Classified, *WRONG), openapi_extra=PICTURE_BODY)
    async def classify(request: Request, top: Top = 5, model: Model = None) -> JSONResponse:
        """What a picture shows: its likeliest classes."""
        one = pick(served, model)
        if one.task != "classify":
            raise ApiError(409, "no_head", f"the model {one.id!r} does not classify pictures: ask it at /v1/{one.task}")
        [best] = top_labels((await ask(request, one, "classify"))[None], one.labels, top)
        return JSONResponse({"predictions": [vars(label) for label in best], "model": one.id})

    @routes.post("/embed", responses=answers(Embedded, *WRONG), openapi_extra=PICTURE_BODY)
    async def embed(request: Request, model: Model = None) -> JSONResponse:
        """A picture as a vector: the features before the head, to search, cluster or learn from."""
        one = pick(served, model)
        if one.task == "segment":
            raise ApiError(409, "no_embedding", f"the model {one.id!r} segments pictures: ask it at /v1/segment")
        vector = await ask(request, one, "embed")
        return JSONResponse({"embedding": vector.tolist(), "width": len(vector), "model": one.id})

    @routes.post("/segment", responses=answers(Segmented, *WRONG), openapi_extra=PICTURE_BODY)
    async def segment(request: Request, model: Model = None) -> JSONResponse:
        """A class for every pixel, as a PNG whose palette's indices are the classes."""
        one = pick(served, model)
        if one.task != "segment":
            raise ApiError(409, "no_masks", f"the model {one.id!r} does not segment pictures: ask it at /v1/{one.task}")
        return JSONResponse({**await ask(request, one, "segment"), "model": one.id})

    description = {"model": served[0].id, "models": [about(one) for one in served]}

    @routes.get("/model", responses=answers(Models, 401, 403))
    async def models() -> JSONResponse:
        """What is being served."""
        return JSONResponse(description)

    return routes


def compute_for(served: Served, task: Task) -> Compute:
    """Pictures in, and for each of them what its route makes the answer from, or an error."""
    predictor = served.predictor
    if isinstance(predictor, SegmentPredictor):
        return functools.partial(masks, predictor, served.labels)
    assert predictor is not None
    run = predictor.stream_logits if task == "classify" else predictor.stream_embeddings
    make = functools.partial(torch.softmax, dim=-1) if task == "classify" else torch.Tensor.numpy
    return lambda pictures: [
        unreadable(one.error) if one.vector is None else make(one.vector) for one in run(pictures)
    ]  # fmt: skip
