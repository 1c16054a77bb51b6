"""Routes of explanations: maps of the patches, tests of these maps, and predictions with masked patches."""

import hashlib
import math
from typing import Annotated, Literal

from fastapi import APIRouter, Body, Query, Request, Response

from vitreous.explanation import MapName
from vitreous.explanation.rollout import Fusion
from vitreous.serving.api.parameters import (
    AnyLayer,
    Erased,
    Id,
    Model,
    Target,
    check_attention,
    check_below,
    layer_of,
    target_of,
)
from vitreous.serving.api.schemas import WRONG
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.schemas import JSON, Changed, PatchColours, PatchValues, Tested, json_answer
from vitreous.serving.inspect.service import InspectService
from vitreous.serving.inspect.session import Session
from vitreous.serving.scheduler import Priority


def add_routes(api: APIRouter, service: InspectService) -> None:
    @api.get("/v1/images/{id}/map/{method}", responses=json_answer(PatchValues | PatchColours), **JSON)
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
        """A number for every patch. rollout uses `fusion` and `discard`; relevance and occlusion use `target`."""
        one = service.model(model)
        if method == "relevance" or method == "occlusion":
            wanted, priority = target_of(one, target), Priority.LONG
            if method == "relevance":
                check_attention(one)
                priority = Priority.MEDIUM
            return await service.respond_json(
                request, one, id, ("map", method, wanted),
                lambda session: numbers.importance(session, method, _class_of(session, wanted)), priority,
            )  # fmt: skip
        at = layer_of(one, layer)
        if method == "rollout":
            return await service.respond_json(
                request, one, id, ("map", method, fusion, discard, at),
                lambda session: numbers.rollout(session, fusion, discard, at), Priority.MEDIUM,
            )  # fmt: skip
        make, priority = (numbers.layer_attention, Priority.QUICK)
        if method == "pca":
            make, priority = (numbers.components, Priority.MEDIUM)
        return await service.respond_json(
            request, one, id, ("map", method, at), lambda session: make(session, at), priority
        )

    @api.get("/v1/images/{id}/faithfulness/{method}", responses=json_answer(Tested), **JSON)
    async def faithfulness(
        request: Request, id: Id, method: MapName, target: Target = None, model: Model = None
    ) -> Response:
        """Deletion and insertion: how soon masking, or showing, important patches changes the prediction."""
        one = service.model(model)
        wanted = target_of(one, target)
        if method == "relevance":
            check_attention(one)
        return await service.respond_json(
            request, one, id, ("faithfulness", method, wanted),
            lambda session: numbers.map_test(session, method, _class_of(session, wanted)), Priority.LONG,
        )  # fmt: skip

    @api.post("/v1/images/{id}/masked", responses=json_answer(Changed, *WRONG), **JSON)
    async def masked(request: Request, id: Id, body: Annotated[Erased, Body()], model: Model = None) -> Response:
        """Predictions with some patches masked."""
        one = service.model(model)
        config = one.classifier.config
        patches, classes = sorted(set(body.patches)), list(dict.fromkeys(body.classes))
        check_below("patches", patches, math.prod(config.grid))
        check_below("classes", classes, config.num_classes)
        name = hashlib.sha256(repr((patches, classes)).encode()).hexdigest()  # the lists may be long
        return await service.respond_json(
            request,
            one,
            id,
            ("masked", name),
            lambda session: numbers.masked(session, patches, classes),
            Priority.QUICK,
        )


def _class_of(session: Session, target: int | None) -> int:
    return numbers.top_class(session) if target is None else target
