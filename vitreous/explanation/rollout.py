"""Attention rollout (Abnar and Zuidema, arXiv 2005.00928): the product of the attention of all layers and residuals.

It shows which input patches can reach the output by mixing alone. It is the same for every class.

b: batch; t: tokens; q: rows at a time; gh, gw: grid height and width.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import check_choice, check_fraction, check_real
from vitreous.explanation.captured import CapturedForward, layer_indices

Fusion = Literal["mean", "max", "min"]


@torch.no_grad()
def rollout(
    captured: CapturedForward,
    layers: Sequence[int] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Float[Tensor, "b t t"]:
    """Weight of every input token (column) in every output token (row). Rows sum to 1.

    fusion: reduction over the heads of a layer.
    discard: fraction of the weights of every row, its smallest, that are set to 0.
    residual: weight of a token itself in each layer.
    """
    _check(fusion, discard, residual)
    b, t, _ = captured.states[0].shape
    total = torch.eye(t, device=captured.images.device).expand(b, t, t)
    for layer in captured.layers(layers):
        before, total = total, torch.empty(b, t, t, device=total.device)
        for rows, weights in layer.chunks():
            mixed = fuse(weights.float(), fusion, discard)
            total[:, rows] = (1 - residual) * (mixed @ before) + residual * before[:, rows]
    return total


@torch.no_grad()
def rollout_map(
    captured: CapturedForward,
    layers: Sequence[int] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Float[Tensor, "b gh gw"]:
    """Weight of every patch in the pooled vector of the image: `rollout` times the pooling weights.

    Only this row of the product is computed, from the last layer down.
    """
    _check(fusion, discard, residual)
    row = captured.pooling_weights().float()
    for index in reversed(layer_indices(captured.model, layers)):
        gathered = torch.zeros_like(row)
        for rows, weights in captured.layer(index).chunks():
            gathered += (row[:, None, rows] @ fuse(weights.float(), fusion, discard))[:, 0]
        row = (1 - residual) * gathered + residual * row
    return captured.on_grid(row)


def fuse(weights: Float[Tensor, "b heads q t"], fusion: Fusion, discard: float) -> Float[Tensor, "b q t"]:
    """Reduce the weights of all heads to one for each pair of tokens. Rows sum to 1."""
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
    total = fused.sum(dim=-1, keepdim=True)  # 0 where heads have no token in common: such a row becomes uniform
    return torch.where(total > 0, fused / total.clamp_min(1e-30), 1 / fused.shape[-1])


def _check(fusion: Fusion, discard: float, residual: float) -> None:
    check_choice("fusion", fusion, get_args(Fusion))
    check_fraction("discard", discard)
    check_real("residual", residual, 0, 1)
