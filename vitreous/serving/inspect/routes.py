"""Endpoints for the web page, which uploads an image once and then requests results about it.

Attention and similarity are sent as bytes (see page/results.py), and everything else as JSON. Layers are numbered from
0. Patches are numbered row by row.
"""

import hashlib
import math
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response

from vitreous.explanation import MapName
from vitreous.explanation.pca_and_similarity import filter_components, filter_images
from vitreous.explanation.rollout_relevance_occlusion import Fusion
from vitreous.page import results
from vitreous.page.walk import walk_bytes
from vitreous.serving.api import schemas
from vitreous.serving.api.schemas import MODEL_ERRORS, Id, Layer, Model, Target, binary_response, json_response, named
from vitreous.serving.batch_queue import Priority
from vitreous.serving.errors import ApiError
from vitreous.serving.inspect import numbers
from vitreous.serving.inspect.service import BYTES, InspectService, Payload, Session, as_response, check_size
from vitreous.serving.requests import check_query, read_image
from vitreous.serving.settings import Settings

ATTENTION = (
    "float32 [heads, t, 2]: the largest weight of each row for prefix tokens and for patches; "
    "then, if tokens attend only to their window, int32 [t, m]: the m tokens of the window of each token; "
    "then uint8 [heads, t, m]: each weight divided by that largest weight, times 255"
)
OFF_PARAMETER = (
    "Parts of the model to switch off: heads as layer.head, layers, and `zero` or `shuffled` for positions; "
    "for example `3.0,3.1,5,shuffled`."
)
ROWS = "float32 [rows, 2] and uint8 [rows, t]: as the attention of a layer, with one row for each head of each layer"


def router(service: InspectService, settings: Settings) -> APIRouter:
    """Create the endpoints below /v1/images, and the endpoints that need no image."""
    images = APIRouter(dependencies=[Depends(off_parameter)])
    add_image_routes(images, service, settings)
    add_layer_routes(images, service)
    add_pair_routes(images, service)
    add_gallery_routes(images, service)
    add_map_routes(images, service)
    api = APIRouter(tags=["page"], dependencies=[Depends(check_query)])
    api.include_router(images)
    add_model_routes(api, service)
    return api


def off_parameter(
    off: Annotated[str | None, Query(max_length=4000, pattern="^[0-9a-z.,]*$", description=OFF_PARAMETER)] = None,
) -> None:
    """Declare the query parameter of all endpoints about an image. `InspectService.off` reads it."""


# ---- An uploaded image: summary, mask ----


def add_image_routes(api: APIRouter, service: InspectService, settings: Settings) -> None:
    @api.post(
        "/v1/images",
        **named("uploadImage", "Upload an image for the page"),
        responses=json_response(schemas.Shown, *schemas.IMAGE_ERRORS),
        openapi_extra=schemas.IMAGE_BODY,
    )
    async def images(request: Request, model: Model = None) -> Response:
        """Upload an image, which is cached in memory. Its id is a hash of its bytes."""
        inspected = service.model(model)
        off, upload = service.off(request, inspected), await read_image(request, settings)
        result = await service.respond_to_upload(request, inspected, upload, "picture", numbers.image_summary, off=off)
        return as_response(result)

    @api.get(
        "/v1/images/{id}/mask",
        **named("getMask", "Class of every pixel"),
        responses=binary_response("uint8 [h, w]"),
        response_class=Response,
    )
    async def mask(request: Request, id: Id, model: Model = None) -> Response:
        """Return uint8 [h, w]: the class of every pixel, after resizing the image to cover the segmenter's input."""

        def make(session: Session) -> Payload:
            ids = numbers.mask(session)
            return Payload(ids.tobytes(), BYTES, ids.shape)

        return await service.respond(request, model, id, "mask", make)


# ---- Layers: attention, token similarity, the walk of a patch, predictions after each layer, attention distance ----


