"""API endpoints: predictions, features and explanations of an image, and descriptions of the served models."""

import base64
import io
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, cast

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from PIL import Image
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation import CLASS_MAPS, MapName
from vitreous.inference.engine import (
    Embedding,
    Images,
    MultiLabelPrediction,
    NumberPrediction,
    Prediction,
    label_records,
)
from vitreous.inference.mask_images import background_of, hex_colours, palette
from vitreous.inference.predictor import (
    NOT_CALIBRATED,
    MultiLabelPredictor,
    RegressPredictor,
    Segmentation,
    interpret,
)
from vitreous.model.base_config import Task
from vitreous.serving.api import schemas
from vitreous.serving.api.schemas import IMAGE_BODY, IMAGE_ERRORS, SERVER_ERRORS, Model, Target, json_response
from vitreous.serving.batch_queue import Compute, Priority, Scheduler, result_for
from vitreous.serving.errors import ApiError, unreadable
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.service import InspectService, Session
from vitreous.serving.models import ServedModel
from vitreous.serving.requests import check_query, find_model, read_image
from vitreous.serving.settings import Settings

PRIORITIES = {
    "attention": Priority.QUICK,
    "rollout": Priority.MEDIUM,
    "relevance": Priority.MEDIUM,
    "occlusion": Priority.LONG,
}
MAX_TOP = 1000  # maximum number of classes per response
Coverage = Annotated[
    float | None,
    Query(ge=0.01, le=0.999, description="Also return a label set that contains the true class with this probability."),
]
Top = Annotated[int, Query(ge=1, le=MAX_TOP, description="Number of classes to return, most probable first.")]


