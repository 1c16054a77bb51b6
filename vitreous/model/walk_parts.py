"""Parts of a model that the walk on the page explains. This module does not import torch."""

from dataclasses import dataclass
from typing import Literal

from vitreous.common.checks import Size

PositionKind = Literal["added", "rotary", "bias", "conditional"]
PoolKind = Literal["class", "mean", "attention", "other"]


@dataclass(frozen=True)
class WindowParts:
    """Windows of a layer. Row y of the grid is in row ((y - shift) mod cycle) // size of windows; columns too."""

    size: Size
    shift: Size
    cycle: Size  # height and width of the grid that the shift rotates


@dataclass(frozen=True)
class LayerParts:
    """Parts of an attention layer."""

    head_dim: int
    hidden: int  # width between the two linear layers of the MLP
    windows: WindowParts | None = None  # None: all tokens attend to each other
    merge: bool = False  # True if 2 x 2 tokens are merged before the layer


@dataclass(frozen=True)
class WalkParts:
    """Parts of a model, from which the page chooses the steps of the walk."""

    positions: tuple[PositionKind, ...]
    pool: PoolKind
    patch: Size  # in pixels or, in a hybrid, in cells of the feature map
    layers: tuple[LayerParts, ...]
    distilled: bool = False
    hybrid: bool = False
    gated: bool = False
    layer_scale: bool = False
    pre_norm: bool = False  # True if the tokens are normalised before the first layer
    post_norm: bool = False  # True if the norms are after attention and MLP instead of before them
    cosine: bool = False  # True if queries and keys have length 1
    computed_bias: bool = False  # True if the bias of an offset is computed by a network
