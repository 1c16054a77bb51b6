"""Batch augmentation on the device: padded crop, flip, policy, colour jitter, random erasing, mixup and CutMix.

The random resized crop runs earlier, in the workers (vitreous.data.image.crop). The random numbers of an image do not
depend on the rest of its batch, and pixels stay uint8 until the end. The RNG runs on the CPU to avoid GPU syncs.

b: batch; c: channels; h, w: height and width; n: erased images.
"""

import functools
import math

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitreous.common.rng import SampleRng, hash_bits
from vitreous.data.augment.config import Augmentation, check_with_masks
from vitreous.data.augment.operations import Images, draw_flips, flip, jitter, padded_crop
from vitreous.data.augment.policies import randaugment, three, trivial

ERASED_AREA = (0.02, 1 / 3)  # range, as a fraction of the image
ERASED_ASPECT = (0.3, 1 / 0.3)


def augment(images: Images, rng: SampleRng, config: Augmentation) -> Float[Tensor, "b c h w"]:
    """Apply the padded crop, flip, policy, colour jitter and random erasing of `config`. The result is in [0, 1]."""
    images = _crop_and_flip(images, rng, config)
    match config.policy:
        case "randaugment":
            images = randaugment(images, rng, config.policy_layers, config.policy_magnitude)
        case "trivial":
            images = trivial(images, rng)
        case "three":
            images = three(images, rng)
        case "none":
            pass
    if config.colour_jitter:
        numbers = rng.uniform("colour jitter", 4).to(images.device, non_blocking=True)
        factors = 1 + config.colour_jitter * (2 * numbers[:, :3] - 1)
        images = jitter(images, factors, (6 * numbers[:, 3]).long())
    if config.erasing:
        images = erase(images, rng, config.erasing)
    return images.float() / 255


def augment_with_masks(
    images: Images, masks: UInt8[Tensor, "b h w"], rng: SampleRng, config: Augmentation
) -> tuple[Float[Tensor, "b c h w"], UInt8[Tensor, "b h w"]]:
    """Augment images, and crop and flip their masks in the same way.

    Raise BadValue if `config` contains augmentations that are not implemented for masks. Masks are reflection-padded
    like images, and keep their labels in erased rectangles.
    """
    check_with_masks(config)
    return augment(images, rng, config), _crop_and_flip(masks[:, None], rng, config)[:, 0]


def _crop_and_flip(images: Images, rng: SampleRng, config: Augmentation) -> Images:
    images = images.contiguous()  # batches from the loader may be channels-last
    if config.crop == "padded":
        positions = rng.uniform("padded crop", 2).to(images.device, non_blocking=True)
        images = padded_crop(images, positions)
    if config.flip:
        images = flip(images, draw_flips(rng, config.flip).to(images.device, non_blocking=True))
    return images


# ---- Random erasing (arXiv 1708.04896) -------------------------------------------------------------------------------


def erase(images: Images, rng: SampleRng, probability: float) -> Images:
    """Replace a random rectangle with uniform noise in each image, with the given probability.

    Unlike in the paper, a rectangle larger than the image is clipped instead of redrawn.
    """
    _, c, h, w = images.shape
    chosen = (rng.uniform("erasing") < probability).nonzero()[:, 0]
    area, aspect, top, left = rng.uniform("erasing box", 4)[chosen].to(images.device, non_blocking=True).unbind(1)
    high, low = (rng.uniform("erasing noise", 2) * 2**24).long().unbind(1)
    seeds = (high << 24 | low)[chosen].to(images.device, non_blocking=True)
    chosen = chosen.to(images.device, non_blocking=True)

    area = h * w * (ERASED_AREA[0] + area * (ERASED_AREA[1] - ERASED_AREA[0]))
    aspect = torch.exp(math.log(ERASED_ASPECT[0]) + aspect * math.log(ERASED_ASPECT[1] / ERASED_ASPECT[0]))
    inside_h = _interval(top, (area * aspect).sqrt().round().clamp(1, h), h)
    inside_w = _interval(left, (area / aspect).sqrt().round().clamp(1, w), w)
    inside = (inside_h[:, :, None] & inside_w[:, None, :])[:, None]
    result = images.clone()
    result[chosen] = torch.where(inside, noise(seeds, (c, h, w)), images[chosen])
    return result


def _interval(position: Float[Tensor, "n"], length: Float[Tensor, "n"], side: int) -> Tensor:
    """Return boolean masks [n, side] of intervals, given their lengths and their relative positions from 0 to 1."""
    start = (position * (side - length + 1)).floor()[:, None]
    at = torch.arange(side, device=position.device)
    return (at >= start) & (at < start + length[:, None])


def noise(seeds: Int[Tensor, "n"], shape: tuple[int, int, int]) -> UInt8[Tensor, "n c h w"]:
    """Generate random bytes that depend only on the seed and the pixel position."""
    count = math.prod(shape)
    counter = torch.arange(-(-count // 8), device=seeds.device)
    hashed = hash_bits(hash_bits(seeds)[:, None] + counter)
    return hashed.view(torch.uint8)[:, :count].reshape(-1, *shape)


# ---- Mixup and CutMix (arXiv 1710.09412, 1905.04899) -----------------------------------------------------------------
#
# Image i is mixed with its neighbour i ^ 1, with one weight per pair. If each process has an even number of images, the
# pairs do not depend on the number of processes.


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
