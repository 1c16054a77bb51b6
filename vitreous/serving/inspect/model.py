"""Routes of a model without an image: similarity of positions, and filters."""

import math

from fastapi import APIRouter, Request, Response

from vitreous.explanation.pca import filter_components, filter_images
from vitreous.explanation.similarity import position_similarity
from vitreous.serving.api.parameters import Model, check_size
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect.binary import signed_bytes
from vitreous.serving.inspect.responses import BYTES, Answer
from vitreous.serving.inspect.schemas import PLAIN, binary_answer
from vitreous.serving.inspect.service import InspectService


def add_routes(api: APIRouter, service: InspectService) -> None:
    @api.get("/v1/position", responses=binary_answer("uint8 [n, n]"), **PLAIN)
    async def position(request: Request, model: Model = None) -> Response:
        """uint8 [n, n]: the similarity of two positions is value / 127.5 - 1; a bias is scaled by its largest value."""
        one = service.model(model)
        n = math.prod(one.vit.config.grid)
        check_size(n**2, "the similarity of positions", n)

        def work() -> Answer:
            found = position_similarity(one.vit)
            if found.values is None:
                raise ApiError(404, "no_positions", found.text)
            flat = found.values.reshape(n, n)
            if not found.bounded:
                flat = flat / flat.abs().max().clamp_min(1e-30)
            return Answer(signed_bytes(flat).tobytes(), BYTES, (n, n))

        return await service.respond_without_image(request, one, "position", work)

    @api.get("/v1/filters", responses=binary_answer("uint8 [count, height, width, 3]"), **PLAIN)
    async def filters(request: Request, model: Model = None) -> Response:
        """uint8 [count, height, width, 3]: the first principal components of the patch filters, in colour."""
        one = service.model(model)

        def work() -> Answer:
            rgb = filter_images(filter_components(one.vit).patterns)
            return Answer(rgb.tobytes(), BYTES, rgb.shape)

        return await service.respond_without_image(request, one, "filters", work)
