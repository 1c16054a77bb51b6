"""Mixup and CutMix: mix images and their targets in pairs (arXiv 1710.09412, 1905.04899).

Image i is mixed with image i ^ 1, its neighbour, with one weight for the pair. A batch that is divided evenly between
processes, an even number to each, has the same pairs as the whole.

b: batch, c: channels, h, w: height and width.
"""

import functools

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.data.augment.config import Augmentation
from vitreous.data.rng import SampleRng


def mix(
    images: Float[Tensor, "b c h w"], targets: Float[Tensor, "b classes"], rng: SampleRng, config: Augmentation
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b classes"]]:
    """Mix half of the pairs by mixup and half by CutMix, or all by the one that is on.

    An image whose target is all zeros could not be read: it is not mixed into another. Its neighbour stays unchanged,
    and so does the last image of an odd batch.
    """
    if not config.mixup and not config.cutmix:
        return images, targets
    b, _, h, w = images.shape
    # A pair uses the numbers of its first image.
    first = torch.arange(b, device=rng.keys.device) // 2 * 2
    kind, lam, y, x = rng.uniform("mix", 4)[first].unbind(1)
    cut = kind < (0.5 if config.mixup and config.cutmix else float(config.cutmix > 0))
    lam = torch.where(cut, beta(lam, config.cutmix or 1.0), beta(lam, config.mixup or 1.0))
    lam, y, x = (numbers.to(images.device, non_blocking=True) for numbers in (lam, y, x))
    cut = cut.to(images.device, non_blocking=True)

    # One weight for every pixel: 0 or 1 in CutMix, lambda everywhere in mixup.
    inside, outside = box(lam, y, x, (h, w))
    weight = torch.where(cut[:, None, None], 1 - inside.float(), lam[:, None, None])
    lam = torch.where(cut, outside, lam)

    here = torch.arange(b, device=images.device)
    partner = (here ^ 1).clamp(max=b - 1)
    readable = targets.sum(1) > 0
    mixed = readable & readable[partner] & (partner != here)
    weight = torch.where(mixed[:, None, None], weight, 1)[:, None].to(images.dtype)
    lam = torch.where(mixed, lam, 1)[:, None].to(targets.dtype)
    return torch.lerp(images[partner], images, weight), torch.lerp(targets[partner], targets, lam)


def box(
    lam: Float[Tensor, "b"], y: Float[Tensor, "b"], x: Float[Tensor, "b"], size: tuple[int, int]
) -> tuple[Bool[Tensor, "b h w"], Float[Tensor, "b"]]:
    """CutMix's rectangles, and the fraction of the image outside of them.

    They have the image's aspect and 1 - lambda of its area, are centred anywhere and end at the borders.
    """

    def interval(centre: Tensor, side: int) -> Tensor:
        half = ((1 - lam).sqrt() * side).floor() // 2
        middle = (centre * side).floor()
        at = torch.arange(side, device=lam.device)
        return (at >= (middle - half)[:, None]) & (at < (middle + half)[:, None])

    rows, columns = interval(y, size[0]), interval(x, size[1])
    covered = rows.sum(1) * columns.sum(1)
    return rows[:, :, None] & columns[:, None, :], 1 - covered / (size[0] * size[1])


# ---- Beta(a, a) from a uniform number --------------------------------------------------------------------------------


def beta(uniform: Float[Tensor, "b"], a: float) -> Float[Tensor, "b"]:
    """Map uniform numbers to Beta(a, a), by a table of the inverse of its distribution function.

    >>> beta(torch.tensor([0.1, 0.5, 0.9]), 1.0)  # Beta(1, 1) is uniform itself
    tensor([0.1000, 0.5000, 0.9000])
    """
    table = _quantiles(a).to(uniform.device)
    lower = torch.minimum(uniform, 1 - uniform)  # the distribution is symmetric about 1/2
    at = lower * (2 * (len(table) - 1))
    index = at.long().clamp(max=len(table) - 2)
    below = torch.lerp(table[index], table[index + 1], at - index) ** (1 / min(a, 1))
    return torch.where(uniform < 0.5, below, 1 - below)


@functools.lru_cache(16)
def _quantiles(a: float) -> Float[Tensor, "n"]:
    """t = x^min(a, 1) for the quantiles x of Beta(a, a), at evenly spaced probabilities from 0 to 1/2.

    The density x^(a-1) (1-x)^(a-1) has a pole at 0 if a < 1. In t it has none: (1-x)^(a-1) dt / a is nearly constant
    there, so that both integrating and interpolating are exact enough.
    """
    power = min(a, 1)
    t = torch.linspace(0, 0.5**power, 8193, dtype=torch.float64)
    x = t ** (1 / power)
    density = x ** (a - power) * (1 - x) ** (a - 1)
    probability = torch.zeros_like(t)
    probability[1:] = torch.cumsum(density[1:] + density[:-1], 0)
    probability /= 2 * probability[-1].clone()
    wanted = torch.linspace(0, 0.5, 4097, dtype=torch.float64)
    index = torch.searchsorted(probability, wanted).clamp(1, len(t) - 1)
    left, right = probability[index - 1], probability[index]
    return torch.lerp(t[index - 1], t[index], (wanted - left) / (right - left)).float()
