"""Routes for programs: classify, embed, segment and explain an image, and describe the served models."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from vitreous.common.checks import Size
from vitreous.explanation import CLASS_MAPS, MapName
from vitreous.inference.engine import top_labels
from vitreous.model.base_config import Task
from vitreous.serving.api import schemas
from vitreous.serving.api.schemas import IMAGE_BODY, IMAGE_ERRORS, Model, Target, answers
from vitreous.serving.batch_queue import Priority, Scheduler, result_for
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.service import InspectService, Session
from vitreous.serving.models import MAX_TOP, ServedModel, find_model
from vitreous.serving.requests import read_image
from vitreous.serving.settings import Settings

NOT_SUPPORTED: dict[Task, str] = {"classify": "no_head", "embed": "no_embedding", "segment": "no_masks"}
PRIORITIES = {
    "attention": Priority.QUICK,
    "rollout": Priority.MEDIUM,
    "relevance": Priority.MEDIUM,
    "occlusion": Priority.LONG,
}
Top = Annotated[int, Query(ge=1, le=MAX_TOP, description="Number of classes, the most probable first.")]


def router(
    served: Sequence[ServedModel], settings: Settings, scheduler: Scheduler, service: InspectService
) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["pictures"])

    async def compute(request: Request, one: ServedModel, task: Task) -> Any:
        if task not in one.computes:
            message = f"the model {one.id!r} does not {task}: use /v1/{one.model.config.task}"
            raise ApiError(409, NOT_SUPPORTED[task], message)
        image = await read_image(request, settings)
        result = scheduler.batch((one.id, task), image.data, one.computes[task], image.large)
        return await result_for(request, result, request.scope["deadline"] - time.monotonic(), settings.timeout)

    @routes.post("/classify", responses=answers(schemas.Classified, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def classify(request: Request, top: Top = 5, model: Model = None) -> JSONResponse:
        """The most probable classes of an image."""
        one = find_model(served, model)
        [best] = top_labels((await compute(request, one, "classify"))[None], one.labels, top)
        return JSONResponse({"predictions": [vars(label) for label in best], "model": one.id})

    @routes.post("/embed", responses=answers(schemas.Embedded, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def embed(request: Request, model: Model = None) -> JSONResponse:
        """The features of an image before the head, as one vector, to search, cluster or learn from."""
        one = find_model(served, model)
        vector = await compute(request, one, "embed")
        return JSONResponse({"embedding": vector.tolist(), "width": len(vector), "model": one.id})

    @routes.post("/segment", responses=answers(schemas.Segmented, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def segment(request: Request, model: Model = None) -> JSONResponse:
        """The class of every pixel, as a PNG whose palette indices are the classes."""
        one = find_model(served, model)
        return JSONResponse({**await compute(request, one, "segment"), "model": one.id})

    @routes.post("/explain", responses=answers(schemas.Explained, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def explain(
        request: Request, method: MapName = "relevance", target: Target = None, model: Model = None
    ) -> Response:
        """Importance of each patch: for a class (relevance, occlusion), or for the model at all (rollout, attention).

        Attention and rollout show where information was mixed, not why the model decided; occlusion tests the model.
        """
        one = service.model(model)
        about_class = method in CLASS_MAPS
        _ = one.vit  # reject a model without attention before the image is read
        index = one.target(target) if about_class else None

        def explained(session: Session, id: str, size: Size) -> dict[str, Any]:
            summary = numbers.image_summary(session, id, size)
            top = summary["predictions"][0]["index"] if about_class and index is None else index
            found = numbers.importance(session, method, top)
            values, columns = found["values"], found["grid"][1]
            return {
                "method": method,
                "target": found["target"],
                "grid": found["grid"],
                "seen": summary["seen"],
                "picture": summary["picture"],
                "values": [values[start : start + columns] for start in range(0, len(values), columns)],
                "predictions": summary["predictions"],
                "model": one.id,
            }

        image = await read_image(request, settings)
        name = ("explain", method, index)
        answer = await service.answer_upload(request, one, image, name, explained, PRIORITIES[method])
        return Response(answer.body, media_type=answer.kind)

    description = {"model": served[0].id, "models": [one.describe() for one in served]}

    @routes.get("/model", responses=answers(schemas.Models, 401, 403))
    async def models() -> JSONResponse:
        """The served models."""
        return JSONResponse(description)

    return routes