def router(
    served: Sequence[ServedModel], settings: Settings, scheduler: Scheduler, service: InspectService
) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["images"], dependencies=[Depends(check_query)])
    computes = {entry.id: computations(entry) for entry in served}

    async def compute(request: Request, chosen: ServedModel, task: Task) -> Any:
        if task not in computes[chosen.id]:
            message = f"the model {chosen.id!r} does not support /v1/{task}; use /v1/{chosen.model.config.task}"
            raise ApiError(409, ENDPOINTS[task].missing, message)
        image = await read_image(request, settings)
        result = scheduler.batch((chosen.id, task), image.data, computes[chosen.id][task], image.large)
        return await result_for(request, result, request.scope["deadline"] - time.monotonic(), settings.timeout)

    @routes.post("/classify", responses=json_response(schemas.Classified, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def classify(request: Request, top: Top = 5, coverage: Coverage = None, model: Model = None) -> JSONResponse:
        """Return the most probable classes of an image.

        If the model is calibrated, `familiarity` is the fraction of validation images that are at most as familiar as
        this image, and `unknown` is true if it is below 0.05. With `coverage`, `label_set` contains the true class with
        that probability. The set is empty if no class is probable enough.
        """
        chosen = find_model(served, model)
        if coverage is not None and chosen.model.config.calibration is None:
            raise ApiError(409, "not_calibrated", f"coverage is not supported for {chosen.id!r}: {NOT_CALIBRATED}")
        scores = await compute(request, chosen, "classify")
        [answer] = interpret(chosen.predictor, scores[None], top, coverage)
        prediction = Prediction("", *answer)
        return JSONResponse({
            "predictions": label_records(prediction.predictions), "unknown": prediction.unknown,
            "familiarity": prediction.familiarity,
            "label_set": None if prediction.label_set is None else label_records(prediction.label_set),
            "model": chosen.id,
        })  # fmt: skip

    @routes.post("/multilabel", responses=json_response(schemas.Labelled, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def multilabel(request: Request, top: Top = 5, model: Model = None) -> JSONResponse:
        """Return all classes of an image whose probability reaches their threshold, and the most probable classes.

        An image can have any number of classes, or none. The thresholds are part of the model.
        """
        chosen = find_model(served, model)
        scores = await compute(request, chosen, "multilabel")
        answer = MultiLabelPrediction("", *cast(MultiLabelPredictor, chosen.predictor).interpret(scores, top))
        return JSONResponse({**answer.record(), "model": chosen.id})

    @routes.post("/regress", responses=json_response(schemas.Regressed, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def regress(request: Request, model: Model = None) -> JSONResponse:
        """Return the predicted number of each target, in the units of the training data."""
        chosen = find_model(served, model)
        scores = await compute(request, chosen, "regress")
        answer = NumberPrediction("", cast(RegressPredictor, chosen.predictor).interpret(scores))
        return JSONResponse({**answer.record(), "model": chosen.id})

    @routes.post("/embed", responses=json_response(schemas.Embedded, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def embed(request: Request, model: Model = None) -> JSONResponse:
        """Return the pooled features of an image (the input of the head), for search, clustering or training."""
        chosen = find_model(served, model)
        vector = await compute(request, chosen, "embed")
        return JSONResponse({"embedding": vector.tolist(), "width": len(vector), "model": chosen.id})

    @routes.post("/segment", responses=json_response(schemas.Segmented, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def segment(request: Request, model: Model = None) -> JSONResponse:
        """Return the class of every pixel as a PNG. The palette indices are the class indices."""
        chosen = find_model(served, model)
        return JSONResponse({**await compute(request, chosen, "segment"), "model": chosen.id})

    @routes.post("/explain", responses=json_response(schemas.Explained, *IMAGE_ERRORS), openapi_extra=IMAGE_BODY)
    async def explain(
        request: Request, method: MapName = "relevance", target: Target = None, model: Model = None
    ) -> Response:
        """Return the importance of each patch.

        Relevance and occlusion explain one class. Attention and rollout are the same for all classes, and do not show
        why a class is predicted. Occlusion measures the effect of masking patches.
        """
        chosen = service.model(model)
        _ = chosen.backbone  # reject models without attention before reading the image
        index = chosen.target(target) if method in CLASS_MAPS else None
        image = await read_image(request, settings)
        name, explained = ("explain", method, index), partial(_explanation, chosen.id, method, index)
        result = await service.respond_to_upload(request, chosen, image, name, explained, PRIORITIES[method])
        return Response(result.body, media_type=result.kind)

    description = {"model": served[0].id, "models": [entry.describe() for entry in served]}

    @routes.get("/model", responses=json_response(schemas.Models, *SERVER_ERRORS))
    async def models() -> JSONResponse:
        """Return the served models."""
        return JSONResponse(description)

    return routes


# ---- Computing a response --------------------------------------------------------------------------------------------


def computations(served: ServedModel) -> dict[Task, Compute]:
    """Return, for each supported task, a function that processes a batch of images."""

    def compute(task: Task, stream: Callable[[Images], Iterator[Any]], images: Sequence[bytes]) -> list[Any]:
        convert, results = ENDPOINTS[task].convert, stream(images)
        return [convert(served, result) if result.error is None else unreadable(result.error) for result in results]

    return {task: partial(compute, task, stream) for task, stream in served.predictor.answers().items()}


def _explanation(
    model: str, method: MapName, index: int | None, session: Session, id: str, size: Size
) -> dict[str, Any]:
    """Compute an importance map. Methods that explain one class default to the most probable class."""
    summary = numbers.image_summary(session, id, size)
    top = summary["predictions"][0]["index"] if method in CLASS_MAPS and index is None else index
    importance = numbers.importance(session, method, top)
    values, columns = importance["values"], importance["grid"][1]
    rows = [values[start : start + columns] for start in range(0, len(values), columns)]
    return {
        "method": method, "target": importance["target"], "grid": importance["grid"], "seen": summary["seen"],
        "picture": summary["picture"], "values": rows, "predictions": summary["predictions"], "model": model,
    }  # fmt: skip


def _vector(served: ServedModel, result: Embedding) -> Tensor | None:
    return result.vector


def _mask(served: ServedModel, result: Segmentation) -> dict[str, Any]:
    """Encode a mask as a PNG with class indices as palette indices, and list the classes, largest first."""
    assert result.mask is not None
    image, file, colours = Image.fromarray(result.mask), io.BytesIO(), hex_colours(result.labels)
    image.putpalette(palette(background_of(result.labels)).tobytes())
    image.save(file, "PNG")
    classes = [
        {"index": i, "label": served.labels[i], "color": colours[i], "share": fraction}
        for i, fraction in result.largest_classes()
    ]
    mask = base64.b64encode(file.getvalue()).decode()
    return {"classes": classes, "width": image.width, "height": image.height, "mask": mask}


class Endpoint(NamedTuple):
    """Error code for models that do not support a task, and the function that converts a result in a worker thread."""

    missing: str
    convert: Callable[[ServedModel, Any], Any]


ENDPOINTS: dict[Task, Endpoint] = {
    "classify": Endpoint("no_head", _vector),
    "multilabel": Endpoint("no_multilabel", _vector),
    "regress": Endpoint("no_numbers", _vector),
    "embed": Endpoint("no_embedding", _vector),
    "segment": Endpoint("no_masks", _mask),
}
