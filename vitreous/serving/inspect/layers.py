"""What happens in the layers: who attends to whom, which tokens are alike, how far heads look, what is known when."""

from fastapi import APIRouter, Request, Response

from vitreous.serving.api.parameters import Id, Layer, Model, check_attention, check_size, layer_of
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.binary import attention_bytes, similarity_bytes
from vitreous.serving.inspect.schemas import JSON, PLAIN, Lens, Reach, bytes_told, told
from vitreous.serving.inspect.service import InspectService
from vitreous.serving.scheduler import Priority

ATTENTION = (
    "float32 [heads, t, 2], the largest weight that a row gives to a prefix token, and to a patch; "
    "then uint8 [heads, t, t], shares of the one or the other in 255ths"
)


def add_routes(api: APIRouter, service: InspectService) -> None:
    @api.get("/v1/images/{id}/attention/{layer}", responses=bytes_told(ATTENTION), **PLAIN)
    async def attention(request: Request, id: Id, layer: Layer, model: Model = None) -> Response:
        """Of every token, in every head of a layer, to every token."""
        one = service.model(model)
        at = layer_of(one, layer)
        check_attention(one)
        return await service.respond(
            request, one, id, ("attention", at), lambda session: attention_bytes(session.walk.layer(at)), Priority.QUICK
        )

    @api.get("/v1/images/{id}/similarity/{layer}", responses=bytes_told("uint8 [t, t]"), **PLAIN)
    async def similarity(request: Request, id: Id, layer: Layer, model: Model = None) -> Response:
        """uint8 [t, t]: the cosine of every two tokens after a layer is value / 127.5 - 1."""
        one = service.model(model)
        at, tokens = layer_of(one, layer), one.vit.config.num_tokens
        check_size(tokens**2, "the likeness of tokens", tokens)
        return await service.respond(
            request,
            one,
            id,
            ("similarity", at),
            lambda session: similarity_bytes(session.walk.features(at)),
            Priority.QUICK,
        )

    @api.get("/v1/images/{id}/lens", responses=told(Lens), **JSON)
    async def lens(request: Request, id: Id, model: Model = None) -> Response:
        """What the head would say after each layer."""
        return await service.respond_json(request, service.model(model), id, "lens", numbers.lens, Priority.QUICK)

    @api.get("/v1/images/{id}/distance", responses=told(Reach), **JSON)
    async def distance(request: Request, id: Id, model: Model = None) -> Response:
        """How far every head of every layer looks, in pixels of what the model is given."""
        return await service.respond_json(
            request, service.model(model), id, "distance", numbers.distance, Priority.MEDIUM
        )