def add_layer_routes(api: APIRouter, service: InspectService) -> None:
    @api.get(
        "/v1/images/{id}/attention/{layer}",
        **named("getAttention", "Attention of a layer"),
        responses=binary_response(ATTENTION),
        response_class=Response,
    )
    async def attention(request: Request, id: Id, layer: Layer, model: Model = None) -> Response:
        """Return the attention between all tokens, for every head of a layer."""
        inspected = service.model(model)
        at = inspected.layer(layer)
        inspected.check_attention()
        shape = inspected.backbone.config.attention_shapes[at][:3]
        make = lambda session: Payload(results.attention_bytes(session.captured, at), BYTES, shape)  # noqa: E731
        return await service.respond(request, model, id, ("attention", at), make)

    @api.get(
        "/v1/images/{id}/rows/{query}",
        **named("getAttentionRows", "Attention of one token in all layers"),
        responses=binary_response(ROWS),
        response_class=Response,
    )
    async def rows(request: Request, id: Id, query: schemas.Token, model: Model = None) -> Response:
        """Return the attention of one token, or the mean over all patches, in all layers and heads.

        This is far smaller than the attention between all tokens if there are many tokens.
        """
        config, index = service.model(model).backbone.config, None if query == "mean" else int(query)
        tokens = config.num_prefix_tokens + math.prod(config.map_grid)
        if index is not None and index >= tokens:
            raise ApiError(
                422, "bad_parameter", f"query must be 'mean' or an integer from 0 to {tokens - 1}, got {query}"
            )

        def make(session: Session) -> Payload:
            body, shape = results.attention_rows(session.captured, index)
            return Payload(body, BYTES, shape)

        priority = Priority.MEDIUM if index is None else Priority.QUICK
        return await service.respond(request, model, id, ("rows", index), make, priority)

    @api.get(
        "/v1/images/{id}/similarity/{layer}",
        **named("getSimilarity", "Similarity of tokens after a layer"),
        responses=binary_response("uint8 [t, t]"),
        response_class=Response,
    )
    async def similarity(request: Request, id: Id, layer: Layer, model: Model = None) -> Response:
        """Return uint8 [t, t]. The cosine similarity of two tokens after a layer is value / 127.5 - 1."""
        inspected = service.model(model)
        at = inspected.layer(layer)
        tokens = inspected.backbone.config.attention_shapes[at].tokens
        check_size(tokens**2, "token similarity", tokens)

        def make(session: Session) -> Payload:
            similarity = results.similarity_bytes(session.captured.features(at))
            return Payload(similarity.tobytes(), BYTES, similarity.shape)

        return await service.respond(request, model, id, ("similarity", at), make)

    @api.get(
        "/v1/images/{id}/walk",
        **named("getWalk", "Tensors of one patch, step by step"),
        responses=binary_response("safetensors", shape=False),
        response_class=Response,
    )
    async def walk(
        request: Request,
        id: Id,
        patch: Annotated[int, Query(ge=0, description="index of the patch, row by row")],
        layer: schemas.AnyLayer = None,
        head: Annotated[int, Query(ge=0)] = 0,
        model: Model = None,
    ) -> Response:
        """Return the tensors of one patch in one layer and head (equations 1 to 4) as a safetensors file.

        `page/walk.py` describes them.
        """
        inspected = service.model(model)
        at, config = inspected.layer(layer), inspected.backbone.config
        heads, patches = config.attention_shapes[at].heads, math.prod(config.map_grid)
        for name, given, count in (("head", head, heads), ("patch", patch, patches)):
            if given >= count:
                raise ApiError(422, "bad_parameter", f"{name} must be an integer from 0 to {count - 1}, got {given}")
        make = lambda session: Payload(walk_bytes(session.captured, at, head, patch), BYTES)  # noqa: E731
        return await service.respond(request, model, id, ("walk", at, head, patch), make)

    @api.get(
        "/v1/images/{id}/effects",
        **named("getEffects", "Effect of each head on a prediction"),
        responses=json_response(schemas.Effects, *MODEL_ERRORS),
    )
    async def effects(request: Request, id: Id, target: Target = None, model: Model = None) -> Response:
        """Return how much the probability of a class drops if a head is switched off, for each layer and head."""
        inspected = service.model(model)
        index, _ = inspected.target(target), inspected.global_attention
        return await service.respond(
            request, model, id, ("effects", index),
            lambda session: numbers.effects(session, _class_of(session, index)), Priority.LONG,
        )  # fmt: skip

    @api.get(
        "/v1/images/{id}/lens",
        **named("getLogitLens", "Predictions after each layer"),
        responses=json_response(schemas.Lens, *MODEL_ERRORS),
    )
    async def lens(request: Request, id: Id, model: Model = None) -> Response:
        """Return the predictions of the head after each layer."""
        make = lambda session: results.lens(session.classifier_pass, session.inspected.labels)  # noqa: E731
        return await service.respond(request, model, id, "lens", make)

    @api.get(
        "/v1/images/{id}/distance",
        **named("getAttentionDistance", "Attention distance of every head"),
        responses=json_response(schemas.Reach, *MODEL_ERRORS),
    )
    async def distance(request: Request, id: Id, model: Model = None) -> Response:
        """Return the attention distance of every head of every layer, in input pixels."""
        make = lambda session: results.distance(session.captured, session.step)  # noqa: E731
        return await service.respond(request, model, id, "distance", make, Priority.MEDIUM)


