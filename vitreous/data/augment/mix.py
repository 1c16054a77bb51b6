"""Mixup and CutMix: pictures and their targets are mixed in pairs (arXiv 1710.09412, 1905.04899).

Picture i is mixed with picture i ^ 1, its neighbour, with a share that the pair has to itself. A batch that is divided
evenly between processes, an even number to each, has the same pairs as the whole.

b: batch, c: channels, h, w: height and width.
"""

import functools

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.data.augment.config import Augmentation
from vitreous.data.rng import Draws


def mix(
    images: Float[Tensor, "b c h w"], targets: Float[Tensor, "b classes"], draws: Draws, config: Augmentation
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b classes"]]:
    """Half of the pairs by mixup and half by CutMix, or all by the one that is on.

    A picture whose target is nothing but zeros could not be read: it is not mixed into another. Its neighbour stays as
    it is, and so does the last picture of an odd batch.
    """
    if not config.mixup and not config.cutmix:
        return images, targets
    b, _, h, w = images.shape
    # All numbers of a pair are those of its first picture.
    first = torch.arange(b, device=draws.keys.device) // 2 * 2
    kind, share, y, x = draws.uniform("mix", 4)[first].unbind(1)
    cut = kind < (0.5 if config.mixup and config.cutmix else float(config.cutmix > 0))
    share = torch.where(cut, beta(share, config.cutmix or 1.0), beta(share, config.mixup or 1.0))
    share, y, x = (numbers.to(images.device, non_blocking=True) for numbers in (share, y, x))
    cut = cut.to(images.device, non_blocking=True)

    # One weight for every pixel: 0 or 1 in CutMix, the share everywhere in mixup.
    inside, outside = box(share, y, x, (h, w))
    weight = torch.where(cut[:, None, None], 1 - inside.float(), share[:, None, None])
    share = torch.where(cut, outside, share)

    here = torch.arange(b, device=images.device)
    partner = (here ^ 1).clamp(max=b - 1)
    readable = targets.sum(1) > 0
    mixed = readable & readable[partner] & (partner != here)
    weight = torch.where(mixed[:, None, None], weight, 1)[:, None].to(images.dtype)
    share = torch.where(mixed, share, 1)[:, None].to(targets.dtype)
    return torch.lerp(images[partner], images, weight), torch.lerp(targets[partner], targets, share)


def box(
    share: Float[Tensor, "b"], y: Float[Tensor, "b"], x: Float[Tensor, "b"], size: tuple[int, int]
) -> tuple[Bool[Tensor, "b h w"], Float[Tensor, "b"]]:
    """CutMix's rectangles: of the picture's aspect, 1 - share of its area, centred anywhere and cut at the borders.

    Also the share that is truly left to the picture outside.
    """

    def stretch(centre: Tensor, side: int) -> Tensor:
        half = ((1 - share).sqrt() * side).floor() // 2
        middle = (centre * side).floor()
        at = torch.arange(side, device=share.device)
        return (at >= (middle - half)[:, None]) & (at < (middle + half)[:, None])

    rows, columns = stretch(y, size[0]), stretch(x, size[1])
    covered = rows.sum(1) * columns.sum(1)
    return rows[:, :, None] & columns[:, None, :], 1 - covered / (size[0] * size[1])


# ---- Beta(a, a) from a uniform number --------------------------------------------------------------------------------


def beta(uniform: Float[Tensor, "b"], a: float) -> Float[Tensor, "b"]:
    """Put uniform numbers through the inverse of Beta(a, a)'s distribution function, by a table.

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
