"""Schemas of answers and bodies, for the description of the API at /openapi.json."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    """All fields are required, and no others are allowed."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Reason(Shape):
    code: str
    message: str


class Error(Shape):
    error: Reason


class Class(Shape):
    label: str
    index: int
    probability: float


class Classified(Shape):
    predictions: list[Class]
    model: str


class Embedded(Shape):
    embedding: list[float]
    width: int
    model: str


class Segment(Shape):
    index: int
    label: str
    color: str
    share: float


class Segmented(Shape):
    classes: list[Segment]
    width: int
    height: int
    mask: str
    model: str


class Target(Shape):
    index: int
    label: str


class Box(Shape):
    left: float
    top: float
    width: float
    height: float


class Sides(Shape):
    width: int
    height: int


class Explained(Shape):
    method: str
    target: Target | None
    grid: list[int]
    seen: Box
    picture: Sides
    values: list[list[float]]
    predictions: list[Class] | None
    model: str


class Models(BaseModel):
    model: str
    models: list[dict[str, Any]]


class State(Shape):
    status: str


PREDICTIONS = [
    {"label": "tabby cat", "index": 281, "probability": 0.91},
    {"label": "tiger cat", "index": 282, "probability": 0.06},
]
EXAMPLES: dict[str, dict[str, Any]] = {
    "Classified": {"predictions": PREDICTIONS, "model": "vit-b16"},
    "Embedded": {"embedding": [0.12, -0.53, 1.08], "width": 3, "model": "vit-b16"},
    "Segmented": {
        "classes": [{"index": 1, "label": "pet", "color": "#800000", "share": 0.42}],
        "width": 500,
        "height": 375,
        "mask": "iVBORw0KGgo...",
        "model": "pets",
    },
    "Explained": {
        "method": "relevance",
        "target": {"index": 281, "label": "tabby cat"},
        "grid": [2, 2],
        "seen": {"left": 62.5, "top": 0.0, "width": 375.0, "height": 375.0},
        "picture": {"width": 500, "height": 375},
        "values": [[0.1, 0.7], [0.2, 0.0]],
        "predictions": PREDICTIONS,
        "model": "vit-b16",
    },
}
REASONS = {
    400: ("no_image", "the body is empty, but must be an image"),
    401: ("unauthorized", "missing or invalid API key: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"),
    403: ("cross_site", "cross-site request: use this server's own page, or a program"),
    404: ("unknown_model", "unknown model 'vit': use vit-b16"),
    408: ("slow_upload", "the request was not complete after 30 s"),
    409: ("no_head", "the model 'dinov2' does not classify: use /v1/embed"),
    413: ("too_many_pixels", "12000 x 12000 pixels are 144,000,000, but at most 64,000,000 are accepted"),
    415: ("unsupported_type", "unsupported image format: send JPEG, PNG or WebP"),
    422: ("unreadable_image", "cannot be decoded: image file is truncated"),
    429: ("busy", "too many requests are waiting: try again in a second"),
    503: ("timeout", "no answer after 30 s"),
}
IMAGE_ERRORS = tuple(REASONS)  # possible errors of every request with an image
BINARY = {"schema": {"type": "string", "format": "binary"}}
FORM = {"schema": {"type": "object", "required": ["image"], "properties": {"image": BINARY["schema"]}}}
IMAGE_BODY = {
    "requestBody": {
        "required": True,
        "description": "An image, as the whole body or as the field `image` of a form.",
        "content": {"image/jpeg": BINARY, "image/png": BINARY, "image/webp": BINARY, "multipart/form-data": FORM},
    }
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Possible error answers with an example of each."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in statuses:
        code, message = REASONS[status]
        example = {"error": {"code": code, "message": message}}
        found[status] = {
            "model": Error,
            "description": code.replace("_", " "),
            "content": {"application/json": {"example": example}},
        }
    return found


def answers(shape: type[BaseModel], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """Possible answers of a route with an example of each."""
    right: dict[str, Any] = {"model": shape}
    if shape.__name__ in EXAMPLES:
        right["content"] = {"application/json": {"example": EXAMPLES[shape.__name__]}}
    return {200: right, **errors(*statuses)}
