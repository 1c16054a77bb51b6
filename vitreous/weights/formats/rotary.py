"""Conversions that the formats with rotary positions share.

Vitreous rotates the channels i and i + head_dim / 2 of a head by the i-th angle, and the angles of y precede those of
x. EVA and timm's `Eva` rotate neighbouring channels, and in RoPE-ViT x precedes y. The converters reorder the channels
of queries and keys, which does not change their products.
"""

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import MixedRotary2d, Rotary2d
from vitreous.weights.formats.mapping import IDENTITY, Conversion, concat, single


def heads_order(config: ViTConfig) -> Conversion:
    """Create a conversion of queries or keys (rows, biases or norms) from the channel order of EVA and timm."""
    if not has_neighbours(config):
        return IDENTITY
    half = config.head_width // 2
    theirs = torch.arange(config.head_width, device="cpu").reshape(half, 2)  # their channels, by pair
    if has_x_first(config):
        theirs = theirs.roll(half // 2, dims=0)
    order = theirs.T.flatten()
    return single(lambda x: _reordered(x, order), lambda x: _reordered(x, order.argsort()))


def has_neighbours(config: ViTConfig) -> bool:
    """Return True if EVA and timm rotate neighbouring channels of the model. DINOv3 has the same order as Vitreous."""
    position = config.position
    return isinstance(position, MixedRotary2d) or (isinstance(position, Rotary2d) and position.coordinates == "index")


def has_x_first(config: ViTConfig) -> bool:
    """Return True for the coordinates of RoPE-ViT. Learned frequencies of x and y have no order."""
    position = config.position
    return isinstance(position, Rotary2d) and position.coordinates == "index" and position.reference_grid is None


def _reordered(x: Tensor, order: Tensor) -> Tensor:
    if x.is_meta:
        return x
    return x.reshape(-1, len(order), *x.shape[1:])[:, order].flatten(0, 1)


def packed_qkv(config: ViTConfig) -> Conversion:
    """Create a conversion of packed queries, keys and values."""
    order = heads_order(config)

    def read(theirs: list[Tensor]) -> list[Tensor]:
        q, k, v = theirs[0].chunk(3)
        return [*order.read([q]), *order.read([k]), v]

    def write(ours: list[Tensor]) -> list[Tensor]:
        q, k, v = ours
        return [concat([*order.write([q]), *order.write([k]), v])]

    return Conversion(read, write)


# The gate and the other half of SwiGLU in two layers, which Vitreous packs.
GATE_AND_UP = Conversion(lambda theirs: [concat(theirs)], lambda ours: list(ours[0].chunk(2)))


def rotary_periods(head_width: int, base: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the periods of DINOv3, as in its checkpoints."""
    count = head_width // 4
    return (base ** (torch.arange(count, device="cpu") / count)).to(dtype)
