"""Routes of an uploaded image: its summary, its way through the model step by step, and its mask."""

from fastapi import APIRouter, Request, Response

from vitreous.common.checks import Size
from vitreous.serving.api.parameters import Id, Model
from vitreous.serving.api.schemas import PICTURE_BODY, WRONG
from vitreous.serving.image_limits import read_picture
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.responses import BYTES, Answer, as_json
from vitreous.serving.inspect.schemas import JSON, PLAIN, Shown, Tour, binary_answer, json_answer
from vitreous.serving.inspect.service import Desk
from vitreous.serving.inspect.session import Session, covered_box
from vitreous.serving.inspect.tour import tour
from vitreous.serving.inspect.worker import Pace
from vitreous.serving.settings import Settings


def add_routes(api: APIRouter, desk: Desk, settings: Settings) -> None:
    @api.post("/v1/images", responses=json_answer(Shown, *WRONG), openapi_extra=PICTURE_BODY, **JSON)
    async def images(request: Request, model: Model = None) -> Response:
        """Upload an image. It stays in memory for a while, under an id that is the hash of its bytes."""
        one = desk.model(model)
        return await desk.receive(request, one, await read_picture(request, settings), image_summary)

    @api.get("/v1/images/{id}/tour", responses=json_answer(Tour), **JSON)
    async def steps(request: Request, id: Id, model: Model = None) -> Response:
        """The image taken through equations 1 to 4, in eight steps."""
        one = desk.model(model)
        return await desk.tell(request, one, id, "tour", lambda session: tour(session.captured), Pace.QUICK)

    @api.get("/v1/images/{id}/mask", responses=binary_answer("uint8 [h, w]"), **PLAIN)
    async def mask(request: Request, id: Id, model: Model = None) -> Response:
        """uint8 [h, w]: the class of every pixel of the model's input, for a segmentation model."""
        return await desk.ask(request, desk.model(model), id, "mask", _mask, Pace.QUICK)


def image_summary(session: Session, id: str, image: Size) -> Answer:
    """The answer to an upload."""
    box = covered_box(session.inspected, image)
    return as_json(
        {
            "id": id,
            "model": session.inspected.id,
            "picture": {"width": image[1], "height": image[0]},
            "seen": {key: round(value, 3) for key, value in box._asdict().items()},
            "grid": list(session.inspected.grid),
            "predictions": numbers.predictions(session),
            "segments": numbers.segments(session),
        }
    )


def _mask(session: Session) -> Answer:
    ids = numbers.mask(session)
    return Answer(ids.tobytes(), BYTES, ids.shape)