# ---- Two images ----


def add_pair_routes(api: APIRouter, service: InspectService) -> None:
    @api.get(
        "/v1/images/{id}/matches/{other}",
        **named("getMatches", "Similarity of the patches of two images"),
        responses=binary_response("uint8 [n, n]"),
        response_class=Response,
    )
    async def matches(
        request: Request, id: Id, other: Id, layer: schemas.AnyLayer = None, model: Model = None
    ) -> Response:
        """Return uint8 [n, n]. The cosine similarity of a patch and a patch of the other image is value / 127.5 - 1."""
        inspected = service.model(model)
        at, config = inspected.layer(layer), inspected.global_attention.config
        check_size(math.prod(config.grid) ** 2, "the similarity of the patches", math.prod(config.grid))

        def make(session: Session) -> Payload:
            values = results.match_bytes(session.captured, service.beside(session, other).captured, at)
            return Payload(values.tobytes(), BYTES, values.shape)

        return await service.respond(request, model, id, ("matches", other, at), make)

    @api.get(
        "/v1/images/{id}/joint_pca/{other}",
        **named("getJointPca", "Principal components of the patches of two images"),
        responses=json_response(schemas.JointPca, *MODEL_ERRORS),
    )
    async def joint_pca(
        request: Request, id: Id, other: Id, layer: schemas.AnyLayer = None, model: Model = None
    ) -> Response:
        """Return the first three principal components of the patches of both images as red, green and blue."""
        inspected = service.model(model)
        at, _ = inspected.layer(layer), inspected.global_attention
        return await service.respond(
            request, model, id, ("joint_pca", other, at),
            lambda session: results.joint_components(session.captured, service.beside(session, other).captured, at),
            Priority.MEDIUM,
        )  # fmt: skip


# ---- Images of the gallery ----


def add_gallery_routes(api: APIRouter, service: InspectService) -> None:
    @api.get(
        "/v1/images/{id}/neighbours",
        **named("getNeighbours", "Nearest images of the gallery"),
        responses=json_response(schemas.Neighbours, *MODEL_ERRORS),
    )
    async def neighbours(
        request: Request,
        id: Id,
        patch: Annotated[
            int | None, Query(ge=0, description="Index of a patch of the map, row by row; default: the image.")
        ] = None,
        count: Annotated[int, Query(ge=1, le=100)] = 8,
        model: Model = None,
    ) -> Response:
        """Return the images of `--gallery` with the most similar features or, with `patch`, the most similar patches.

        `similarity` is a cosine, and `thumbnail` a WebP image in base64.
        """
        inspected = service.model(model)
        gallery = inspected.gallery
        if gallery is None:
            raise ApiError(404, "no_gallery", "this server has no gallery; start it with --gallery DIR")
        patches = math.prod(inspected.model.config.backbone.map_grid)
        if patch is not None and patch >= patches:
            raise ApiError(422, "bad_parameter", f"patch must be from 0 to {patches - 1}, got {patch}")

        def make(session: Session) -> dict[str, Any]:
            features = numbers.features(session)
            if patch is None:
                return {"images": gallery.nearest(inspected.model.backbone.pool_features(features)[0], count)}
            feature = features.patches[0, numbers.output_patch(session, patch)]
            return {"images": gallery.nearest_patches(feature, count, session.step)}

        priority = Priority.QUICK if patch is None else Priority.MEDIUM
        return await service.respond(request, model, id, ("neighbours", patch, count), make, priority)


# ---- Explanations: importance maps, tests of these maps, predictions with masked patches ----


