"""What tokens hold: how alike they are, their principal components as colours, and what the head would say of them.

b: batch; n = gh x gw: patches; t: tokens; q: some of them; d: width; k: components.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation.capture import Walk, at_rest, layout_of, token_index, walked, which_layers
from vitreous.model.pooling import all_tokens
from vitreous.model.tokens import Features
from vitreous.model.vit import ViT


@torch.no_grad()
def token_similarity(
    model: ViT, images: Float[Tensor, "b c h w"], query: int | Size, layers: Sequence[int] | None = None
) -> Float[Tensor, "layers b gh gw"]:
    """The cosine between one token, or the patch at a row and column, and every patch, after each layer."""
    layout = layout_of(model, images)
    index = token_index(layout, query)
    found = []
    with at_rest(model):
        for features in model.intermediate(images, which_layers(model, layers), norm=True):
            tokens = F.normalize(all_tokens(features).float(), dim=-1)
            alike = (tokens[:, layout.num_prefix_tokens :] @ tokens[:, index, :, None])[..., 0]
            found.append(alike.reshape(-1, *layout.grid))
    return torch.stack(found)


def logit_lens(
    model: ViT, images: Float[Tensor, "b c h w"], layers: Sequence[int] | None = None
) -> Float[Tensor, "layers b classes"]:
    """What the answer would be if the model stopped after each layer: final norm, pooling and head on its tokens."""
    return lens_of(walked(model, images), layers)


@torch.no_grad()
def lens_of(walk: Walk, layers: Sequence[int] | None = None) -> Float[Tensor, "layers b classes"]:
    """`logit_lens`, of a pass that was kept."""
    with at_rest(walk.model):
        found = (walk.features(layer) for layer in which_layers(walk.model, layers))
        return torch.stack([walk.model.classify(features).float() for features in found])


def cosines(features: Features, rows: slice = slice(None)) -> Float[Tensor, "b q t"]:
    """Between tokens, of `rows` of them to all, prefix and patches alike."""
    tokens = F.normalize(all_tokens(features).float(), dim=-1)
    return tokens[:, rows] @ tokens.mT


# ---- Principal components of patch features (the picture of DINOv2, arXiv 2304.07193) --------------------------------


def principal(features: Float[Tensor, "n d"], count: int) -> Float[Tensor, "n k"]:
    """Every patch's place along the directions in which patches differ most.

    A direction may point either way. It is turned so that the longer tail is positive, which depends on the patches
    alone: not on their order, nor on how the features are rotated.
    """
    wide = features.cpu().double()  # not every accelerator has float64
    centred = wide - wide.mean(dim=0)
    left, lengths, _ = torch.linalg.svd(centred, full_matrices=False)
    scores = (left * lengths)[:, :count]
    tail = scores.pow(3).sum(dim=0)
    scores = torch.where(tail < 0, -scores, scores).float().to(features.device)
    return F.pad(scores, (0, count - scores.shape[1]))  # so few patches, or so narrow, that there are no more


def foreground(features: Float[Tensor, "n d"], grid: Size) -> tuple[Float[Tensor, "gh gw"], Bool[Tensor, "gh gw"]]:
    """The first component, positive inside: and where it is above the threshold that parts it best (Otsu's).

    What a picture is of seldom fills its border. So the component is turned such that it is lower there than inside.
    """
    first = principal(features, 1)[:, 0].reshape(grid)
    edge = torch.ones(grid, dtype=torch.bool, device=first.device)
    edge[1:-1, 1:-1] = False
    if not edge.all() and first[edge].mean() > first[~edge].mean():
        first = -first
    return first, first > two_groups(first.flatten())


def two_groups(values: Float[Tensor, "n"]) -> float:
    """The threshold with the most variance between those below and those above (Otsu).

    >>> round(two_groups(torch.tensor([0.0, 0.1, 0.2, 5.0, 5.1])), 1)
    2.6
    """
    ordered = values.cpu().double().sort().values
    n = len(ordered)
    if n < 2:
        return 0.0
    below = torch.arange(1, n)
    sums = ordered.cumsum(0)
    means = sums[:-1] / below, (sums[-1] - sums[:-1]) / (n - below)
    best = int((below * (n - below) * (means[1] - means[0]).square()).argmax())
    return float(ordered[best] + ordered[best + 1]) / 2


def pca_colours(
    features: Float[Tensor, "n d"], grid: Size, inside: Bool[Tensor, "gh gw"] | None = None
) -> Float[Tensor, "gh gw 3"]:
    """Three components as red, green and blue, from 0 to 1: patches of like colour are alike to the model.

    `inside` gives the colours to some of the patches, which then differ more visibly; the others are black.
    """
    chosen = torch.ones(grid, dtype=torch.bool, device=features.device) if inside is None else inside
    flat = chosen.flatten()
    colours = torch.zeros(len(features), 3, device=features.device)
    if flat.any():
        scores = principal(features[flat], 3)
        # The outermost hundredths do not count, or one odd patch would leave all others grey.
        low, high = (torch.quantile(scores, q, dim=0) for q in (0.01, 0.99))
        colours[flat] = ((scores - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    return colours.reshape(*grid, 3)
