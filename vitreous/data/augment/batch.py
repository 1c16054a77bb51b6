"""Batch augmentation on the device: padded crop, flip, policy, colour jitter and random erasing.

The random resized crop runs earlier, in the workers (vitreous.data.image.crop). The random numbers of an image do not
depend on the rest of its batch, and pixels stay uint8 until the end. The RNG runs on the CPU to avoid GPU syncs.

b: batch; c: channels; h, w: height and width; n: erased images.
"""

import math

import torch
from jaxtyping import Float, Int, UInt8
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