def add_map_routes(api: APIRouter, service: InspectService) -> None:
    @api.get(
        "/v1/images/{id}/map/{method}",
        **named("getMap", "Importance map or principal components"),
        responses=json_response(schemas.PatchMap, *MODEL_ERRORS),
    )
    async def map(
        request: Request,
        id: Id,
        method: Literal["relevance", "occlusion", "rollout", "attention", "pca"],
        target: Target = None,
        fusion: Fusion = "mean",
        discard: Annotated[float, Query(ge=0, le=0.95)] = 0.0,
        layer: schemas.AnyLayer = None,
        model: Model = None,
    ) -> Response:
        """Return one value per patch. `fusion` and `discard` apply to rollout; `target` to relevance and occlusion."""
        inspected = service.model(model)
        if method == "relevance" or method == "occlusion":
            index = inspected.target(target)
            if method == "relevance":
                inspected.check_attention()
            return await service.respond(
                request, model, id, ("map", method, index),
                lambda session: numbers.importance(session, method, _class_of(session, index)),
                Priority.MEDIUM if method == "relevance" else Priority.LONG,
            )  # fmt: skip
        at = inspected.layer(layer)
        if method == "rollout":
            return await service.respond(
                request, model, id, ("map", method, fusion, discard, at),
                lambda session: results.rollout(session.captured, fusion, discard, at), Priority.MEDIUM,
            )  # fmt: skip
        make, priority = (results.layer_attention, Priority.QUICK)
        if method == "pca":
            make, priority = (results.components, Priority.MEDIUM)
        name = ("map", method, at)
        return await service.respond(request, model, id, name, lambda session: make(session.captured, at), priority)

    @api.get(
        "/v1/images/{id}/faithfulness/{method}",
        **named("testMap", "Deletion and insertion test of a map"),
        responses=json_response(schemas.Tested, *MODEL_ERRORS),
    )
    async def faithfulness(
        request: Request, id: Id, method: MapName, target: Target = None, model: Model = None
    ) -> Response:
        """Return deletion and insertion curves: the class probability when important patches are masked or revealed."""
        inspected = service.model(model)
        index = inspected.target(target)
        if method == "relevance":
            inspected.check_attention()
        return await service.respond(
            request, model, id, ("faithfulness", method, index),
            lambda session: numbers.map_test(session, method, _class_of(session, index)), Priority.LONG,
        )  # fmt: skip

    @api.post(
        "/v1/images/{id}/masked",
        **named("predictWithoutPatches", "Predictions without some patches"),
        responses=json_response(schemas.Changed, *schemas.JSON_ERRORS),
    )
    async def masked(request: Request, id: Id, body: schemas.Erased, model: Model = None) -> Response:
        """Return the predictions for an image with some patches masked."""
        config = service.model(model).classifier.config
        patches, classes = sorted(set(body.patches)), list(dict.fromkeys(body.classes))
        limits = (("patches", patches, math.prod(config.map_grid)), ("classes", classes, config.num_classes))
        for key, given, count in limits:
            if wrong := [number for number in given if number >= count]:
                raise ApiError(422, "bad_parameter", f"{key} must be integers from 0 to {count - 1}, got {wrong[0]}")
        name = ("masked", hashlib.sha256(repr((patches, classes)).encode()).hexdigest())  # the lists may be long
        make = lambda session: numbers.masked(session, patches, classes)  # noqa: E731
        return await service.respond(request, model, id, name, make)


def _class_of(session: Session, index: int | None) -> int:
    return numbers.top_class(session) if index is None else index


# ---- A model without an image: position similarity and patch filters ----


def add_model_routes(api: APIRouter, service: InspectService) -> None:
    @api.get(
        "/v1/position",
        **named("getPositions", "Similarity of positions"),
        responses=binary_response("uint8 [n, n]"),
        response_class=Response,
    )
    async def position(request: Request, model: Model = None) -> Response:
        """Return uint8 [n, n]. The similarity of two positions is value / 127.5 - 1. Biases are scaled to [-1, 1]."""
        inspected = service.model(model)
        n = math.prod(inspected.backbone.config.position_grid)
        check_size(n**2, "position similarity", n)

        def make() -> Payload:
            similarity = results.position_bytes(inspected.backbone)
            if similarity is None:
                raise ApiError(404, "no_positions", "the positions of this model cannot be compared")
            return Payload(similarity.tobytes(), BYTES, similarity.shape)

        return await service.respond_without_image(request, inspected, "position", make)

    @api.get(
        "/v1/filters",
        **named("getFilters", "Principal components of the patch filters"),
        responses=binary_response("uint8 [count, height, width, 3]"),
        response_class=Response,
    )
    async def filters(request: Request, model: Model = None) -> Response:
        """Return uint8 [count, height, width, 3]: the first principal components of the patch filters."""
        inspected = service.model(model)

        def make() -> Payload:
            rgb = filter_images(filter_components(inspected.backbone).patterns)
            return Payload(rgb.tobytes(), BYTES, rgb.shape)

        return await service.respond_without_image(request, inspected, "filters", make)
