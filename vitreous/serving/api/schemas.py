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


# ---- The page ----


class Shown(Shape):
    id: str
    model: str
    picture: Sides
    seen: Box
    grid: list[int]
    predictions: list[Class] | None
    segments: list[Segment] | None


class PatchValues(Shape):
    method: str
    target: Target | None
    grid: list[int]
    values: list[float]
    range: list[float]


class PatchColours(Shape):
    method: str
    target: None
    grid: list[int]
    rgb: list[float]
    range: list[float]


class Curve(Shape):
    auc: float
    curve: list[float]


class AtRandom(Shape):
    deletion: float
    insertion: float


class Tested(Shape):
    method: str
    target: Target
    shares: list[float]
    deletion: Curve
    insertion: Curve
    random: AtRandom


class AfterLayer(Shape):
    layer: int
    predictions: list[Class]


class Lens(Shape):
    layers: list[AfterLayer]


class Reach(Shape):
    pixels: list[list[float]]
    largest: float


class Changed(Shape):
    predictions: list[Class]
    probabilities: dict[str, float]


class Stats(Shape):
    mean: float
    std: float
    min: float
    max: float


class TourStep(BaseModel):
    equation: int
    name: str
    symbol: str
    shape: list[int]
    stats: Stats
    sample: list[float]


class Tour(Shape):
    steps: list[TourStep]


PREDICTIONS = [
    {"label": "tabby cat", "index": 281, "probability": 0.91},
    {"label": "tiger cat", "index": 282, "probability": 0.06},
]
TARGET = {"index": 281, "label": "tabby cat"}
EXAMPLES: dict[Any, dict[str, Any]] = {
    Classified: {"predictions": PREDICTIONS, "model": "vit-b16"},
    Embedded: {"embedding": [0.12, -0.53, 1.08], "width": 3, "model": "vit-b16"},
    Segmented: {
        "classes": [{"index": 1, "label": "pet", "color": "#800000", "share": 0.42}],
        "width": 500,
        "height": 375,
        "mask": "iVBORw0KGgo...",
        "model": "pets",
    },
    Explained: {
        "method": "relevance",
        "target": TARGET,
        "grid": [2, 2],
        "seen": {"left": 62.5, "top": 0.0, "width": 375.0, "height": 375.0},
        "picture": {"width": 500, "height": 375},
        "values": [[0.1, 0.7], [0.2, 0.0]],
        "predictions": PREDICTIONS,
        "model": "vit-b16",
    },
    Shown: {
        "id": "5891b5b522d5df086d0ff0b110fbd9d2",
        "model": "vit-b16",
        "picture": {"width": 500, "height": 375},
        "seen": {"left": 62.5, "top": 0.0, "width": 375.0, "height": 375.0},
        "grid": [14, 14],
        "predictions": PREDICTIONS,
        "segments": None,
    },
    PatchValues | PatchColours: {
        "method": "relevance",
        "target": TARGET,
        "grid": [2, 2],
        "values": [0.1, 0.7, 0.2, 0.0],
        "range": [0.0, 0.7],
    },
    Tested: {
        "method": "relevance",
        "target": TARGET,
        "shares": [0.0, 0.5, 1.0],
        "deletion": {"auc": 0.25, "curve": [0.9, 0.05, 0.0]},
        "insertion": {"auc": 0.63, "curve": [0.0, 0.8, 0.9]},
        "random": {"deletion": 0.42, "insertion": 0.4},
    },
    Lens: {"layers": [{"layer": 0, "predictions": PREDICTIONS}]},
    Reach: {"pixels": [[31.5, 84.2], [90.1, 102.7]], "largest": 294.2},
    Changed: {"predictions": PREDICTIONS, "probabilities": {"281": 0.91}},
    Tour: {
        "steps": [
            {
                "equation": 1,
                "name": "patches",
                "symbol": "x_p",
                "shape": [196, 768],
                "stats": {"mean": -0.1, "std": 0.6, "min": -1.0, "max": 1.0},
                "sample": [0.12, 0.13, 0.13],
            }
        ]
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
MODEL_ERRORS = (401, 403, 404, 409, 413, 422, 429, 503)  # possible errors of every request about a model
BINARY = {"schema": {"type": "string", "format": "binary"}}
SHAPE_HEADER = {"description": "Shape of the array, such as 12,197,197.", "schema": {"type": "string"}}
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


def answers(shape: Any, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """A JSON answer and possible errors of a route, with an example of each."""
    right: dict[str, Any] = {"model": shape}
    if shape in EXAMPLES:
        right["content"] = {"application/json": {"example": EXAMPLES[shape]}}
    return {200: right, **errors(*statuses)}


def binary_answer(description: str) -> dict[int | str, dict[str, Any]]:
    """A binary answer and possible errors of a route about a model."""
    content, headers = {"application/octet-stream": BINARY}, {"X-Shape": SHAPE_HEADER}
    return {200: {"description": description, "content": content, "headers": headers}, **errors(*MODEL_ERRORS)}
