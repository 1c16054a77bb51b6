"""API endpoints: predictions, features and explanations of an image, and descriptions of the served models."""

import asyncio
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
from vitreous.inference.engine import Images
from vitreous.inference.mask_images import background_of, hex_colours, palette
from vitreous.inference.predictions import (
    Embedding,
    MultiLabelPrediction,
    NumberPrediction,
    Prediction,
    Segmentation,
    label_records,
)
from vitreous.inference.predictor import NOT_CALIBRATED, MultiLabelPredictor, RegressPredictor, interpret
from vitreous.model.base_config import Task
from vitreous.serving.api import schemas
from vitreous.serving.api.schemas import (
    IMAGE_BODY,
    IMAGE_ERRORS,
    IMAGES_BODY,
    SERVER_ERRORS,
    Model,
    Target,
    error_responses,
    image_responses,
    json_response,
    named,
)
from vitreous.serving.batch_queue import Compute, Priority, Scheduler, result_for
from vitreous.serving.errors import ApiError, error_body, unreadable
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.service import InspectService, Session
from vitreous.serving.models import ServedModel
from vitreous.serving.requests import Upload, check_query, find_model, read_image, read_images
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
SAMPLE: dict[int | str, dict[str, Any]] = {
    200: {"description": "A WebP image.", "content": {"image/webp": schemas.BINARY}},
    **error_responses(*SERVER_ERRORS, 404),
}
Top = Annotated[int, Query(ge=1, le=MAX_TOP, description="Number of classes to return, most probable first.")]


def router(
    served: Sequence[ServedModel], settings: Settings, scheduler: Scheduler, service: InspectService
) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["images"], dependencies=[Depends(check_query)])
    computes = {entry.id: computations(entry) for entry in served}

    async def respond(
        request: Request, chosen: ServedModel, task: Task, record: Callable[[Any], dict[str, Any]]
    ) -> JSONResponse:
        """Respond with the `record` of the result for one image, or with a list for the images of a JSON body."""
        if task not in computes[chosen.id]:
            message = f"the model {chosen.id!r} does not support /v1/{task}; use /v1/{chosen.model.config.task}"
            raise ApiError(409, ENDPOINTS[task].missing, message)

        async def one(image: Upload) -> dict[str, Any]:
            result = await scheduler.batch((chosen.id, task), image.data, computes[chosen.id][task], image.large)
            return {**record(result), "model": chosen.id}

        async def entry(image: Upload | ApiError) -> dict[str, Any]:
            try:
                if isinstance(image, ApiError):
                    raise image
                return await one(image)
            except ApiError as error:
                if error.status_code in (429, 503):  # not the fault of this image
                    raise
                return dict(error_body(error.code, error.message))

        async def several(images: list[Upload | ApiError]) -> dict[str, Any]:
            results = await asyncio.gather(*map(entry, images), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
            return {"results": results, "model": chosen.id}

        images = await read_images(request, settings)
        result = one(images) if isinstance(images, Upload) else several(images)
        seconds = request.scope["deadline"] - time.monotonic()
        return JSONResponse(await result_for(request, result, seconds, settings.timeout))

    @routes.post("/classify", **described("classifyImage", "Classify an image", schemas.Classified))
    async def classify(request: Request, top: Top = 5, coverage: Coverage = None, model: Model = None) -> JSONResponse:
        """Return the most probable classes of an image.

        If the model is calibrated, `familiarity` is the fraction of validation images that are at most as familiar as
        this image, and `unknown` is true if it is below 0.05. With `coverage`, `label_set` contains the true class with
        that probability. The set is empty if no class is probable enough.
        """
        chosen = find_model(served, model)
        if coverage is not None and chosen.model.config.calibration is None:
            raise ApiError(409, "not_calibrated", f"coverage is not supported for {chosen.id!r}: {NOT_CALIBRATED}")

        def record(scores: Tensor) -> dict[str, Any]:
            [answer] = interpret(chosen.predictor, scores[None], top, coverage)
            prediction = Prediction("", *answer)
            return {
                "predictions": label_records(prediction.predictions), "unknown": prediction.unknown,
                "familiarity": prediction.familiarity,
                "label_set": None if prediction.label_set is None else label_records(prediction.label_set),
            }  # fmt: skip

        return await respond(request, chosen, "classify", record)

    @routes.post("/multilabel", **described("labelImage", "Find all labels of an image", schemas.Labelled))
    async def multilabel(request: Request, top: Top = 5, model: Model = None) -> JSONResponse:
        """Return all classes of an image whose probability reaches their threshold, and the most probable classes.

        An image can have any number of classes, or none. The thresholds are part of the model.
        """
        chosen = find_model(served, model)

        def record(scores: Tensor) -> dict[str, Any]:
            return MultiLabelPrediction(
                "", *cast(MultiLabelPredictor, chosen.predictor).interpret(scores, top)
            ).record()

        return await respond(request, chosen, "multilabel", record)

    @routes.post("/regress", **described("predictNumbers", "Predict numbers for an image", schemas.Regressed))
    async def regress(request: Request, model: Model = None) -> JSONResponse:
        """Return the predicted number of each target, in the units of the training data."""
        chosen = find_model(served, model)

        def record(scores: Tensor) -> dict[str, Any]:
            return NumberPrediction("", cast(RegressPredictor, chosen.predictor).interpret(scores)).record()

        return await respond(request, chosen, "regress", record)

    @routes.post("/embed", **described("embedImage", "Compute the features of an image", schemas.Embedded))
    async def embed(request: Request, model: Model = None) -> JSONResponse:
        """Return the pooled features of an image (the input of the head), for search, clustering or training."""
        chosen = find_model(served, model)
        record = lambda vector: {"embedding": vector.tolist(), "width": len(vector)}  # noqa: E731
        return await respond(request, chosen, "embed", record)

    @routes.post("/segment", **described("segmentImage", "Segment an image", schemas.Segmented))
    async def segment(request: Request, model: Model = None) -> JSONResponse:
        """Return the class of every pixel as a PNG. The palette indices are the class indices."""
        return await respond(request, find_model(served, model), "segment", dict)

    @routes.post(
        "/explain",
        operation_id="explainImage",
        summary="Explain a prediction",
        responses=json_response(schemas.Explained, *IMAGE_ERRORS),
        openapi_extra=IMAGE_BODY,
    )
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
    listed = json_response(schemas.Models, *SERVER_ERRORS)

    @routes.get("/models", operation_id="listModels", summary="List the served models", responses=listed)
    async def models() -> JSONResponse:
        """Return the served models, and the id of the model that is used by default."""
        return JSONResponse(description)

    @routes.get("/samples/{name}", **named("getSample", "Sample of a model"), responses=SAMPLE, response_class=Response)
    async def sample(name: schemas.Name, model: Model = None) -> Response:
        """Return an image that fits the model, from the folder samples/ of its checkpoint."""
        chosen = find_model(served, model)
        for each in chosen.samples:
            if each.name == name:
                return Response(each.data, media_type="image/webp")
        raise ApiError(404, "not_found", f"{chosen.id} has no sample {name!r}")

    routes.add_api_route("/model", models, include_in_schema=False)  # an earlier path
    return routes


def described(id: str, summary: str, schema: Any) -> dict[str, Any]:
    """Return the OpenAPI description of an endpoint that takes one or more images."""
    responses = image_responses(schema, *IMAGE_ERRORS)
    return {"operation_id": id, "summary": summary, "responses": responses, "openapi_extra": IMAGES_BODY}


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
