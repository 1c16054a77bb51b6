"""Sizes of the resize and offsets of the centre crop for evaluation: arithmetic, no pixels.

The rounding follows the system that the weights come from, because a shift by one pixel changes some predictions:

- torchvision: size / crop_fraction is rounded, the margin of the centre crop too.
- timm: size / crop_fraction is rounded down, the margin is rounded; sizes that are not square, and padded ones, keep
  the aspect ratio by rounding instead of truncating.
- huggingface: sizes are given as whole numbers, which rounding restores; the margin is rounded down, and the shorter
  side is resized for any shape of the crop.
"""

import math

from vitreous.common.checks import Size
from vitreous.model.options import Preprocessing


def scaled(size: Size, how: Preprocessing) -> Size:
    """size / crop_fraction in whole pixels.

    >>> scaled((224, 224), Preprocessing(crop_fraction=0.9))
    (249, 249)
    >>> scaled((224, 224), Preprocessing(crop_fraction=0.9, geometry="timm"))
    (248, 248)
    """
    whole = math.floor if how.geometry == "timm" else round
    return (whole(size[0] / how.crop_fraction), whole(size[1] / how.crop_fraction))


def resized_for(image: Size, size: Size, how: Preprocessing) -> Size:
    """Size that an image is resized to before it is cropped or padded."""
    if how.fit == "squash":
        return size
    target = scaled(size, how)
    if how.fit == "squash-crop":
        return target
    if how.fit == "pad":
        return _same_aspect(image, max(image[0] / target[0], image[1] / target[1]))
    if how.geometry == "timm" and target[0] != target[1]:
        return _same_aspect(image, min(image[0] / target[0], image[1] / target[1]))
    if how.geometry == "huggingface":
        target = (max(target), max(target))
    return covering(image, target)


def covering(image: Size, target: Size) -> Size:
    """Smallest size with the aspect ratio of the image that covers `target`.

    >>> covering((375, 500), (256, 256))
    (256, 341)
    """
    height, width = target
    if image[0] * width <= image[1] * height:  # limited by the height
        return (height, height * image[1] // image[0])
    return (width * image[0] // image[1], width)


def _same_aspect(image: Size, ratio: float) -> Size:
    """Size of the image divided by `ratio`, rounded as in timm's ResizeKeepRatio."""
    return (max(round(image[0] / ratio), 1), max(round(image[1] / ratio), 1))


def centre(resized: Size, size: Size, how: Preprocessing) -> Size:
    """Top and left of the centre crop; negative where the image is smaller and is padded."""
    return (_margin(resized[0] - size[0], how), _margin(resized[1] - size[1], how))


def _margin(excess: int, how: Preprocessing) -> int:
    if excess < 0:
        return -(-excess // 2)
    return excess // 2 if how.geometry == "huggingface" else round(excess / 2)
