"""Request parameters and response schemas, which also describe the API at /openapi.json."""

from types import GenericAlias
from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field, create_model

# ---- Requests --------------------------------------------------------------------------------------------------------

Model = Annotated[str | None, Query(description="Id from /v1/models; by default the first model.", max_length=200)]
Id = Annotated[str, Path(description="Image id: 32 hexadecimal digits, returned by the upload.", max_length=64)]
Name = Annotated[str, Path(description="Name of a sample from /v1/models.", max_length=64)]
Layer = Annotated[int, Path(ge=0, lt=2**16)]
Token = Annotated[str, Path(pattern="^(mean|[0-9]{1,6})$", description="Index of a token, or `mean` over all patches.")]
AnyLayer = Annotated[int | None, Query(ge=0, lt=2**16, description="By default the last layer.")]
Target = Annotated[
    str | None, Query(max_length=200, description="Class label or index; by default the most probable class.")
]


class Erased(BaseModel):
    """Patches to fill with the mean colour of the image, and the classes whose probabilities are returned."""

    patches: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=2**16, examples=[[0, 1, 14]])
    classes: list[Annotated[int, Field(ge=0)]] = Field(default=[], max_length=1000, examples=[[0]])


# ---- Responses -------------------------------------------------------------------------------------------------------


def shape(name: str, extra: Any = "forbid", /, **fields: Any) -> Any:
    """Create a schema whose fields are all required. Extra fields are forbidden unless `extra` is "ignore"."""
    required: dict[str, Any] = {key: (kind, ...) for key, kind in fields.items()}
    return create_model(name, __config__=ConfigDict(extra=extra), **required)


def many(kind: Any) -> Any:
    return GenericAlias(list, kind)  # list[kind]; type checkers reject a variable there


Error = shape("Error", error=shape("Reason", code=str, message=str))
State = shape("State", status=str)
Tokens = shape("Tokens", prefix=list[str], patches=int, total=int)
AttentionShape = shape("AttentionShape", heads=int, grid=list[int], keys=int, scale=list[int], width=int)
Described = shape(
    "Described", "ignore", id=str, name=str, task=str, classifies=bool, architecture=str, parameters=int,
    image_size=list[int], patch_size=list[int] | None, grid=list[int] | None, width=int | None, depth=int | None,
    heads=int | None, layers=many(AttentionShape) | None, tokens=Tokens | None, position=str | None,
    position_grid=list[int] | None, classes=int, labels=list[str], origin=str | None, version=str,
    walk=dict[str, Any] | None, global_attention=bool, computed_on=str, gallery=int | None,
    samples=many(shape("Sample", name=str, label=str)),
)  # fmt: skip
Models = shape("Models", "ignore", model=str, models=many(Described))
Class = shape("Class", label=str, index=int, probability=float)
ClassName = shape("Target", index=int, label=str)
Segment = shape("Segment", index=int, label=str, color=str, share=float)
Box = shape("Box", left=float, top=float, width=float, height=float)
Sides = shape("Sides", width=int, height=int)
Classified = shape(
    "Classified", predictions=many(Class), unknown=bool | None, familiarity=float | None,
    label_set=many(Class) | None, model=str,
)  # fmt: skip
Labelled = shape("Labelled", labels=many(Class), predictions=many(Class), model=str)
Regressed = shape("Regressed", values=dict[str, float], model=str)
Embedded = shape("Embedded", embedding=list[float], width=int, model=str)
Segmented = shape("Segmented", classes=many(Segment), width=int, height=int, mask=str, model=str)
Explained = shape(
    "Explained", method=str, target=ClassName | None, grid=list[int], seen=Box, picture=Sides,
    values=list[list[float]], predictions=many(Class) | None, model=str,
)  # fmt: skip

# ---- Responses for the page ------------------------------------------------------------------------------------------

