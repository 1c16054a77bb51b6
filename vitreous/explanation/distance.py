"""Mean attention distance (Figure 7, right; appendix D.7): distance in pixels from a patch to those it attends to.

It is the analogue of a convolution's receptive field.

b: batch; q: queries; n = gh x gw: patches.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation.captured import CapturedForward, no_step


def distances(grid: Size, patch_stride: Size, rows: slice = slice(None)) -> Float[Tensor, "q n"]:
    """Distances in pixels between the centres of patches, of `rows` of them to all.

    >>> distances((2, 2), (16, 16))[0]
    tensor([ 0.0000, 16.0000, 16.0000, 22.6274])
    """
    y, x = (torch.arange(count) * float(stride) for count, stride in zip(grid, patch_stride, strict=True))
    places = torch.cartesian_prod(y, x)
    return torch.cdist(places[rows], places, compute_mode="donot_use_mm_for_euclid_dist")


def attention_distance(
    captured: CapturedForward, layers: Sequence[int] | None = None, between: Callable[[], None] = no_step
) -> Float[Tensor, "layers heads"]:
    """Mean distance of every head of every layer, over all patches and images; prefix tokens are ignored."""
    (p, grid, _), config, device = captured.layout, captured.model.config, captured.images.device
    found = []
    for layer in captured.layers(layers):
        between()
        total = torch.zeros(config.num_heads, device=device)
        for rows, weights in layer.chunks(start=p):
            apart = distances(grid, config.patch_stride, slice(rows.start - p, rows.stop - p)).to(device)
            patches = weights[..., p:].float()
            patches = patches / patches.sum(dim=-1, keepdim=True).clamp_min(1e-30)
            total += (patches * apart).sum(dim=-1).sum(dim=(0, 2))
        found.append(total / (len(captured.images) * grid[0] * grid[1]))
    return torch.stack(found)
