"""Random crops for training, and nearest-pixel sampling for masks. Arithmetic on sizes, no pixels."""

import functools
import math
from collections.abc import Sequence

import numpy as np

from vitreous.common.checks import Size


def nearest(start: int, length: int, resized: int, offset: int, count: int) -> np.ndarray:
    """One axis of a crop without mixing pixels: which pixel of the picture each of `count` pixels shows.

    `length` pixels from `start` are resized to `resized`, and of these the window begins at `offset`. A pixel's centre
    decides, as in a resize that does mix.

    >>> nearest(start=10, length=8, resized=4, offset=1, count=2)
    array([13, 15])
    """
    at = np.arange(offset, offset + count)
    return start + (2 * at + 1) * length // (2 * resized)


def crop_box(
    picture: Size, numbers: Sequence[float], scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a random crop: Inception's, as torchvision draws it, without its retries.

    torchvision draws the part of the area uniformly from `scale` and the logarithm of the aspect (width / height)
    uniformly from `ratio`'s, up to ten times, until such a crop lies within the picture. That is the uniform
    distribution over the pairs that do. A crop of log-aspect x in a picture of log-aspect y lies within it if its part
    of the area is at most exp(-|x - y|); so the density of x is proportional to what that leaves of `scale`. The first
    number is put through the inverse of x's distribution function, tabulated; given x, the second draws the area, and
    the others the place. Where no pair fits, because the picture is too long, the crop is the largest of the nearest
    allowed aspect, anywhere on it (torchvision: in its centre).
    """
    height, width = picture
    own = math.log(width / height)
    aspects, distribution = _aspects(own, scale, ratio)
    if distribution is not None:
        aspect = float(np.interp(numbers[0], distribution, aspects))
        largest = min(math.exp(-abs(aspect - own)), scale[1])
        area = height * width * (scale[0] + numbers[1] * max(largest - scale[0], 0))
    else:
        aspect = min(max(own, aspects[0]), aspects[-1])
        area = height * width * math.exp(-abs(aspect - own))
    crop_height = min(max(round(math.sqrt(area / math.exp(aspect))), 1), height)
    crop_width = min(max(round(math.sqrt(area * math.exp(aspect))), 1), width)
    top, left = int(numbers[2] * (height - crop_height + 1)), int(numbers[3] * (width - crop_width + 1))
    return top, left, crop_height, crop_width


@functools.lru_cache(4096)  # pictures of a data set share few sizes, and this takes longer than the rest of a crop
def _aspects(
    own: float, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Log-aspects, evenly spaced, and the probability of a crop below each; None if no crop fits at all."""
    aspects = np.linspace(math.log(ratio[0]), math.log(ratio[1]), 65)
    room = np.maximum(np.minimum(np.exp(-np.abs(aspects - own)), scale[1]) - scale[0], 0)
    mass = np.concatenate([[0], np.cumsum(room[1:] + room[:-1])])
    return aspects, mass / mass[-1] if mass[-1] > 0 else None
