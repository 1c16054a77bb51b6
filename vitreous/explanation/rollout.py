"""Attention rollout (Abnar and Zuidema, arXiv 2005.00928): attention followed through the layers, residuals included.

A layer hands a token half of itself and half of what it gathers; the product over the layers says what share of the
input each token would hold if nothing but mixing happened. It knows no class: it tells where information may come
from, not what it was used for.

b: batch; t: tokens; q: rows at a time; gh, gw: grid height and width.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import check_choice, check_fraction, check_real
from vitreous.explanation.capture import Walk, each_layer, on_grid, readout, walked, which_layers
from vitreous.model.vit import ViT

Fusion = Literal["mean", "max", "min"]


@torch.no_grad()
def rollout(
    model: ViT,
    images: Float[Tensor, "b c h w"],
    layers: Sequence[int] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Float[Tensor, "b t t"]:
    """The share of every input token (column) in every output token (row). Rows sum to 1.

    fusion: how the heads of a layer become one.
    discard: this share of the weights of every row, its smallest, counts as noise and is left out.
    residual: what a token keeps of itself in each layer.
    """
    _check(fusion, discard, residual)
    shares: Tensor | None = None
    for layer in each_layer(model, images, layers):
        b, t, _ = layer.before.shape
        before = torch.eye(t, device=layer.before.device).expand(b, t, t) if shares is None else shares
        shares = torch.empty(b, t, t, device=before.device)
        for rows, weights in layer.chunks():
            mixed = fuse(weights.float(), fusion, discard)
            shares[:, rows] = (1 - residual) * (mixed @ before) + residual * before[:, rows]
    assert shares is not None
    return shares


def fuse(weights: Float[Tensor, "b heads q t"], fusion: Fusion, discard: float) -> Float[Tensor, "b q t"]:
    """One weight for each pair of tokens, from those of all heads. Rows sum to 1 again."""
    match fusion:
        case "mean":
            fused = weights.mean(dim=1)
        case "max":
            fused = weights.amax(dim=1)
        case "min":
            fused = weights.amin(dim=1)
    if lost := int(discard * fused.shape[-1]):
        smallest = fused.topk(lost, dim=-1, largest=False).indices
        fused = fused.scatter(-1, smallest, 0.0)
    # The smallest weights of all heads may be 0 in a whole row: such a row hears everyone alike.
    total = fused.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, fused / total.clamp_min(1e-30), 1 / fused.shape[-1])


def rollout_map(
    model: ViT,
    images: Float[Tensor, "b c h w"],
    layers: Sequence[int] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Float[Tensor, "b gh gw"]:
    """The share of every patch in the vector that stands for the image: class token, mean or MAP alike.

    One row of the product, taken from the last layer down, so that no two matrices are ever multiplied.
    """
    _check(fusion, discard, residual)
    return rollout_of(walked(model, images), layers, fusion, discard, residual)


@torch.no_grad()
def rollout_of(
    walk: Walk,
    layers: Sequence[int] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Float[Tensor, "b gh gw"]:
    """`rollout_map`, of a pass that was kept."""
    _check(fusion, discard, residual)
    row = readout(walk.model, walk.features()).float()
    for index in reversed(which_layers(walk.model, layers)):
        gathered = torch.zeros_like(row)
        for rows, weights in walk.layer(index).chunks():
            gathered += (row[:, None, rows] @ fuse(weights.float(), fusion, discard))[:, 0]
        row = (1 - residual) * gathered + residual * row
    return on_grid(row, walk.layout)


def _check(fusion: Fusion, discard: float, residual: float) -> None:
    check_choice("fusion", fusion, get_args(Fusion))
    check_fraction("discard", discard)
    check_real("residual", residual, 0, 1)