Shown = shape(
    "Shown", id=str, model=str, picture=Sides, seen=Box, grid=list[int], predictions=many(Class) | None,
    unknown=bool | None, segments=many(Segment) | None,
)  # fmt: skip
PATCHES = {"method": str, "target": ClassName | None, "grid": list[int]}
PatchValues = shape("PatchValues", **PATCHES, values=list[float], range=list[float])
PatchColours = shape("PatchColours", **PATCHES | {"target": None}, rgb=list[float], range=list[float])
PatchMap = PatchValues | PatchColours
Curve = shape("Curve", auc=float, curve=list[float])
Tested = shape(
    "Tested", method=str, target=ClassName, shares=list[float], deletion=Curve, insertion=Curve,
    random=shape("AtRandom", deletion=Curve, insertion=Curve),
)  # fmt: skip
Lens = shape("Lens", layers=many(shape("AfterLayer", layer=int, predictions=many(Class))))
Reach = shape("Reach", pixels=list[list[float]], largest=float)
Neighbour = shape(
    "Neighbour", "ignore", name=str, similarity=float, thumbnail=str, row=int | None, column=int | None,
    grid=list[int] | None,
)  # fmt: skip
Effects = shape("Effects", target=ClassName, heads=list[list[float]])
JointPca = shape("JointPca", grid=list[int], first=list[float], second=list[float])
Neighbours = shape("Neighbours", images=many(Neighbour))
Changed = shape("Changed", predictions=many(Class), probabilities=dict[str, float])

# ---- Examples --------------------------------------------------------------------------------------------------------

PREDICTIONS = [
    {"label": "tabby cat", "index": 281, "probability": 0.91},
    {"label": "tiger cat", "index": 282, "probability": 0.06},
]
TARGET = {"index": 281, "label": "tabby cat"}
SEEN = {"left": 62.5, "top": 0.0, "width": 375.0, "height": 375.0}
PICTURE = {"width": 500, "height": 375}
PET = {"index": 1, "label": "pet", "color": "#0000ff", "share": 0.42}
EXAMPLES: dict[Any, dict[str, Any]] = {
    Classified: {
        "predictions": PREDICTIONS, "unknown": False, "familiarity": 0.62, "label_set": PREDICTIONS[:1],
        "model": "vit-b16",
    },
    Labelled: {"labels": PREDICTIONS[:1], "predictions": PREDICTIONS, "model": "tags"},
    Regressed: {"values": {"price": 249.0}, "model": "prices"},
    Embedded: {"embedding": [0.12, -0.53, 1.08], "width": 3, "model": "vit-b16"},
    Segmented: {"classes": [PET], **PICTURE, "mask": "iVBORw0KGgo...", "model": "pets"},
    Explained: {
        "method": "relevance", "target": TARGET, "grid": [2, 2], "seen": SEEN, "picture": PICTURE,
        "values": [[0.1, 0.7], [0.2, 0.0]], "predictions": PREDICTIONS, "model": "vit-b16",
    },
    Shown: {
        "id": "5891b5b522d5df086d0ff0b110fbd9d2", "model": "vit-b16", "picture": PICTURE, "seen": SEEN,
        "grid": [14, 14], "predictions": PREDICTIONS, "unknown": False, "segments": None,
    },
    PatchMap: {
        "method": "relevance", "target": TARGET, "grid": [2, 2], "values": [0.1, 0.7, 0.2, 0.0], "range": [0.0, 0.7],
    },
    Tested: {
        "method": "relevance", "target": TARGET, "shares": [0.0, 0.5, 1.0],
        "deletion": {"auc": 0.25, "curve": [0.9, 0.05, 0.0]}, "insertion": {"auc": 0.63, "curve": [0.0, 0.8, 0.9]},
        "random": {
            "deletion": {"auc": 0.42, "curve": [0.9, 0.4, 0.0]}, "insertion": {"auc": 0.4, "curve": [0.0, 0.3, 0.9]},
        },
    },
    Lens: {"layers": [{"layer": 0, "predictions": PREDICTIONS}]},
    Reach: {"pixels": [[31.5, 84.2], [90.1, 102.7]], "largest": 294.2},
    Changed: {"predictions": PREDICTIONS, "probabilities": {"281": 0.91}},
}  # fmt: skip
REASONS = {
    400: ("no_image", "the body is empty; send an image"),
    401: ("unauthorized", "missing or invalid API key; send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"),
    403: ("cross_site", "cross-site requests are not allowed; use this server's own page or an HTTP client"),
    404: ("unknown_model", "unknown model 'vit'; choose from vit-b16"),
    408: ("slow_upload", "the request was not complete after 30 s"),
    409: ("no_head", "the model 'dinov2' does not support /v1/classify; use /v1/embed"),
    413: ("too_many_pixels", "the image has 144,000,000 pixels (12000 x 12000); the maximum is 64,000,000"),
    415: ("unsupported_type", "unsupported image format; send JPEG, PNG or WebP"),
    422: ("unreadable_image", "cannot be decoded: image file is truncated"),
    429: ("busy", "too many requests are waiting; try again in a second"),
    500: ("internal", "internal server error; see the server log"),
    503: ("timeout", "no result after 30 s"),
}
IMAGE_ERRORS = tuple(REASONS)  # possible for every request with an image
MODEL_ERRORS = (401, 403, 404, 409, 413, 422, 429, 500, 503)  # possible for every request about a model
JSON_ERRORS = (400, 408, *MODEL_ERRORS)  # possible for every request about a model with a JSON body
SERVER_ERRORS = (401, 403, 422, 500)  # possible for every request below /v1
SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "The API key of the server."},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The API key of the server."},
}
BINARY = {"schema": {"type": "string", "format": "binary"}}
SHAPE_HEADER = {"description": "Shape of the array, e.g. 12,197,197.", "schema": {"type": "string"}}
FORM = {"schema": {"type": "object", "required": ["image"], "properties": {"image": BINARY["schema"]}}}
BASE64 = {"type": "string", "format": "base64", "description": "A JPEG, PNG or WebP file, or a data URL of it."}


