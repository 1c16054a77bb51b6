"""Size of the resize and place of the centre crop that prepare an image for evaluation: arithmetic, no pixels.

The rules follow the system that the weights come from, because a shift by one pixel changes some answers:

- torchvision: size / crop_fraction is rounded, the margin of the centre crop too.
- timm: size / crop_fraction is rounded down, the margin is rounded; sizes that are not square, and padded ones, keep
  the aspect ratio by rounding instead of cutting off.
- huggingface: sizes are given as whole numbers, which rounding restores; the margin is rounded down, and the shorter
  side is resized whatever the shape of the crop.
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


def resized_for(picture: Size, size: Size, how: Preprocessing) -> Size:
    """The size that a picture is resized to before its centre is cut out or its sides are padded."""
    if how.fit == "squash":
        return size
    target = scaled(size, how)
    if how.fit == "squash-crop":
        return target
    if how.fit == "pad":
        return _same_aspect(picture, max(picture[0] / target[0], picture[1] / target[1]))
    if how.geometry == "timm" and target[0] != target[1]:
        return _same_aspect(picture, min(picture[0] / target[0], picture[1] / target[1]))
    if how.geometry == "huggingface":
        target = (max(target), max(target))
    return covering(picture, target)


def covering(picture: Size, target: Size) -> Size:
    """The smallest size of the picture's aspect ratio that covers `target`.

    >>> covering((375, 500), (256, 256))
    (256, 341)
    """
    height, width = target
    if picture[0] * width <= picture[1] * height:  # the height decides
        return (height, height * picture[1] // picture[0])
    return (width * picture[0] // picture[1], width)


def _same_aspect(picture: Size, ratio: float) -> Size:
    """The picture's size divided by `ratio`, rounded as timm's ResizeKeepRatio does."""
    return (max(round(picture[0] / ratio), 1), max(round(picture[1] / ratio), 1))


def centre(resized: Size, size: Size, how: Preprocessing) -> Size:
    """Top and left of the window of `size` in the middle; negative where the picture is smaller and gets padded."""
    return (_margin(resized[0] - size[0], how), _margin(resized[1] - size[1], how))


def _margin(excess: int, how: Preprocessing) -> int:
    if excess < 0:
        return -(-excess // 2)
    return excess // 2 if how.geometry == "huggingface" else round(excess / 2)
