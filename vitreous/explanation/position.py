"""What a model knows of places: how alike two places are to it (Figure 7, centre), for every kind of position.

Places that are near each other, or in one row or column, come out alike where the kind has learned, or was given, the
geometry of the image.

gh, gw: grid height and width; n = gh x gw: places.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model.position import AddedPosition, ConditionalPosition, PositionEmbedding
from vitreous.model.tokens import Layout
from vitreous.model.vit import ViT


@dataclass(frozen=True)
class PlaceSimilarity:
    """Similarity of every place (first two dimensions) to every place (last two), or why there is none."""

    values: Float[Tensor, "gh gw gh gw"] | None
    words: str  # what is measured, or why nothing is
    bounded: bool = True  # the values lie between -1 and 1, as cosines do


@torch.no_grad()
def position_similarity(model: ViT, grid: Size | None = None) -> PlaceSimilarity:
    """At the model's own grid, or at another, to which positions are resampled as they are for images of that size."""
    grid = grid or model.config.grid
    device = next(model.parameters()).device
    position = model.position
    if isinstance(position, AddedPosition):
        vectors = F.normalize(position.table_at(grid, device).float().flatten(0, 1), dim=-1)
        words = "The cosine similarity of the vectors that are added to the patches."
        return PlaceSimilarity(_by_places(vectors @ vectors.T, grid), words)
    terms = position.attend(Layout(0, grid), device)
    if terms.bias is not None:
        words = "What is added to attention between two places, before the softmax: the mean over heads."
        return PlaceSimilarity(_by_places(terms.bias.float().mean(dim=-3), grid), words, bounded=False)
    if terms.rotation is not None:
        cos, sin = (part.float() for part in terms.rotation)
        words = (
            "How well the rotations of two places agree: the mean cosine of the angle between them, over all "
            "frequencies. Nothing of it is learned."
        )
        return PlaceSimilarity(_by_places((cos @ cos.T + sin @ sin.T) / cos.shape[1], grid), words)
    if isinstance(position, ConditionalPosition):
        words = (
            "the model has no table of positions: a convolution between blocks lets each patch hear its neighbours, so "
            "what it knows of places depends on the picture"
        )
        return PlaceSimilarity(None, words)
    if type(position) is PositionEmbedding:
        return PlaceSimilarity(None, "the model has no positions: to it an image is a bag of patches")
    return PlaceSimilarity(None, f"{type(position).__name__} tells places neither by a table nor to attention")


def _by_places(pairs: Float[Tensor, "n n"], grid: Size) -> Float[Tensor, "gh gw gh gw"]:
    return pairs.reshape(*grid, *grid).cpu()
