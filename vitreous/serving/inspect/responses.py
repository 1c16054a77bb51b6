"""Bodies of answers: bytes that are cached and sent. Numbers in JSON are finite and have six digits."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.inference.predictions import top_labels

JSON, BYTES = "application/json", "application/octet-stream"


@dataclass(frozen=True)
class Answer:
    """Body and media type; `shape` is that of the array at the end of the body."""

    body: bytes
    kind: str = JSON
    shape: tuple[int, ...] = ()


class NotANumber(ValueError):
    """The model's output is not finite: its weights are damaged or too large."""


def as_json(value: dict[str, Any]) -> Answer:
    return Answer(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())


def rounded(values: Float[Tensor, "*shape"]) -> Any:
    """Nested lists of numbers with six digits, which keep answers small."""
    if not values.isfinite().all():
        raise NotANumber("the model's answer is not a number")
    return _six_digits(values.detach().float().tolist())


def _six_digits(value: Any) -> Any:
    return [_six_digits(part) for part in value] if isinstance(value, list) else float(f"{value:.6g}")


def class_entry(labels: Sequence[str], index: int) -> dict[str, Any]:
    return {"index": index, "label": labels[index]}


def top_classes(labels: Sequence[str], probabilities: Float[Tensor, "classes"], count: int) -> list[dict[str, Any]]:
    """The most probable classes."""
    [best] = top_labels(probabilities[None], labels, count)
    values = rounded(torch.tensor([label.probability for label in best]))
    return [{**class_entry(labels, one.index), "probability": value} for one, value in zip(best, values, strict=True)]
