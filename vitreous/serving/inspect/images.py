"""Routes of an uploaded image: its summary, its way through the model step by step, and its mask."""

from typing import Any

from fastapi import APIRouter, Request, Response

from vitreous.common.checks import Size
from vitreous.serving.api.parameters import Id, Model
from vitreous.serving.api.schemas import PICTURE_BODY, WRONG
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.responses import BYTES, Answer
from vitreous.serving.inspect.schemas import JSON, PLAIN, Shown, Tour, binary_answer, json_answer
from vitreous.serving.inspect.service import InspectService, as_response
from vitreous.serving.inspect.session import Session, covered_box
from vitreous.serving.inspect.tour import tour
from vitreous.serving.scheduler import Priority
from vitreous.serving.settings import Settings
from vitreous.serving.uploads import read_image


def add_routes(api: APIRouter, service: InspectService, settings: Settings) -> None:
    @api.post("/v1/images", responses=json_answer(Shown, *WRONG), openapi_extra=PICTURE_BODY, **JSON)
    async def images(request: Request, model: Model = None) -> Response:
        """Upload an image. It stays in memory for a while, under an id that is the hash of its bytes."""
        one = service.model(model)
        upload = await read_image(request, settings)
        return as_response(await service.answer_upload(request, one, upload, "picture", image_summary))

    @api.get("/v1/images/{id}/tour", responses=json_answer(Tour), **JSON)
    async def steps(request: Request, id: Id, model: Model = None) -> Response:
        """The image taken through equations 1 to 4, in eight steps."""
        one = service.model(model)
        return await service.respond_json(
            request, one, id, "tour", lambda session: tour(session.captured), Priority.QUICK
        )

    @api.get("/v1/images/{id}/mask", responses=binary_answer("uint8 [h, w]"), **PLAIN)
    async def mask(request: Request, id: Id, model: Model = None) -> Response:
        """uint8 [h, w]: the class of every pixel of the model's input, for a segmentation model."""
        return await service.respond(request, service.model(model), id, "mask", _mask, Priority.QUICK)


def image_summary(session: Session, id: str, image: Size) -> dict[str, Any]:
    """The answer to an upload."""
    box = covered_box(session.inspected, image)
    return {
        "id": id,
        "model": session.inspected.id,
        "picture": {"width": image[1], "height": image[0]},
        "seen": {key: round(value, 3) for key, value in box._asdict().items()},
        "grid": list(session.inspected.grid),
        "predictions": numbers.predictions(session),
        "segments": numbers.segments(session),
    }


def _mask(session: Session) -> Answer:
    ids = numbers.mask(session)
    return Answer(ids.tobytes(), BYTES, ids.shape)