def _image_body(description: str, json: dict[str, Any]) -> dict[str, Any]:
    """Describe a body with an image, as the whole body, in a form or in JSON."""
    types = ("image/jpeg", "image/png", "image/webp")
    content = {**dict.fromkeys(types, BINARY), "multipart/form-data": FORM, "application/json": {"schema": json}}
    return {"requestBody": {"required": True, "description": description, "content": content}}


def _only(name: str, kind: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [name], "properties": {name: kind}, "additionalProperties": False}


ONE_IMAGE = _only("image", BASE64)
SEVERAL_IMAGES = _only("images", {"type": "array", "items": BASE64, "minItems": 1})
ONE_WAY = "An image, as the whole body, as the form field `image`, or as base64 in JSON."
IMAGE_BODY = _image_body(ONE_WAY, ONE_IMAGE)
IMAGES_BODY = _image_body(
    f"{ONE_WAY} JSON can also have several `images`, at most as many as a batch of the server.",
    {"oneOf": [ONE_IMAGE, SEVERAL_IMAGES]},
)


def named(id: str, summary: str) -> dict[str, Any]:
    """Return the OpenAPI operation id, which names functions of generated clients, and the summary of an endpoint."""
    return {"operation_id": id, "summary": summary}


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of error responses, with examples."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        code, message = REASONS[status]
        example = {"error": {"code": code, "message": message}}
        content = {"application/json": {"example": example}}
        found[status] = {"model": Error, "description": code.replace("_", " "), "content": content}
    return found


def json_response(shape: Any, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe a JSON response and the possible errors, each with an example."""
    success: dict[str, Any] = {"model": shape}
    if shape in EXAMPLES:
        success["content"] = {"application/json": {"example": EXAMPLES[shape]}}
    return {200: success, **error_responses(*statuses)}


def image_responses(shape: Any, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the response for one image or, for several images of a JSON body, a list of responses and errors."""
    several = create_model(f"{shape.__name__}List", results=(many(shape | Error), ...), model=(str, ...))
    return json_response(shape, *statuses) | {
        200: {"model": shape | several, "content": {"application/json": {"example": EXAMPLES[shape]}}}
    }


def binary_response(description: str, shape: bool = True) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a model endpoint that returns binary data, including its errors."""
    content, headers = {"application/octet-stream": BINARY}, {"X-Shape": SHAPE_HEADER} if shape else {}
    return {200: {"description": description, "content": content, "headers": headers}, **error_responses(*MODEL_ERRORS)}
