"""Mixup and CutMix (arXiv 1710.09412, 1905.04899).

Image i is mixed with its neighbour i ^ 1, with one weight per pair. If each process has an even number of images, the
pairs do not depend on the number of processes.

b: batch; c: channels; h, w: height and width.
"""

import functools

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.common.rng import SampleRng
from vitreous.data.augment.config import Augmentation


def mix(
    images: Float[Tensor, "b c h w"],
    targets: Float[Tensor, "b classes"],
    rng: SampleRng,
    config: Augmentation,
    readable: Bool[Tensor, "b"] | None = None,
) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b classes"]]:
    """Mix each pair of neighbouring images and their targets.

    If both mixup and CutMix are enabled, each pair is mixed by one of them, chosen with equal probability. Pairs with
    an image that is not `readable` are not mixed; by default, an all-zero target marks an unreadable image. In a batch
    of odd size, the last image is not mixed.
    """
    if not config.mixup and not config.cutmix:
        return images, targets
    b, _, h, w = images.shape
    # Both images of a pair use the random numbers of the first image.
    first = torch.arange(b, device=rng.keys.device) // 2 * 2
    kind, lam, y, x = rng.uniform("mix", 4)[first].unbind(1)
    cut = kind < (0.5 if config.mixup and config.cutmix else float(config.cutmix > 0))
    lam = torch.where(cut, beta(lam, config.cutmix or 1.0), beta(lam, config.mixup or 1.0))
    lam, y, x = (numbers.to(images.device, non_blocking=True) for numbers in (lam, y, x))
    cut = cut.to(images.device, non_blocking=True)

    # Per-pixel weight: 0 or 1 for CutMix, lambda everywhere for mixup.
    inside, outside = box(lam, y, x, (h, w))
    weight = torch.where(cut[:, None, None], 1 - inside.float(), lam[:, None, None])
    lam = torch.where(cut, outside, lam)

    here = torch.arange(b, device=images.device)
    partner = (here ^ 1).clamp(max=b - 1)
    readable = targets.sum(1) > 0 if readable is None else readable
    mixed = readable & readable[partner] & (partner != here)
    weight = torch.where(mixed[:, None, None], weight, 1)[:, None].to(images.dtype)
    lam = torch.where(mixed, lam, 1)[:, None].to(targets.dtype)
    return torch.lerp(images[partner], images, weight), torch.lerp(targets[partner], targets, lam)


def box(
    lam: Float[Tensor, "b"], y: Float[Tensor, "b"], x: Float[Tensor, "b"], size: tuple[int, int]
) -> tuple[Bool[Tensor, "b h w"], Float[Tensor, "b"]]:
    """Return CutMix's rectangles as masks, and the fraction of each image outside its rectangle.

    A rectangle has the aspect ratio of the image and a fraction 1 - `lam` of its area. `y` and `x` are the relative
    coordinates of the centre, from 0 to 1. Rectangles are clipped at the borders of the image.
    """

    def interval(centre: Tensor, side: int) -> Tensor:
        half = ((1 - lam).sqrt() * side).floor() // 2
        middle = (centre * side).floor()
        at = torch.arange(side, device=lam.device)
        return (at >= (middle - half)[:, None]) & (at < (middle + half)[:, None])

    rows, columns = interval(y, size[0]), interval(x, size[1])
    covered = rows.sum(1) * columns.sum(1)
    return rows[:, :, None] & columns[:, None, :], 1 - covered / (size[0] * size[1])


def beta(uniform: Float[Tensor, "b"], a: float) -> Float[Tensor, "b"]:
    """Map uniform numbers to samples from Beta(a, a) with a table of the inverse CDF."""
    table = _quantiles(a).to(uniform.device)
    lower = torch.minimum(uniform, 1 - uniform)  # the distribution is symmetric about 1/2
    at = lower * (2 * (len(table) - 1))
    index = at.long().clamp(max=len(table) - 2)
    below = torch.lerp(table[index], table[index + 1], at - index) ** (1 / min(a, 1))
    return torch.where(uniform < 0.5, below, 1 - below)


@functools.lru_cache(16)
def _quantiles(a: float) -> Float[Tensor, "n"]:
    """Tabulate t = x^min(a, 1) for the quantiles x of Beta(a, a), at evenly spaced probabilities from 0 to 1/2.

    For a < 1 the density x^(a-1) (1-x)^(a-1) has a pole at 0. The density of t, (1-x)^(a-1) / a, is nearly constant
    there, which makes integration and interpolation accurate.
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
