"""Augmentation of a batch on the device that it is on. Each picture has its own random numbers, whoever it is with.

The random resized crop is the workers' part (decode.py); everything after it is here, and mixing pictures in mix.py.
Pixels stay 8 bits until the end.

b: batch, c: channels, h, w: height and width.
"""

from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.data.augment import colour, geometry, policy
from vitreous.data.augment.config import Augmentation, check_with_masks
from vitreous.data.augment.erase import erase
from vitreous.data.rng import Draws


def augment(images: UInt8[Tensor, "b c h w"], draws: Draws, config: Augmentation) -> Float[Tensor, "b c h w"]:
    """Crop, flip, policy, colour jitter, erasing, as `config` says; the result is in [0, 1].

    A pure function of each picture and its draws. Draws on the CPU spare a GPU's queue from being waited for.

    >>> import torch
    >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> draws = Draws(seed=0, epoch=0, indices=torch.arange(4))
    >>> augment(images, draws, Augmentation(crop="padded", policy="trivial")).shape
    torch.Size([4, 3, 32, 32])
    """
    return _recolour(_move(images, draws, config), draws, config)


def augment_with_masks(
    images: UInt8[Tensor, "b c h w"], masks: UInt8[Tensor, "b h w"], draws: Draws, config: Augmentation
) -> tuple[Float[Tensor, "b c h w"], UInt8[Tensor, "b h w"]]:
    """The same of pictures, and their masks moved as they are. Policies that rotate and shear are refused.

    What a padded crop adds at the edges is reflected in the mask as well: the pixels there show a mirrored object, and
    ignoring them would teach the model nothing about edges. An erased rectangle keeps its labels: what was there is to
    be told from what is around it.
    """
    check_with_masks(config)
    return augment(images, draws, config), _move(masks[:, None], draws, config)[:, 0]


def _move(images: UInt8[Tensor, "b c h w"], draws: Draws, config: Augmentation) -> UInt8[Tensor, "b c h w"]:
    """Where pixels go: the same for anything that is given the same draws."""
    images = images.contiguous()  # a loader's batch may have its channels last in memory
    if config.crop == "padded":
        images = geometry.padded_crop(images, _there(draws.uniform("padded crop", 2), images))
    if config.flip:
        images = geometry.flip(images, _there(draws.uniform("flip") < config.flip, images))
    return images


def _recolour(images: UInt8[Tensor, "b c h w"], draws: Draws, config: Augmentation) -> Float[Tensor, "b c h w"]:
    """What pixels become, and, with a policy that rotates and shears, where they go."""
    match config.policy:
        case "randaugment":
            images = policy.randaugment(images, draws, config.policy_layers, config.policy_magnitude)
        case "trivial":
            images = policy.trivial(images, draws)
        case "three":
            images = policy.three(images, draws)
        case "none":
            pass

    if config.colour_jitter:
        numbers = _there(draws.uniform("colour jitter", 4), images)
        factors = 1 + config.colour_jitter * (2 * numbers[:, :3] - 1)
        images = colour.jitter(images, factors, (6 * numbers[:, 3]).long())
    if config.erasing:
        images = erase(images, draws, config.erasing)
    return images.float() / 255


def _there(numbers: Tensor, images: Tensor) -> Tensor:
    return numbers.to(images.device, non_blocking=True)
