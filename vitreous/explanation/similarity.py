"""Cosine similarity of tokens, and similarity of positions (Figure 7, centre) for every kind of position embedding.

b: batch; t: tokens; q: some of them; gh, gw: grid height and width; n = gh x gw: patches.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation.captured import CapturedForward, layer_indices, token_index
from vitreous.model.pooling import all_tokens
from vitreous.model.position import AddedPosition, ConditionalPosition, PositionEmbedding
from vitreous.model.tokens import Features, Layout
from vitreous.model.vit import ViT


def cosines(features: Features, rows: slice = slice(None)) -> Float[Tensor, "b q t"]:
    """Cosine similarity between tokens, prefix and patches, of `rows` of them to all."""
    tokens = F.normalize(all_tokens(features).float(), dim=-1)
    return tokens[:, rows] @ tokens.mT


def token_similarity(
    captured: CapturedForward, query: int | Size, layers: Sequence[int] | None = None
) -> Float[Tensor, "layers b gh gw"]:
    """Cosine similarity of one token, or of the patch at a row and column, to every patch after each layer."""
    index = token_index(captured.layout, query)
    rows = [
        cosines(captured.features(layer), slice(index, index + 1))[:, 0]
        for layer in layer_indices(captured.model, layers)
    ]
    return captured.on_grid(torch.stack(rows))


@dataclass(frozen=True)
class PositionSimilarity:
    """Similarity of every position (first two dimensions) to every position (last two)."""

    values: Float[Tensor, "gh gw gh gw"] | None  # None if the model has no positions to compare
    text: str  # what is measured, or why nothing is
    bounded: bool = True  # the values lie between -1 and 1, as cosines do


@torch.no_grad()
def position_similarity(model: ViT, grid: Size | None = None) -> PositionSimilarity:
    """Compare positions on the model's grid, or on another, to which they are resampled as for images of that size."""
    grid = grid or model.config.grid
    device, position = next(model.parameters()).device, model.position

    def found(pairs: Float[Tensor, "n n"], text: str, bounded: bool = True) -> PositionSimilarity:
        return PositionSimilarity(pairs.reshape(*grid, *grid).cpu(), text, bounded)

    if isinstance(position, AddedPosition):
        vectors = F.normalize(position.table_at(grid, device).float().flatten(0, 1), dim=-1)
        return found(vectors @ vectors.T, "Cosine similarity of the vectors that are added to the patches.")
    terms = position.attend(Layout(0, grid), device)
    if terms.bias is not None:
        text = "Bias that is added to the attention between two positions before the softmax, averaged over heads."
        return found(terms.bias.float().mean(dim=-3), text, bounded=False)
    if terms.rotation is not None:
        cos, sin = (part.float() for part in terms.rotation)
        text = (
            "Agreement of the rotations of two positions: mean cosine of the angle between them over all frequencies. "
            "They are fixed, not learned."
        )
        return found((cos @ cos.T + sin @ sin.T) / cos.shape[1], text)
    if isinstance(position, ConditionalPosition):
        text = "positions come from a convolution between blocks, so they depend on the image"
    elif type(position) is PositionEmbedding:
        text = "the model has no position embedding: to it an image is a bag of patches"
    else:
        text = f"{type(position).__name__} has neither a table of positions nor a term in attention"
    return PositionSimilarity(None, text)
