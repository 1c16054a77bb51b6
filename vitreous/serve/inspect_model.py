"""What can be told of a model without a picture: its positions and its filters."""

import math

from fastapi import APIRouter, Request, Response

from vitreous.explain.filters import as_pictures, filter_components
from vitreous.explain.position import position_similarity
from vitreous.serve.asked import Model, check_size
from vitreous.serve.errors import ApiError
from vitreous.serve.inspect_answers import BYTES, Answer
from vitreous.serve.inspect_binary import signed_bytes
from vitreous.serve.inspect_desk import Desk
from vitreous.serve.inspect_shapes import PLAIN, bytes_told

FILTERS = 28  # as many as the paper shows


def add_routes(api: APIRouter, desk: Desk) -> None:
    @api.get("/v1/position", responses=bytes_told("uint8 [n, n]"), **PLAIN)
    async def position(request: Request, model: Model = None) -> Response:
        """uint8 [n, n]: how alike two places are to the model, value / 127.5 - 1; a bias as a part of the largest."""
        one = desk.model(model)
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
