"""Bodies of answers: bytes that are cached and sent.

Numbers in JSON are finite and have six digits. Attention and similarity of all tokens are sent with 8 bits each, so
that the page needs no request when the mouse moves.

t: tokens; n: patches.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explanation.captured import CHUNK, CapturedForward
from vitreous.explanation.pca_and_similarity import cosines
from vitreous.inference.engine import top_labels
from vitreous.model.tokens import Features

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


def attention_bytes(captured: CapturedForward, layer: int) -> Answer:
    """The largest weight of each row for a prefix token, and for a patch, float32 [heads, t, 2]; then each weight as a
    fraction of the one or the other, uint8 [heads, t, t].

    Two scales, because a class token or a register may take nearly all attention, and 8 bits would not show the rest.
    """
    heads, t = captured.model.config.num_heads, captured.states[0].shape[1]
    prefix = captured.layout.num_prefix_tokens
    data = bytearray(heads * t * (8 + t))
    scales = np.frombuffer(data, "<f4", heads * t * 2).reshape(heads, t, 2)
    fractions = np.frombuffer(data, np.uint8, offset=8 * heads * t).reshape(heads, t, t)
    for rows, weights in captured.chunks(layer):
        for scale, keys in enumerate((slice(0, prefix), slice(prefix, t))):
            some = weights[0, :, :, keys].float()
            if not some.shape[-1]:
                continue
            largest = some.amax(dim=-1)
            scales[:, rows, scale] = largest.cpu().numpy()
            part = some / largest.clamp_min(1e-30)[..., None]
            fractions[:, rows, keys] = (part * 255).round().to(torch.uint8).cpu().numpy()
    return Answer(bytes(data), BYTES, (heads, t, t))


def similarity_bytes(features: Features) -> Answer:
    """The cosine similarity of every two tokens."""
    t = features.prefix.shape[1] + features.patches.shape[1]
    data = np.empty((t, t), np.uint8)
    step = max(CHUNK // t, 1)
    for start in range(0, t, step):
        rows = slice(start, start + step)
        data[rows] = signed_bytes(cosines(features, rows)[0])
    return Answer(data.tobytes(), BYTES, (t, t))


def signed_bytes(values: Float[Tensor, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Encode numbers from -1 to 1 as value / 127.5 - 1.

    >>> signed_bytes(torch.tensor([-1.0, 0.0, 1.0])).tolist()
    [0, 128, 255]
    """
    return ((values + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
