"""How training pictures are varied. Plain numbers, without torch, so that the command line can read and show them."""

from dataclasses import dataclass
from typing import Literal

from vitreous.common.checks import check_choice, check_real, check_whole, fail

CROPS = ("resized", "padded", "none")
POLICIES = ("none", "randaugment", "trivial", "three")


@dataclass(frozen=True)
class Augmentation:
    """What happens to a training picture, in this order. The default is the crop and flip that everyone uses.

    >>> Augmentation(policy="randaugment", mixup=0.8, cutmix=1.0, repeats=3).crop
    'resized'
    >>> Augmentation(flip=50)
    Traceback (most recent call last):
        ...
    vitreous.common.checks.BadValue: augmentation.flip is 50, but must be a number from 0 to 1
    """

    crop: Literal["resized", "padded", "none"] = "resized"
    """"resized": a random part at a random scale and aspect. "padded", for small pictures: an eighth of the size is
    added on every side, by reflection, and a window of the old size is cut out."""
    crop_scale: tuple[float, float] = (0.08, 1.0)
    """The part of the picture's area that a resized crop shows, from and to."""
    flip: float = 0.5
    """The probability of a horizontal flip."""
    policy: Literal["none", "randaugment", "trivial", "three"] = "none"
    """"trivial": TrivialAugment (wide), one operation of a random strength. "three": DeiT-III's, one of greyscale,
    solarise and blur; its recipe adds colour_jitter=0.3."""
    policy_layers: int = 2
    """RandAugment: how many operations, one after the other."""
    policy_magnitude: float = 9.0
    """RandAugment: how strong they are; 10 is the full strength of AutoAugment's table."""
    colour_jitter: float = 0.0
    """Brightness, contrast and saturation are each multiplied by a number within this distance from 1."""
    erasing: float = 0.0
    """The probability that a rectangle is replaced by noise."""
    mixup: float = 0.0
    """Mixup's Beta parameter; 0 is off. With cutmix as well, half of the pairs get either."""
    cutmix: float = 0.0
    """CutMix's Beta parameter; 0 is off."""
    repeats: int = 1
    """How many different variants of a picture an epoch shows (repeated augmentation); pictures per epoch stay."""

    def __post_init__(self) -> None:
        check_choice("augmentation.crop", self.crop, CROPS)
        check_range("augmentation.crop_scale", self.crop_scale)
        check_real("augmentation.flip", self.flip, 0, 1)
        check_choice("augmentation.policy", self.policy, POLICIES)
        check_whole("augmentation.policy_layers", self.policy_layers, 1, 8)
        check_real("augmentation.policy_magnitude", self.policy_magnitude, 0, 15)
        check_real("augmentation.colour_jitter", self.colour_jitter, 0, 1)
        check_real("augmentation.erasing", self.erasing, 0, 1)
        check_beta("augmentation.mixup", self.mixup)
        check_beta("augmentation.cutmix", self.cutmix)
        check_whole("augmentation.repeats", self.repeats, 1, 16)


def check_with_masks(augmentation: Augmentation) -> None:
    """Whether a mask can go along. It follows crops and flips, and colours do not concern it; nothing else is known.

    >>> check_with_masks(Augmentation(policy="trivial"))
    Traceback (most recent call last):
        ...
    vitreous.common.checks.BadValue: augmentation.policy is 'trivial', but must be 'none' or 'three' where pictures \
have masks: it rotates, shears and shifts pictures, and masks would stay behind
    """
    if augmentation.policy in ("randaugment", "trivial"):
        why = "it rotates, shears and shifts pictures, and masks would stay behind"
        fail("augmentation.policy", augmentation.policy, f"'none' or 'three' where pictures have masks: {why}")
    for name in ("mixup", "cutmix"):
        if value := getattr(augmentation, name):
            fail(f"augmentation.{name}", value, "0 where pictures have masks: it mixes the labels of pictures only")


def check_range(field: str, value: object) -> None:
    allowed = "a (from, to) pair of numbers with 0 < from <= to <= 1"
    if not isinstance(value, tuple) or len(value) != 2:
        fail(field, value, allowed)
    for number in value:
        check_real(field, number, 0, 1)
    if not 0 < value[0] <= value[1]:
        fail(field, value, allowed)


def check_beta(field: str, value: object) -> None:
    """0, or a number that Beta's quantiles can be computed for."""
    check_real(field, value, 0, 32)
    if isinstance(value, int | float) and 0 < value < 0.01:
        fail(field, value, "0 (off) or a number from 0.01 to 32")
