"""Numbers for the page as bytes: attention and likeness of all tokens, 8 bits each, so that a hover asks for nothing.

t: tokens; n: patches.
"""

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explain.capture import CHUNK, Layer
from vitreous.explain.tokens import cosines
from vitreous.model.tokens import Features
from vitreous.serve.inspect_answers import BYTES, Answer


def attention_bytes(layer: Layer) -> Answer:
    """The largest weight of every row, float32 [heads, t]; then each weight as a share of that, uint8 [heads, t, t]."""
    heads, t = layer.model.config.num_heads, layer.before.shape[1]
    data = bytearray(heads * t * (4 + t))
    scales = np.frombuffer(data, "<f4", heads * t).reshape(heads, t)
    parts = np.frombuffer(data, np.uint8, offset=4 * heads * t).reshape(heads, t, t)
    for rows, weights in layer.chunks():
        weights = weights[0].float()
        largest = weights.amax(dim=-1)
        shares = weights / largest.clamp_min(1e-30)[..., None]
        scales[:, rows] = largest.cpu().numpy()
        parts[:, rows] = (shares * 255).round().to(torch.uint8).cpu().numpy()
    return Answer(bytes(data), BYTES, (heads, t, t))


def similarity_bytes(features: Features) -> Answer:
    """The cosine of every two tokens."""
    t = features.prefix.shape[1] + features.patches.shape[1]
    data = np.empty((t, t), np.uint8)
    step = max(CHUNK // t, 1)
    for start in range(0, t, step):
        rows = slice(start, start + step)
        data[rows] = signed_bytes(cosines(features, rows)[0])
    return Answer(data.tobytes(), BYTES, (t, t))


def signed_bytes(values: Float[Tensor, "*shape"]) -> UInt8[np.ndarray, "*shape"]:
    """Numbers from -1 to 1: those of value / 127.5 - 1.

    >>> signed_bytes(torch.tensor([-1.0, 0.0, 1.0])).tolist()
    [0, 128, 255]
    """
    return ((values + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).cpu().numpy()
