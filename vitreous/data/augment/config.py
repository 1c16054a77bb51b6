"""Augmentation config. This module does not import torch, so the command line can import it quickly."""

from dataclasses import dataclass
from typing import Literal

from vitreous.common.checks import check_choice, check_real, check_whole, fail

CROPS = ("resized", "padded", "none")
POLICIES = ("none", "randaugment", "trivial", "three")
SCALE = "a pair of numbers (low, high) with 0 < low <= high <= 1"


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training images. Fields are in order of application. The default is a random crop and flip."""

    crop: Literal["resized", "padded", "none"] = "resized"
    """"resized": random crop with random scale and aspect ratio. "padded" (for small images): reflection-pad each side
    by an eighth of the size, then crop at random to the original size."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """Range of the area of a resized crop, as a fraction of the image area."""
    flip: float | Literal["alternate"] = 0.5
    """Probability of a horizontal flip. "alternate": flip a random half of the images in the first epoch, and the other
    half in the next epoch, so that two epochs contain both versions of every image (arXiv 2404.00498)."""
    policy: Literal["none", "randaugment", "trivial", "three"] = "none"
    """"trivial": TrivialAugment (wide), one operation of random strength. "three": DeiT-III's 3-Augment, one of
    greyscale, solarize or blur; the paper combines it with colour_jitter=0.3."""
    policy_layers: int = 2
    """RandAugment: number of operations applied in sequence."""
    policy_magnitude: float = 9.0
    """RandAugment: strength of the operations; 10 is AutoAugment's maximum."""
    colour_jitter: float = 0.0
    """Maximum difference from 1 of the random factors for brightness, contrast and saturation."""
    erasing: float = 0.0
    """Probability of random erasing, which replaces a rectangle with noise."""
    mixup: float = 0.0
    """Mixup's Beta parameter; 0 disables it. If CutMix is also enabled, each is applied to half of the pairs."""
    cutmix: float = 0.0
    """CutMix's Beta parameter; 0 disables it."""
    repeats: int = 1
    """Repeated augmentation: number of copies of each image in an epoch. The length of an epoch does not change, so it
    has fewer distinct images."""

    def __post_init__(self) -> None:
        check_choice("augmentation.crop", self.crop, CROPS)
        if not isinstance(self.crop_scale, tuple) or len(self.crop_scale) != 2:
            fail("augmentation.crop_scale", self.crop_scale, SCALE)
        for number in self.crop_scale:
            check_real("augmentation.crop_scale", number, 0, 1)
        if not 0 < self.crop_scale[0] <= self.crop_scale[1]:
            fail("augmentation.crop_scale", self.crop_scale, SCALE)
        if not isinstance(self.flip, str):
            check_real("augmentation.flip", self.flip, 0, 1)
        elif self.flip != "alternate":
            fail("augmentation.flip", self.flip, "a number from 0 to 1 or 'alternate'")
        elif self.repeats > 1:
            fail("augmentation.flip", self.flip, "a number from 0 to 1 with repeated augmentation")
        check_choice("augmentation.policy", self.policy, POLICIES)
        check_whole("augmentation.policy_layers", self.policy_layers, 1, 8)
        check_real("augmentation.policy_magnitude", self.policy_magnitude, 0, 15)
        check_real("augmentation.colour_jitter", self.colour_jitter, 0, 1)
        check_real("augmentation.erasing", self.erasing, 0, 1)
        for name, beta in (("augmentation.mixup", self.mixup), ("augmentation.cutmix", self.cutmix)):
            check_real(name, beta, 0, 32)
            if 0 < beta < 0.01:  # too small to compute the quantiles of Beta
                fail(name, beta, "0 (off) or a number from 0.01 to 32")
        check_whole("augmentation.repeats", self.repeats, 1, 16)


def check_with_masks(augmentation: Augmentation) -> None:
    """Reject augmentations that are not implemented for masks, which can only be cropped and flipped."""
    if augmentation.policy in ("randaugment", "trivial"):
        fail("augmentation.policy", augmentation.policy, "'none' or 'three' for segmentation (masks cannot be warped)")
    for name in ("mixup", "cutmix"):
        if value := getattr(augmentation, name):
            fail(f"augmentation.{name}", value, "0 for segmentation (masks cannot be mixed)")
