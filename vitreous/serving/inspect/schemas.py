"""Schemas of the page's answers, for /openapi.json."""

from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from vitreous.serving.api.schemas import PREDICTIONS, Box, Class, Segment, Shape, Sides, State, Target, answers

JSON: dict[str, Any] = {"response_class": JSONResponse}
PLAIN: dict[str, Any] = {"response_class": Response}
TARGET = {"index": 281, "label": "tabby cat"}


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


EXAMPLES: dict[Any, dict[str, Any]] = {
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
BYTES_SCHEMA = {"schema": {"type": "string", "format": "binary"}}
SHAPE_HEADER = {"description": "Shape of the array, such as 12,197,197.", "schema": {"type": "string"}}
MODEL_WRONG = (401, 403, 404, 409, 413, 422, 429, 503)  # errors of every request about a model


def json_answer(shape: Any, *statuses: int) -> dict[int | str, dict[str, Any]]:
    """A JSON answer, and errors."""
    right = {"model": shape, "content": {"application/json": {"example": EXAMPLES[shape]}}}
    return {**answers(State, *(statuses or MODEL_WRONG)), 200: right}


def binary_answer(description: str) -> dict[int | str, dict[str, Any]]:
    """A binary answer, and errors."""
    content, headers = {"application/octet-stream": BYTES_SCHEMA}, {"X-Shape": SHAPE_HEADER}
    right = {"description": description, "content": content, "headers": headers}
    return {**answers(State, *MODEL_WRONG), 200: right}
