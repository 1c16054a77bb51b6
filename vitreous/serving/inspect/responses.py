"""Answers as they are sent and kept: bytes, made where the work is done. In JSON few digits, each of them a number."""

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
    """`shape`: of the array that the bytes end with."""

    body: bytes
    kind: str = JSON
    shape: tuple[int, ...] = ()


class NotANumber(ValueError):
    """The model answers with something that is not a number: its weights are broken, or too large."""


def as_json(value: dict[str, Any]) -> Answer:
    return Answer(json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode())


def plain(values: Float[Tensor, "*shape"]) -> Any:
    """Lists in lists, six digits each: no eye sees more, and they would be most of the bytes."""
    if not values.isfinite().all():
        raise NotANumber("the model's answer is not a number")
    return _rounded(values.detach().float().tolist())


def _rounded(value: Any) -> Any:
    return [_rounded(part) for part in value] if isinstance(value, list) else float(f"{value:.6g}")


def named(labels: Sequence[str], index: int) -> dict[str, Any]:
    return {"index": index, "label": labels[index]}


def likeliest(labels: Sequence[str], shares: Float[Tensor, "classes"], count: int) -> list[dict[str, Any]]:
    """The classes with the largest shares, as every answer of the server names them."""
    [best] = top_labels(shares[None], labels, count)
    probabilities = plain(torch.tensor([label.probability for label in best]))
    return [
        {**named(labels, label.index), "probability": probability}
        for label, probability in zip(best, probabilities, strict=True)
    ]
