"""Configuration of augmentation: plain numbers, without torch, so that the command line can import it."""

from dataclasses import dataclass
from typing import Literal

from vitreous.common.checks import check_choice, check_real, check_whole, fail

CROPS = ("resized", "padded", "none")
POLICIES = ("none", "randaugment", "trivial", "three")
SCALE = "a (from, to) pair of numbers with 0 < from <= to <= 1"


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training images, applied in this order. The default is the usual crop and flip."""

    crop: Literal["resized", "padded", "none"] = "resized"
    """"resized": a random crop of random scale and aspect. "padded", for small images: pad by an eighth of the size on
    every side, by reflection, and crop to the old size."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Smallest and largest fraction of the image's area in a resized crop."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    policy: Literal["none", "randaugment", "trivial", "three"] = "none"
    """"trivial": TrivialAugment (wide), one operation of random strength. "three": DeiT-III's 3-Augment, one of
    greyscale, solarize and blur; its recipe adds colour_jitter=0.3."""
    policy_layers: int = 2
    """RandAugment: number of operations, in sequence."""
    policy_magnitude: float = 9.0
    """RandAugment: strength of the operations; 10 is the full strength of AutoAugment's table."""
    colour_jitter: float = 0.0
    """Largest distance from 1 of the factors of brightness, contrast and saturation."""
    erasing: float = 0.0
    """Probability that a rectangle is replaced by noise."""
    mixup: float = 0.0
    """Mixup's Beta parameter; 0 is off. With cutmix as well, each is applied to half of the pairs."""
    cutmix: float = 0.0
    """CutMix's Beta parameter; 0 is off."""
    repeats: int = 1
    """Variants of an image in one epoch (repeated augmentation); the number of images per epoch is unchanged."""

    def __post_init__(self) -> None:
        check_choice("augmentation.crop", self.crop, CROPS)
        if not isinstance(self.crop_scale, tuple) or len(self.crop_scale) != 2:
            fail("augmentation.crop_scale", self.crop_scale, SCALE)
        for number in self.crop_scale:
            check_real("augmentation.crop_scale", number, 0, 1)
        if not 0 < self.crop_scale[0] <= self.crop_scale[1]:
            fail("augmentation.crop_scale", self.crop_scale, SCALE)
        check_real("augmentation.flip", self.flip, 0, 1)
        check_choice("augmentation.policy", self.policy, POLICIES)
        check_whole("augmentation.policy_layers", self.policy_layers, 1, 8)
        check_real("augmentation.policy_magnitude", self.policy_magnitude, 0, 15)
        check_real("augmentation.colour_jitter", self.colour_jitter, 0, 1)
        check_real("augmentation.erasing", self.erasing, 0, 1)
        for name, beta in (("augmentation.mixup", self.mixup), ("augmentation.cutmix", self.cutmix)):
            check_real(name, beta, 0, 32)
            if 0 < beta < 0.01:  # Beta's quantiles cannot be computed
                fail(name, beta, "0 (off) or a number from 0.01 to 32")
        check_whole("augmentation.repeats", self.repeats, 1, 16)


def check_with_masks(augmentation: Augmentation) -> None:
    """Reject augmentation that masks cannot follow: they follow crops and flips only."""
    if augmentation.policy in ("randaugment", "trivial"):
        why = "it rotates, shears and shifts images, but not masks"
        fail("augmentation.policy", augmentation.policy, f"'none' or 'three' for images with masks: {why}")
    for name in ("mixup", "cutmix"):
        if value := getattr(augmentation, name):
            fail(f"augmentation.{name}", value, "0 for images with masks: it mixes labels, but not masks")
