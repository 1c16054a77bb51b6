"""Routes of the layers: attention, similarity of tokens, predictions after each layer, and attention distance."""

from fastapi import APIRouter, Request, Response

from vitreous.serving.api.parameters import Id, Layer, Model, check_attention, check_size, layer_of
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.binary import attention_bytes, similarity_bytes
from vitreous.serving.inspect.schemas import JSON, PLAIN, Lens, Reach, binary_answer, json_answer
from vitreous.serving.inspect.service import InspectService
from vitreous.serving.scheduler import Priority

ATTENTION = (
    "float32 [heads, t, 2], the largest weight of a row for a prefix token, and for a patch; "
    "then uint8 [heads, t, t], fractions of the one or the other in 255ths"
)


def add_routes(api: APIRouter, service: InspectService) -> None:
    @api.get("/v1/images/{id}/attention/{layer}", responses=binary_answer(ATTENTION), **PLAIN)
    async def attention(request: Request, id: Id, layer: Layer, model: Model = None) -> Response:
        """Attention of every token to every token, in every head of a layer."""
        one = service.model(model)
        at = layer_of(one, layer)
        check_attention(one)
        return await service.respond(
            request,
            one,
            id,
            ("attention", at),
            lambda session: attention_bytes(session.captured.layer(at)),
            Priority.QUICK,
        )

    @api.get("/v1/images/{id}/similarity/{layer}", responses=binary_answer("uint8 [t, t]"), **PLAIN)
    async def similarity(request: Request, id: Id, layer: Layer, model: Model = None) -> Response:
        """uint8 [t, t]: the cosine similarity of two tokens after a layer is value / 127.5 - 1."""
        one = service.model(model)
        at, tokens = layer_of(one, layer), one.vit.config.num_tokens
        check_size(tokens**2, "the similarity of tokens", tokens)
        return await service.respond(
            request, one, id, ("similarity", at),
            lambda session: similarity_bytes(session.captured.features(at)), Priority.QUICK,
        )  # fmt: skip

    @api.get("/v1/images/{id}/lens", responses=json_answer(Lens), **JSON)
    async def lens(request: Request, id: Id, model: Model = None) -> Response:
        """Predictions of the head after each layer."""
        return await service.respond_json(request, service.model(model), id, "lens", numbers.lens, Priority.QUICK)

    @api.get("/v1/images/{id}/distance", responses=json_answer(Reach), **JSON)
    async def distance(request: Request, id: Id, model: Model = None) -> Response:
        """Attention distance of every head of every layer, in pixels of the model's input."""
        return await service.respond_json(
            request, service.model(model), id, "distance", numbers.distance, Priority.MEDIUM
        )
