"""Principal components and cosine similarity of patch features, positions (Figure 7, centre) and filters (left).

b: batch; t: tokens; q: some of them; n = gh x gw: patches; d: width, or filters; c: channels; ph, pw: patch height and
width; k: components.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation.attention_and_logit_lens import CapturedForward, layer_indices, token_index
from vitreous.model.pooling import all_tokens
from vitreous.model.position import AddedPosition, ConditionalPosition, PositionEmbedding
from vitreous.model.resnet import HybridStem
from vitreous.model.tokens import Features, Layout
from vitreous.model.vit import ViT

# ---- Similarity ------------------------------------------------------------------------------------------------------


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


# ---- Patch features --------------------------------------------------------------------------------------------------


def principal(features: Float[Tensor, "n d"], count: int) -> Float[Tensor, "n k"]:
    """Scores of every patch on the first principal components.

    The sign of a component is chosen so that its longer tail is positive, which does not depend on the order of the
    patches or on a rotation of the features.
    """
    wide = features.cpu().double()  # not every accelerator has float64
    left, lengths, _ = torch.linalg.svd(wide - wide.mean(dim=0), full_matrices=False)
    scores = (left * lengths)[:, :count]
    scores = torch.where(scores.pow(3).sum(dim=0) < 0, -scores, scores).float().to(features.device)
    return F.pad(scores, (0, count - scores.shape[1]))  # few patches or a small width have fewer components


def foreground(features: Float[Tensor, "n d"], grid: Size) -> tuple[Float[Tensor, "gh gw"], Bool[Tensor, "gh gw"]]:
    """First component, and where it is above Otsu's threshold; its sign makes it lower at the border than inside."""
    first = principal(features, 1)[:, 0].reshape(grid)
    edge = torch.ones(grid, dtype=torch.bool, device=first.device)
    edge[1:-1, 1:-1] = False
    if not edge.all() and first[edge].mean() > first[~edge].mean():
        first = -first
    return first, first > otsu_threshold(first.flatten())


def otsu_threshold(values: Float[Tensor, "n"]) -> float:
    """Threshold with the largest variance between the values below and above it."""
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
    """Three components as red, green and blue, from 0 to 1; patches outside of `inside` are ignored and black."""
    chosen = torch.ones(grid, dtype=torch.bool, device=features.device) if inside is None else inside
    flat = chosen.flatten()
    colours = torch.zeros(len(features), 3, device=features.device)
    if flat.any():
        scores = principal(features[flat], 3)
        low, high = (torch.quantile(scores, q, dim=0) for q in (0.01, 0.99))  # an outlier would turn all others grey
        colours[flat] = ((scores - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    return colours.reshape(*grid, 3)


# ---- Filters ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterComponents:
    """Principal components of filters, in descending order of variance."""

    patterns: Float[Tensor, "k c ph pw"]  # of length 1; the largest entry is positive
    variance: Float[Tensor, "k"]  # fraction of the filters' variance
    source: str  # the layer with these filters


@torch.no_grad()
def filter_components(model: ViT, count: int = 28) -> FilterComponents:
    """Components of the patch embedding; of a hybrid, whose patches are not pixels, of the first convolution."""
    if isinstance(model.stem, HybridStem):
        filters, source = model.stem.root.weight, "the first convolution of the stem"
    else:
        filters, source = model.patches.projection.weight, "the patch embedding"
    flat = filters.detach().float().cpu().flatten(1)
    _, lengths, patterns = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    patterns, variance = patterns[:count], lengths.square()
    patterns = patterns * patterns.gather(1, patterns.abs().argmax(dim=1, keepdim=True)).sign()
    fractions = (variance / variance.sum().clamp_min(1e-30))[:count]
    return FilterComponents(patterns.reshape(-1, *filters.shape[1:]), fractions, source)


def filter_images(patterns: Float[Tensor, "k c ph pw"]) -> UInt8[np.ndarray, "k ph pw 3"]:
    """Draw each pattern in colour at full contrast; 0 becomes mid-grey."""
    scaled = 0.5 + 0.5 * patterns / patterns.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
    rgb = scaled[:, :3] if patterns.shape[1] >= 3 else scaled[:, :1].expand(-1, 3, -1, -1)
    return (rgb.permute(0, 2, 3, 1) * 255).round().byte().contiguous().numpy()
