"""How far attention reaches (Figure 7, right; appendix D.7): the mean distance, in pixels, between a patch and those it
takes from. Of a convolution this would be its receptive field; heads of the lowest layers have all kinds of it.

b: batch; t = p + n: tokens; q: tokens that ask; n = gh x gw: patches.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation.capture import Layer, each_layer
from vitreous.model.vit import ViT


def distances(grid: Size, unit: Size, rows: slice = slice(None)) -> Float[Tensor, "q n"]:
    """Between the centres of patches, of `rows` of them to all, where a patch stands for `unit` pixels.

    >>> distances((2, 2), (16, 16))[0]
    tensor([ 0.0000, 16.0000, 16.0000, 22.6274])
    """
    places = torch.cartesian_prod(torch.arange(grid[0]) * float(unit[0]), torch.arange(grid[1]) * float(unit[1]))
    return torch.cdist(places[rows], places, compute_mode="donot_use_mm_for_euclid_dist")


def mean_distances(weights: Float[Tensor, "b heads q n"], apart: Float[Tensor, "q n"]) -> Float[Tensor, "b heads q"]:
    """From each patch that asks. Among patches only: what goes to the prefix is left out, and the rest counts as 1."""
    among = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1e-30)
    return (among * apart).sum(dim=-1)


@torch.no_grad()
def attention_distance(
    model: ViT, images: Float[Tensor, "b c h w"], layers: Sequence[int] | None = None
) -> Float[Tensor, "layers heads"]:
    """For every head of every layer, averaged over all patches that ask and over the images."""
    return torch.stack([layer_distance(layer) for layer in each_layer(model, images, layers)])


@torch.no_grad()
def layer_distance(layer: Layer) -> Float[Tensor, "heads"]:
    """For every head of one layer."""
    config, device, (p, grid, _) = layer.model.config, layer.before.device, layer.layout
    total = torch.zeros(config.num_heads, device=device)
    for rows, weights in layer.chunks(start=p):
        apart = distances(grid, config.patch_stride, slice(rows.start - p, rows.stop - p)).to(device)
        total += mean_distances(weights[..., p:].float(), apart).sum(dim=(0, 2))
    return total / (len(layer.before) * grid[0] * grid[1])
