"""`POST /v1/explain`: a picture in, and out a number for every patch that says how much of the answer rests on it."""

import asyncio
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from vitreous.explanation import CLASS_MAPS, MapName
from vitreous.serving.api.parameters import Model, Target, target_of
from vitreous.serving.api.schemas import PICTURE_BODY, WRONG, Explained, answers
from vitreous.serving.errors import ApiError, busy
from vitreous.serving.image_limits import read_picture
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.images import image_summary
from vitreous.serving.inspect.responses import as_json
from vitreous.serving.inspect.service import Desk
from vitreous.serving.inspect.worker import Pace
from vitreous.serving.settings import Settings

TIMES = 10  # as long as other requests an explanation may take
PACES = {
    "attention": Pace.QUICK,
    "rollout": Pace.MEDIUM,
    "relevance": Pace.MEDIUM,
    "occlusion": Pace.LONG,
}


def router(settings: Settings, desk: Desk) -> APIRouter:
    """It shares the desk with the page: what was made for one need not be made for the other."""
    routes = APIRouter(prefix="/v1", tags=["pictures"])

    @routes.post("/explain", responses=answers(Explained, *WRONG), openapi_extra=PICTURE_BODY)
    async def explain(
        request: Request, method: MapName = "relevance", target: Target = None, model: Model = None
    ) -> JSONResponse:
        """How much each patch matters: for a class (relevance, occlusion), or to the model at all (rollout, attention).

        Attention and rollout show where information was mixed, not why the model decided; occlusion asks the model.
        """
        one = desk.model(model)
        about = method in CLASS_MAPS
        _ = one.vit  # a model without attention is refused before the picture is read
        wanted = target_of(one, target) if about else None
        picture = await read_picture(request, settings)
        try:
            async with asyncio.timeout(TIMES * settings.timeout):
                told = _json(await desk.receive(request, one, picture, image_summary))
                if about and wanted is None:
                    wanted = told["predictions"][0]["index"]
                work = lambda session: as_json(numbers.importance(session, method, wanted))  # noqa: E731
                id, name = hashlib.sha256(picture.data).hexdigest()[:32], ("explain", method, wanted)
                found = _json(await desk.ask(request, one, id, name, work, PACES[method]))
        except TimeoutError:
            raise ApiError(503, "timeout", f"there was no answer after {TIMES * settings.timeout:g} s") from None
        except ApiError as error:
            raise busy() if error.code == "unknown_image" else error from None  # others pushed it out meanwhile
        return JSONResponse(
            {
                "method": method,
                "target": found["target"],
                "grid": found["grid"],
                "seen": told["seen"],
                "picture": told["picture"],
                "values": _rows(found["values"], found["grid"][1]),
                "predictions": told["predictions"],
                "model": one.id,
            }
        )

    return routes


def _json(response: Any) -> dict[str, Any]:
    return dict(json.loads(response.body))


def _rows(values: Sequence[float], length: int) -> list[Sequence[float]]:
    return [values[start : start + length] for start in range(0, len(values), length)]
