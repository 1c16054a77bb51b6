"""Augment a batch on its device. The random numbers of an image do not depend on the rest of its batch.

The random resized crop happens in the workers (vitreous.data.image.crop); everything after it is here, and mixing in
mixup.py. Pixels stay uint8 until the end.

b: batch, c: channels, h, w: height and width; n: images that are erased.
"""

import math

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitreous.data.augment import policy, transforms
from vitreous.data.augment.config import Augmentation, check_with_masks
from vitreous.data.rng import SampleRng, mix

Images = UInt8[Tensor, "b c h w"]

ERASED_AREA = (0.02, 1 / 3)  # as a fraction of the image, from and to
ERASED_ASPECT = (0.3, 1 / 0.3)


def augment(images: Images, rng: SampleRng, config: Augmentation) -> Float[Tensor, "b c h w"]:
    """Crop, flip, apply the policy, jitter colours and erase, by `config`; the result is in [0, 1].

    With the RNG on the CPU, no GPU queue is waited for.

    >>> import torch
    >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> rng = SampleRng(seed=0, epoch=0, indices=torch.arange(4))
    >>> augment(images, rng, Augmentation(crop="padded", policy="trivial")).shape
    torch.Size([4, 3, 32, 32])
    """
    images = _crop_and_flip(images, rng, config)
    match config.policy:
        case "randaugment":
            images = policy.randaugment(images, rng, config.policy_layers, config.policy_magnitude)
        case "trivial":
            images = policy.trivial(images, rng)
        case "three":
            images = policy.three(images, rng)
        case "none":
            pass
    if config.colour_jitter:
        numbers = rng.uniform("colour jitter", 4).to(images.device, non_blocking=True)
        factors = 1 + config.colour_jitter * (2 * numbers[:, :3] - 1)
        images = transforms.jitter(images, factors, (6 * numbers[:, 3]).long())
    if config.erasing:
        images = erase(images, rng, config.erasing)
    return images.float() / 255


def augment_with_masks(
    images: Images, masks: UInt8[Tensor, "b h w"], rng: SampleRng, config: Augmentation
) -> tuple[Float[Tensor, "b c h w"], UInt8[Tensor, "b h w"]]:
    """Augment images and crop and flip their masks in the same way; policies that rotate and shear are rejected.

    The padding of a padded crop is reflected in the mask as well: the pixels there show a mirrored object, and ignoring
    them would teach the model nothing about edges. An erased rectangle keeps its labels, to be inferred from its
    surroundings.
    """
    check_with_masks(config)
    return augment(images, rng, config), _crop_and_flip(masks[:, None], rng, config)[:, 0]


def _crop_and_flip(images: Images, rng: SampleRng, config: Augmentation) -> Images:
    images = images.contiguous()  # a loader's batch may have its channels last in memory
    if config.crop == "padded":
        positions = rng.uniform("padded crop", 2).to(images.device, non_blocking=True)
        images = transforms.padded_crop(images, positions)
    if config.flip:
        which = rng.uniform("flip") < config.flip
        images = transforms.flip(images, which.to(images.device, non_blocking=True))
    return images


# ---- Random erasing (arXiv 1708.04896) -------------------------------------------------------------------------------


def erase(images: Images, rng: SampleRng, probability: float) -> Images:
    """Replace a rectangle by uniform noise in some images, as in the paper.

    A rectangle higher or wider than the image ends at its border instead of being drawn again.
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
    """Mark the pixels of an interval of this length; `position` in [0, 1) places it within the side."""
    start = (position * (side - length + 1)).floor()[:, None]
    at = torch.arange(side, device=position.device)
    return (at >= start) & (at < start + length[:, None])


def noise(seeds: Int[Tensor, "n"], shape: tuple[int, int, int]) -> UInt8[Tensor, "n c h w"]:
    """Random bytes that depend only on the seed and the position; every hashed number gives eight of them."""
    count = math.prod(shape)
    counter = torch.arange(-(-count // 8), device=seeds.device)
    hashed = mix(mix(seeds)[:, None] + counter)
    return hashed.view(torch.uint8)[:, :count].reshape(-1, *shape)
