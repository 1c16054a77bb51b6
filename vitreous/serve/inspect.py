"""The page's numbers over HTTP: a picture is sent once, and then asked about.

Attention and likeness come as bytes (see inspect_binary.py), the rest as JSON. Layers count from 0, patches row by row.
"""

import asyncio
import hashlib
import math
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse

from vitreous.explain.filters import as_pictures, filter_components
from vitreous.explain.position import position_similarity
from vitreous.explain.rollout import Fusion
from vitreous.model.checks import Size
from vitreous.model.position import RelativeBiasPosition
from vitreous.serve import inspect_numbers as numbers
from vitreous.serve.errors import ApiError
from vitreous.serve.inspect_answers import BYTES, Answer, as_json
from vitreous.serve.inspect_asked import (
    AnyLayer,
    Erased,
    Id,
    Layer,
    Model,
    Target,
    check_attention,
    check_below,
    check_size,
    layer_of,
    target_of,
)
from vitreous.serve.inspect_binary import attention_bytes, signed_bytes, similarity_bytes
from vitreous.serve.inspect_desk import Desk
from vitreous.serve.inspect_shapes import (
    Changed,
    Lens,
    PatchColours,
    PatchValues,
    Reach,
    Shown,
    Tested,
    Tour,
    bytes_told,
    told,
)
from vitreous.serve.inspect_subject import Looked, Subject, seen
from vitreous.serve.inspect_tour import tour
from vitreous.serve.inspect_worker import Pace
from vitreous.serve.limits import read_picture
from vitreous.serve.models import Served
from vitreous.serve.schemas import PICTURE_BODY, WRONG
from vitreous.serve.settings import Settings

JSON: dict[str, Any] = {"response_class": JSONResponse}
PLAIN: dict[str, Any] = {"response_class": Response}
ATTENTION = "float32 [heads, t], the largest weight of each row; then uint8 [heads, t, t], shares of it in 255ths"

FILTERS = 28  # as many as the paper shows


def router(served: Sequence[Served], settings: Settings, desk: Desk | None = None) -> APIRouter:
    """Everything below /v1/images, and what can be told of a model without a picture."""
    desk = desk or Desk(served, room=settings.queue)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(desk.worker.close)

    api = APIRouter(lifespan=lifespan, tags=["page"])
    _about_pictures(api, desk, settings)
    _about_models(api, desk)
    return api


