"""PCA of patch features and filters, and similarity of patches and positions (ViT paper, figure 7, left and centre).

b: batch; t: tokens; q: queries; n = gh x gw: patches; d: width; c: channels; ph, pw: patch height and width;
k: components.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation.attention_and_logit_lens import CapturedForward, layer_indices
from vitreous.model.pooling import all_tokens
from vitreous.model.position import ConditionalPosition, PositionEmbedding
from vitreous.model.protocol import Model
from vitreous.model.tokens import Features, Layout

# ---- Similarity ------------------------------------------------------------------------------------------------------


def cosines(features: Features, rows: slice = slice(None)) -> Float[Tensor, "b q t"]:
    """Compute the cosine similarity of the tokens in the slice `rows` to all prefix and patch tokens."""
    tokens = F.normalize(all_tokens(features).float(), dim=-1)
    return tokens[:, rows] @ tokens.mT


def token_similarity(
    captured: CapturedForward, query: int | Size, layers: Sequence[int] | None = None
) -> Float[Tensor, "layers b gh gw"]:
    """Compute the cosine similarity of one token to each patch after each layer."""
    maps = []
    for layer in layer_indices(captured.model.config, layers):
        index = captured.token_index(layer, query)
        maps.append(captured.on_map(cosines(captured.features(layer), slice(index, index + 1))[:, 0], layer))
    return torch.stack(maps)


@dataclass(frozen=True)
class PositionSimilarity:
    """Similarity of each position (first two dimensions) to every position (last two dimensions)."""

    values: Float[Tensor, "gh gw gh gw"] | None  # None if the model has no positions to compare
    text: str  # description of the values, or the reason why `values` is None
    bounded: bool = True  # True if the values are cosines, in [-1, 1]


@torch.no_grad()
def position_similarity(model: Model, grid: Size | None = None) -> PositionSimilarity:
    """Compare all positions with each other. If `grid` is given, resample position embeddings first."""
    grid = grid or model.config.position_grid
    device, position = next(model.parameters()).device, model.positions

    def similarity(pairs: Float[Tensor, "n n"], text: str, bounded: bool = True) -> PositionSimilarity:
        return PositionSimilarity(pairs.reshape(*grid, *grid).cpu(), text, bounded)

    if position.added is not None:
        vectors = F.normalize(position.added.table_at(grid, device).float().flatten(0, 1), dim=-1)
        return similarity(vectors @ vectors.T, "Cosine similarity of the position embeddings.")
    terms = position.attend(Layout(0, grid), device)
    if terms.bias is not None:
        text = "Relative position bias of the attention logits, averaged over heads."
        return similarity(terms.bias.float().mean(dim=-3), text, bounded=False)
    if terms.rotation is not None:
        cos, sin = (part.float() for part in terms.rotation)
        over = "layers, heads and frequencies" if terms.per_layer else "frequencies"
        kind = "are learned" if terms.per_layer else "are fixed, not learned"
        text = (
            "Similarity of rotary position embeddings: cosine of the angle between two positions, averaged over "
            f"{over}. Rotary embeddings {kind}."
        )
        pairs = (cos @ cos.mT + sin @ sin.mT) / cos.shape[-1]
        return similarity(pairs.flatten(0, -3).mean(dim=0) if terms.per_layer else pairs, text)
    if isinstance(position, ConditionalPosition):
        text = "the position embedding is a convolution and depends on the image"
    elif type(position) is PositionEmbedding:
        text = "the model has no position embedding"
    else:
        text = f"{type(position).__name__} has no position table, attention bias or rotation"
    return PositionSimilarity(None, text)


# ---- Patch features --------------------------------------------------------------------------------------------------


def principal(features: Float[Tensor, "n d"], count: int) -> Float[Tensor, "n k"]:
    """Project patches onto the first `count` principal components, each with its sign chosen for positive skewness."""
    wide = features.cpu().double()  # not every accelerator supports float64
    left, lengths, _ = torch.linalg.svd(wide - wide.mean(dim=0), full_matrices=False)
    scores = (left * lengths)[:, :count]
    scores = torch.where(scores.pow(3).sum(dim=0) < 0, -scores, scores).float().to(features.device)
    return F.pad(scores, (0, count - scores.shape[1]))  # if there are fewer components than `count`


def foreground(features: Float[Tensor, "n d"], grid: Size) -> tuple[Float[Tensor, "gh gw"], Bool[Tensor, "gh gw"]]:
    """Return the first principal component and a mask of the patches above Otsu's threshold.

    The sign of the component is chosen so that border patches have low values.
    """
    first = principal(features, 1)[:, 0].reshape(grid)
    edge = torch.ones(grid, dtype=torch.bool, device=first.device)
    edge[1:-1, 1:-1] = False
    if not edge.all() and first[edge].mean() > first[~edge].mean():
        first = -first
    return first, first > otsu_threshold(first.flatten())


def otsu_threshold(values: Float[Tensor, "n"]) -> float:
    """Return the threshold that maximises the variance between lower and higher values (Otsu's method)."""
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
    """Return the first three principal components as RGB in [0, 1]. Patches outside `inside` are ignored and black."""
    chosen = torch.ones(grid, dtype=torch.bool, device=features.device) if inside is None else inside
    flat = chosen.flatten()
    colours = torch.zeros(len(features), 3, device=features.device)
    if flat.any():
        scores = principal(features[flat], 3)
        low, high = (torch.quantile(scores, q, dim=0) for q in (0.01, 0.99))  # robust to outliers
        colours[flat] = ((scores - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    return colours.reshape(*grid, 3)


def component_map(
    captured: CapturedForward, layer: int, inside: Bool[Tensor, "lh lw"] | None = None
) -> Float[Tensor, "gh gw 3"]:
    """Return the `pca_colours` of the first image after a layer, on the map. Patches outside `inside` are NaN."""
    features = captured.features(layer)
    colours = pca_colours(features.patches[0], features.grid, inside)
    colours = colours if inside is None else colours.where(inside[..., None], torch.nan)
    return captured.enlarged(colours.movedim(-1, 0), layer).movedim(0, -1)


# ---- Filters ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FilterComponents:
    """Principal components of filters, sorted by descending variance."""

    patterns: Float[Tensor, "k c ph pw"]  # unit norm; the entry with the largest magnitude is positive
    variance: Float[Tensor, "k"]  # explained variance ratio
    source: str  # name of the layer


@torch.no_grad()
def filter_components(model: Model, count: int = 28) -> FilterComponents:
    """Compute the principal components of the filters of the first layer."""
    filters, source = model.image_filters
    flat = filters.detach().float().cpu().flatten(1)
    _, lengths, patterns = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    patterns, variance = patterns[:count], lengths.square()
    patterns = patterns * patterns.gather(1, patterns.abs().argmax(dim=1, keepdim=True)).sign()
    fractions = (variance / variance.sum().clamp_min(1e-30))[:count]
    return FilterComponents(patterns.reshape(-1, *filters.shape[1:]), fractions, source)


def filter_images(patterns: Float[Tensor, "k c ph pw"]) -> UInt8[np.ndarray, "k ph pw 3"]:
    """Draw each pattern in colour at full contrast, with 0 as mid-grey."""
    scaled = 0.5 + 0.5 * patterns / patterns.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
    rgb = scaled[:, :3] if patterns.shape[1] >= 3 else scaled[:, :1].expand(-1, 3, -1, -1)
    return (rgb.permute(0, 2, 3, 1) * 255).round().byte().contiguous().numpy()
