"""Resize and centre-crop geometry for evaluation.

Sizes are rounded as in the library that the weights come from, because a shift of one pixel can change predictions:

- torchvision rounds size / crop_fraction and the crop offset.
- timm rounds size / crop_fraction down and rounds the crop offset. For non-square crops and for padding, it rounds the
  longer side instead of truncating it.
- huggingface rounds the crop offset down and always resizes the shorter side. Its configs store size / crop_fraction
  as an integer, which is recovered by rounding.
"""

import math

from vitreous.common.checks import Size
from vitreous.model.options import Preprocessing


def scaled(size: Size, how: Preprocessing) -> Size:
    """Return size / crop_fraction, rounded to whole pixels.

    >>> scaled((224, 224), Preprocessing(crop_fraction=0.9))
    (249, 249)
    >>> scaled((224, 224), Preprocessing(crop_fraction=0.9, geometry="timm"))
    (248, 248)
    """
    rounded = math.floor if how.geometry == "timm" else round
    return (rounded(size[0] / how.crop_fraction), rounded(size[1] / how.crop_fraction))


def resized_for(image: Size, size: Size, how: Preprocessing) -> Size:
    """Return the size of an image after resizing and before cropping or padding."""
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
    """Return the smallest size with the image's aspect ratio that covers `target`.

    >>> covering((375, 500), (256, 256))
    (256, 341)
    """
    height, width = target
    if image[0] * width <= image[1] * height:  # limited by the height
        return (height, height * image[1] // image[0])
    return (width * image[0] // image[1], width)


def _same_aspect(image: Size, ratio: float) -> Size:
    """Divide the image size by `ratio`, rounding as timm's ResizeKeepRatio does."""
    return (max(round(image[0] / ratio), 1), max(round(image[1] / ratio), 1))


def centre(resized: Size, size: Size, how: Preprocessing) -> Size:
    """Return the top-left corner of the centre crop; negative coordinates mean padding."""
    return (_offset(resized[0] - size[0], how), _offset(resized[1] - size[1], how))


def _offset(excess: int, how: Preprocessing) -> int:
    if excess < 0:
        return -(-excess // 2)
    return excess // 2 if how.geometry == "huggingface" else round(excess / 2)
