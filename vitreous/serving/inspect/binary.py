"""Numbers for the page as bytes: attention and likeness of all tokens, 8 bits each, so that a hover asks for nothing.

t: tokens; n: patches.
"""

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.explanation.captured import CHUNK, Layer
from vitreous.explanation.similarity import cosines
from vitreous.model.tokens import Features
from vitreous.serving.inspect.responses import BYTES, Answer


def attention_bytes(layer: Layer) -> Answer:
    """The largest weight that each row gives to a prefix token, and to a patch, float32 [heads, t, 2]; then each weight
    as a share of the one or the other, uint8 [heads, t, t].

    Of two, because a class token or a register may take nearly everything: patches would be left with a step or two.
    """
    heads, t, prefix = layer.model.config.num_heads, layer.before.shape[1], layer.layout.num_prefix_tokens
    data = bytearray(heads * t * (8 + t))
    scales = np.frombuffer(data, "<f4", heads * t * 2).reshape(heads, t, 2)
    parts = np.frombuffer(data, np.uint8, offset=8 * heads * t).reshape(heads, t, t)
    for rows, weights in layer.chunks():
        for scale, keys in enumerate((slice(0, prefix), slice(prefix, t))):
            some = weights[0, :, :, keys].float()
            if not some.shape[-1]:
                continue
            largest = some.amax(dim=-1)
            shares = some / largest.clamp_min(1e-30)[..., None]
            scales[:, rows, scale] = largest.cpu().numpy()
            parts[:, rows, keys] = (shares * 255).round().to(torch.uint8).cpu().numpy()
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
