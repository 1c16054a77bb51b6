"""Checks and normalisation of input images.

b: batch; c: channels; h, w: image height and width.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.model.options import Preprocessing


def check_images(images: Tensor, channels: int) -> None:
    if images.ndim != 4:
        raise ValueError(f"images have shape {tuple(images.shape)}, but must be [batch, channels, height, width]")
    if images.shape[1] != channels:
        raise ValueError(
            f"images have {images.shape[1]} channels (shape {tuple(images.shape)}), but must have {channels}"
        )
    if not images.is_floating_point():
        raise ValueError(
            f"images are {images.dtype}, but must be floating point, scaled and normalised (see config.preprocessing)"
        )


def check_matches(images: Tensor, weight: Tensor) -> None:
    """Explain an error of torch by a mismatch of dtype or device.

    Called after the error, because offloaded or sharded weights only get their dtype and device during the call.
    """
    if images.device != weight.device:
        raise ValueError(
            f"images are on {images.device}, but the model is on {weight.device}: "
            f'pass images.to("{weight.device}"), or move the model with model.to("{images.device}")'
        )
    if images.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
        raise ValueError(
            f"images are {images.dtype}, but the model's weights are {weight.dtype}: pass images.to({weight.dtype}), "
            "or use vitreous.Predictor, which converts them"
        )


def normalise(images: Float[Tensor, "b c h w"], preprocessing: Preprocessing) -> Float[Tensor, "b c h w"]:
    """Subtract the mean and divide by the std; pixels are in [0, 1].

    >>> normalise(torch.ones(1, 3, 1, 1), Preprocessing(mean=(0.5,), std=(0.25,))).flatten()
    tensor([2., 2., 2.])
    """
    mean, std = _mean_and_std(images, preprocessing)
    return (images - mean) / std


def denormalise(images: Float[Tensor, "b c h w"], preprocessing: Preprocessing) -> UInt8[Tensor, "b c h w"]:
    """Undo `normalise`, to 8-bit pixels."""
    mean, std = _mean_and_std(images, preprocessing)
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def _mean_and_std(images: Tensor, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
    """Mean and std as [1, c, 1, 1] on the device of the images, copied without synchronisation."""
    mean, std = (
        torch.tensor(values, dtype=images.dtype, device="cpu").to(images.device, non_blocking=True).view(1, -1, 1, 1)
        for values in (preprocessing.mean, preprocessing.std)
    )
    return mean, std
