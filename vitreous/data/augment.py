"""Augmentation of a batch on the device that it is on. Each picture has its own random numbers, whoever it is with.

The random resized crop is the workers' part (decode.py); everything after it is here, and mixing pictures in mix.py.
Pixels stay 8 bits until the end.

b: batch, c: channels, h, w: height and width.
"""

from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.data import colour, geometry, policy
from vitreous.data.config import Augmentation
from vitreous.data.draws import Draws
from vitreous.data.erase import erase


def augment(images: UInt8[Tensor, "b c h w"], draws: Draws, config: Augmentation) -> Float[Tensor, "b c h w"]:
    """Crop, flip, policy, colour jitter, erasing, as `config` says; the result is in [0, 1].

    A pure function of each picture and its draws. Draws on the CPU spare a GPU's queue from being waited for.

    >>> import torch
    >>> images = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    >>> draws = Draws(seed=0, epoch=0, indices=torch.arange(4))
    >>> augment(images, draws, Augmentation(crop="padded", policy="trivial")).shape
    torch.Size([4, 3, 32, 32])
    """
    images = images.contiguous()  # a loader's batch may have its channels last in memory

    def here(numbers: Tensor) -> Tensor:
        return numbers.to(images.device, non_blocking=True)

    if config.crop == "padded":
        images = geometry.padded_crop(images, here(draws.uniform("padded crop", 2)))
    if config.flip:
        images = geometry.flip(images, here(draws.uniform("flip") < config.flip))

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
        numbers = here(draws.uniform("colour jitter", 4))
        factors = 1 + config.colour_jitter * (2 * numbers[:, :3] - 1)
        images = colour.jitter(images, factors, (6 * numbers[:, 3]).long())
    if config.erasing:
        images = erase(images, draws, config.erasing)
    return images.float() / 255
