"""What can be told of a model without a picture: its positions and its filters."""

import math

from fastapi import APIRouter, Request, Response

from vitreous.explanation.filters import as_pictures, filter_components
from vitreous.explanation.position import position_similarity
from vitreous.serving.api.parameters import Model, check_size
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.binary import signed_bytes
from vitreous.serving.inspect.responses import BYTES, Answer
from vitreous.serving.inspect.schemas import PLAIN, bytes_told
from vitreous.serving.inspect.service import InspectService

FILTERS = 28  # as many as the paper shows


def add_routes(api: APIRouter, service: InspectService) -> None:
    @api.get("/v1/position", responses=bytes_told("uint8 [n, n]"), **PLAIN)
    async def position(request: Request, model: Model = None) -> Response:
        """uint8 [n, n]: how alike two places are to the model, value / 127.5 - 1; a bias as a part of the largest."""
        one = service.model(model)
        n = math.prod(one.vit.config.grid)
        check_size(n**2, "the likeness of places", n)

        def work() -> Answer:
            found = position_similarity(one.vit)
            if found.values is None:
                raise ApiError(404, "no_positions", found.words)
            flat = found.values.reshape(n, n)
            if not found.bounded:
                flat = flat / flat.abs().max().clamp_min(1e-30)
            return Answer(signed_bytes(flat).tobytes(), BYTES, (n, n))

        return await service.respond_without_image(request, one, "position", work)

    @api.get("/v1/filters", responses=bytes_told("uint8 [count, height, width, 3]"), **PLAIN)
    async def filters(request: Request, model: Model = None) -> Response:
        """uint8 [count, height, width, 3]: the leading components of what patches are looked at with, in colour."""
        one = service.model(model)

        def work() -> Answer:
            pictures = as_pictures(filter_components(one.vit, FILTERS).patterns)
            rgb = (pictures.expand(-1, 3, -1, -1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().numpy()
            return Answer(rgb.tobytes(), BYTES, rgb.shape)

        return await service.respond_without_image(request, one, "filters", work)