def _about_pictures(api: APIRouter, desk: Desk, settings: Settings) -> None:
    async def tell(
        request: Request, one: Looked, id: str, name: Hashable, make: Callable[[Subject], dict[str, Any]], pace: Pace
    ) -> Response:
        return await desk.ask(request, one, id, name, lambda subject: as_json(make(subject)), pace)

    @api.post("/v1/images", responses=told(Shown, *WRONG), openapi_extra=PICTURE_BODY, **JSON)
    async def images(request: Request, model: Model = None) -> Response:
        """Send a picture. It is held in memory for a while, under a name that is made from its bytes."""
        one = desk.model(model)
        return await desk.receive(request, one, await read_picture(request, settings), shown)

    @api.get("/v1/images/{id}/attention/{layer}", responses=bytes_told(ATTENTION), **PLAIN)
    async def attention(request: Request, id: Id, layer: Layer, model: Model = None) -> Response:
        """Of every token, in every head of a layer, to every token."""
        one = desk.model(model)
        at = layer_of(one, layer)
        check_attention(one)
        return await desk.ask(
            request, one, id, ("attention", at), lambda subject: attention_bytes(subject.walk.layer(at)), Pace.QUICK
        )

    @api.get("/v1/images/{id}/similarity/{layer}", responses=bytes_told("uint8 [t, t]"), **PLAIN)
    async def similarity(request: Request, id: Id, layer: Layer, model: Model = None) -> Response:
        """uint8 [t, t]: the cosine of every two tokens after a layer is value / 127.5 - 1."""
        one = desk.model(model)
        at, tokens = layer_of(one, layer), one.vit.config.tokens
        check_size(tokens**2, "the likeness of tokens", tokens)
        return await desk.ask(
            request,
            one,
            id,
            ("similarity", at),
            lambda subject: similarity_bytes(subject.walk.features(at)),
            Pace.QUICK,
        )

    @api.get("/v1/images/{id}/map/{method}", responses=told(PatchValues | PatchColours), **JSON)
    async def map(
        request: Request,
        id: Id,
        method: Literal["relevance", "occlusion", "rollout", "attention", "pca"],
        target: Target = None,
        fusion: Fusion = "mean",
        discard: Annotated[float, Query(ge=0, le=0.95)] = 0.0,
        layer: AnyLayer = None,
        model: Model = None,
    ) -> Response:
        """A number for every patch. `fusion` and `discard` are for rollout, `target` for relevance and occlusion."""
        one = desk.model(model)
        if method == "relevance" or method == "occlusion":
            wanted, pace = target_of(one, target), Pace.LONG
            if method == "relevance":
                check_attention(one)
                pace = Pace.MEDIUM
            return await tell(
                request, one, id, ("map", method, wanted),
                lambda subject: numbers.importance(subject, method, _likeliest(subject, wanted)), pace,
            )  # fmt: skip
        at = layer_of(one, layer)
        if method == "rollout":
            return await tell(
                request, one, id, ("map", method, fusion, discard, at),
                lambda subject: numbers.rollout(subject, fusion, discard, at), Pace.MEDIUM,
            )  # fmt: skip
        make, pace = (numbers.layer_attention, Pace.QUICK)
        if method == "pca":
            make, pace = (numbers.components, Pace.MEDIUM)
        return await tell(request, one, id, ("map", method, at), lambda subject: make(subject, at), pace)

    @api.get("/v1/images/{id}/faithfulness/{method}", responses=told(Tested), **JSON)
    async def faithfulness(
        request: Request, id: Id, method: numbers.Importance, target: Target = None, model: Model = None
    ) -> Response:
        """Deletion and insertion: how soon the answer goes, or comes, with what a map calls important."""
        one = desk.model(model)
        wanted = target_of(one, target)
        if method == "relevance":
            check_attention(one)
        return await tell(
            request, one, id, ("faithfulness", method, wanted),
            lambda subject: numbers.tested(subject, method, _likeliest(subject, wanted)), Pace.LONG,
        )  # fmt: skip

    @api.get("/v1/images/{id}/lens", responses=told(Lens), **JSON)
    async def lens(request: Request, id: Id, model: Model = None) -> Response:
        """What the head would say after each layer."""
        return await tell(request, desk.model(model), id, "lens", numbers.lens, Pace.QUICK)

    @api.get("/v1/images/{id}/distance", responses=told(Reach), **JSON)
    async def distance(request: Request, id: Id, model: Model = None) -> Response:
        """How far every head of every layer looks, in pixels of what the model is given."""
        return await tell(request, desk.model(model), id, "distance", numbers.distance, Pace.MEDIUM)

    @api.get("/v1/images/{id}/tour", responses=told(Tour), **JSON)
    async def steps(request: Request, id: Id, model: Model = None) -> Response:
        """The picture taken through equations 1 to 4, in eight steps."""
        return await tell(
            request, desk.model(model), id, "tour", lambda subject: tour(subject.walk, subject.image), Pace.QUICK
        )

    @api.get("/v1/images/{id}/mask", responses=bytes_told("uint8 [h, w]"), **PLAIN)
    async def mask(request: Request, id: Id, model: Model = None) -> Response:
        """uint8 [h, w]: the class of every pixel of what was seen, of a model that segments."""
        return await desk.ask(request, desk.model(model), id, "mask", _mask, Pace.QUICK)

    @api.post("/v1/images/{id}/masked", responses=told(Changed, *WRONG), **JSON)
    async def masked(request: Request, id: Id, body: Annotated[Erased, Body()], model: Model = None) -> Response:
        """The answer when some patches are painted over."""
        one = desk.model(model)
        config = one.classifier.config
        patches, classes = sorted(set(body.patches)), list(dict.fromkeys(body.classes))
        check_below("patches", patches, math.prod(config.grid))
        check_below("classes", classes, config.num_classes)
        name = hashlib.sha256(repr((patches, classes)).encode()).hexdigest()  # the lists may be long
        return await tell(
            request, one, id, ("masked", name), lambda subject: numbers.masked(subject, patches, classes), Pace.QUICK
        )


def _about_models(api: APIRouter, desk: Desk) -> None:
    @api.get("/v1/position", responses=bytes_told("uint8 [n, n]"), **PLAIN)
    async def position(request: Request, model: Model = None) -> Response:
        """uint8 [n, n]: how alike two places are to the model, value / 127.5 - 1."""
        one = desk.model(model)
        n = math.prod(one.vit.config.grid)
        check_size(n**2, "the likeness of places", n)

        def work() -> Answer:
            values = position_similarity(one.vit)
            if values.values is None:
                raise ApiError(404, "no_positions", values.words)
            flat = values.values.reshape(n, n)
            if isinstance(one.vit.position, RelativeBiasPosition):  # no cosine: told as a share of the largest
                flat = flat / flat.abs().max().clamp_min(1e-30)
            return Answer(signed_bytes(flat).tobytes(), BYTES, (n, n))

        return await desk.ask_model(request, one, "position", work)

    @api.get("/v1/filters", responses=bytes_told("uint8 [count, height, width, 3]"), **PLAIN)
    async def filters(request: Request, model: Model = None) -> Response:
        """uint8 [count, height, width, 3]: the leading components of what patches are looked at with, in colour."""
        one = desk.model(model)

        def work() -> Answer:
            pictures = as_pictures(filter_components(one.vit, FILTERS).patterns)
            rgb = (pictures.expand(-1, 3, -1, -1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
            return Answer(rgb.tobytes(), BYTES, rgb.shape)

        return await desk.ask_model(request, one, "filters", work)


def shown(subject: Subject, id: str, picture: Size) -> Answer:
    """What is told of a picture when it arrives."""
    box = seen(subject.looked, picture)
    return as_json(
        {
            "id": id,
            "model": subject.looked.id,
            "picture": {"width": picture[1], "height": picture[0]},
            "seen": {key: round(value, 3) for key, value in box._asdict().items()},
            "grid": list(subject.looked.grid),
            "predictions": numbers.predictions(subject),
            "segments": numbers.segments(subject),
        }
    )


def _mask(subject: Subject) -> Answer:
    ids = numbers.mask(subject)
    return Answer(ids.tobytes(), BYTES, ids.shape)


def _likeliest(subject: Subject, target: int | None) -> int:
    return int(numbers.probabilities(subject).argmax()) if target is None else target
