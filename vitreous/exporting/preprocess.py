"""Preprocessing in the exported graph: the same pixels as `vitreous.data.image.fit`, from decoded images of any size.

Sizes are integers that the graph computes, because the size of the image is not known when the graph is built. The
formulas are those of `vitreous.model.centre_crop` without branches.

n: batch; c: channels; h, w: height and width of the decoded images; sh, sw: input size of the model.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from vitreous.exporting.resample import Scalar, Sides, Weights, resize_columns, resize_rows, resize_weights
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing


class Preprocess(nn.Module):
    """Resizes, crops (or pads) and normalises images for a model with input size `size`."""

    def __init__(self, how: Preprocessing, channels: int):
        super().__init__()
        self.how = how
        mean = how.mean * (channels if len(how.mean) == 1 else 1)
        self.fill = torch.tensor([min(max(round(255 * value), 0), 255) for value in mean]).float().view(-1, 1, 1)

    def forward(self, images: UInt8[Tensor, "n h w c"], size: Int[Tensor, "2"]) -> Float[Tensor, "n c sh sw"]:
        pixels, image = decoded(images)
        resized = resized_for(image, (size[0], size[1]), self.how)
        rows, columns = _axes(image, resized, (size[0], size[1]), self.how)
        pixels = resize_rows(resize_columns(pixels, columns.weights), rows.weights)
        if self.how.fit == "pad":
            pixels = torch.where(rows.inside[:, None] & columns.inside, pixels, self.fill)
        return normalise(pixels / 255, self.how)


def decoded(images: UInt8[Tensor, "n h w c"]) -> tuple[Float[Tensor, "n c h w"], Sides]:
    """Return the images with channels first as float32, and their height and width."""
    pixels = images.permute(0, 3, 1, 2).float()
    height, width = (torch.full((), side, dtype=torch.int64) for side in images.shape[1:3])
    return pixels, (height, width)


# ---- Sizes after the resize ------------------------------------------------------------------------------------------


def resized_for(image: Sides, size: Sides, how: Preprocessing) -> Sides:
    """See `centre_crop.resized_for`."""
    if how.fit == "squash":
        return size
    height, width = (_scaled(side, how) for side in size)
    if how.fit == "squash-crop":
        return (height, width)
    ratios = (image[0].double() / height, image[1].double() / width)
    if how.fit == "pad":
        return _same_aspect(image, torch.maximum(*ratios))
    if how.geometry == "timm":
        rounded, exact = _same_aspect(image, torch.minimum(*ratios)), covering(image, (height, width))
        return _choose(height == width, exact, rounded)
    if how.geometry == "huggingface":
        height = width = torch.maximum(height, width)
    return covering(image, (height, width))


def covering(image: Sides, size: Sides) -> Sides:
    """See `centre_crop.covering`."""
    return (
        torch.maximum(size[0], size[1] * image[0] // image[1]),
        torch.maximum(size[1], size[0] * image[1] // image[0]),
    )


def _scaled(side: Scalar, how: Preprocessing) -> Scalar:
    value = side.double() / how.crop_fraction
    return (value.floor() if how.geometry == "timm" else value.round()).long()


def _same_aspect(image: Sides, ratio: Tensor) -> Sides:
    height, width = ((side / ratio).round().clamp(min=1).long() for side in image)
    return (height, width)


def _choose(condition: Bool[Tensor, ""], yes: Sides, no: Sides) -> Sides:
    return (torch.where(condition, yes[0], no[0]), torch.where(condition, yes[1], no[1]))


# ---- One side --------------------------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """Weights of the resize along one side, for the pixels of the crop."""

    weights: Weights
    inside: Bool[Tensor, "s"]  # False for pixels outside the resized image, which are padding


def _axes(image: Sides, resized: Sides, size: Sides, how: Preprocessing) -> tuple[Axis, Axis]:
    height, width = (_trim(*sides) for sides in zip(image, resized, size, strict=True))
    rows, columns = resize_weights((height[1], width[1]), (height[2], width[2]), how.interpolation)
    return (_axis(*height, rows, size[0], how), _axis(*width, columns, size[1], how))


def _axis(cut: Scalar, _: Scalar, resized: Scalar, weights: Weights, size: Scalar, how: Preprocessing) -> Axis:
    place = torch.arange(size.item()) + _offset(resized - size, how)
    index = place.clamp(min=0).minimum(resized - 1)
    cropped = Weights(weights.first[index] + cut, weights.values[index], weights.unit)
    return Axis(cropped, (place >= 0) & (place < resized))


def _trim(length: Scalar, resized: Scalar, size: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """Return the pixels to cut at each end, and the remaining length before and after the resize; see `crop._trim`."""
    keep = (4 * size * length + resized - 1) // resized + 8
    cut = torch.where((resized > 16 * size) & (keep < length), (length - keep) // 2, 0)
    kept = length - 2 * cut
    return cut, kept, (resized.double() * kept / length).round().long()


def _offset(excess: Scalar, how: Preprocessing) -> Scalar:
    """Return the first pixel of the crop; negative for padding. See `centre_crop.centre`."""
    half = excess.abs() // 2
    if how.geometry != "huggingface":
        half = half + ((excess > 0) & (excess - half // 2 * 4 == 3))  # round half to even
    return torch.where(excess < 0, -half, half)
