"""What a patch is looked at with (Figure 7, left): the leading principal components of the filters that embed it.

d: filters; c: channels; ph, pw: patch height and width; k: components.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.model.resnet import HybridStem
from vitreous.model.vit import ViT


@dataclass(frozen=True)
class FilterComponents:
    """Patterns of one patch, the one with most variance first."""

    patterns: Float[Tensor, "k c ph pw"]  # each of length 1, its largest entry positive
    shares: Float[Tensor, "k"]  # of the filters' variance
    words: str  # whose filters they are


@torch.no_grad()
def filter_components(model: ViT, count: int = 28) -> FilterComponents:
    """Of the patch embedding; of a hybrid, whose patches are cut from a feature map, of the first convolution."""
    if isinstance(model.stem, HybridStem):
        filters = model.stem.root.weight
        words = "the first convolution of the stem: a hybrid's patches are not made of pixels"
    else:
        filters = model.patches.projection.weight
        words = "the patch embedding"
    flat = filters.detach().float().cpu().flatten(1)
    _, lengths, patterns = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    patterns, variance = patterns[:count], lengths.square()
    largest = patterns.gather(1, patterns.abs().argmax(dim=1, keepdim=True))
    patterns = patterns * largest.sign()  # a component may point either way; this makes it the same every time
    shares = (variance / variance.sum().clamp_min(1e-30))[:count]
    return FilterComponents(patterns.reshape(-1, *filters.shape[1:]), shares, words)


def as_pictures(patterns: Float[Tensor, "k c ph pw"]) -> Float[Tensor, "k c ph pw"]:
    """From 0 to 1 for display, grey where a pattern is 0; each as strong as it can be."""
    return 0.5 + 0.5 * patterns / patterns.abs().amax(dim=(1, 2, 3), keepdim=True).clamp_min(1e-30)
