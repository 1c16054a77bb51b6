"""Validation and normalisation of input images.

b: batch; c: channels; h, w: image height and width.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitreous.model.options import Preprocessing


def check_images(images: Tensor, channels: int) -> None:
    if images.ndim != 4:
        raise ValueError(f"images must have shape [batch, channels, height, width], got {tuple(images.shape)}")
    if images.shape[1] != channels:
        raise ValueError(f"images must have {channels} channels, got {images.shape[1]} (shape {tuple(images.shape)})")
    if not images.is_floating_point():
        raise ValueError(
            f"images must be floating point, scaled and normalised (see config.preprocessing), got {images.dtype}"
        )


def check_matches(images: Tensor, weight: Tensor) -> None:
    """Raise ValueError if images and weights differ in dtype or device.

    This is called only after an error in torch, because weights may be offloaded or sharded before the forward pass.
    """
    if images.device != weight.device:
        raise ValueError(
            f"images are on {images.device}, but the model is on {weight.device}. "
            f'Pass images.to("{weight.device}"), or move the model with model.to("{images.device}")'
        )
    if images.dtype != weight.dtype and not torch.is_autocast_enabled(weight.device.type):
        raise ValueError(
            f"images are {images.dtype}, but the model's weights are {weight.dtype}. Pass images.to({weight.dtype}), "
            "or use vitreous.Predictor, which converts images"
        )


def normalise(images: Float[Tensor, "b c h w"], preprocessing: Preprocessing) -> Float[Tensor, "b c h w"]:
    """Subtract the mean from pixels in [0, 1] and divide by the std.

    >>> normalise(torch.ones(1, 3, 1, 1), Preprocessing(mean=(0.5,), std=(0.25,))).flatten()
    tensor([2., 2., 2.])
    """
    mean, std = _mean_and_std(images, preprocessing)
    return (images - mean) / std


def denormalise(images: Float[Tensor, "b c h w"], preprocessing: Preprocessing) -> UInt8[Tensor, "b c h w"]:
    """Undo `normalise` and convert to 8-bit pixels."""
    mean, std = _mean_and_std(images, preprocessing)
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def _mean_and_std(images: Tensor, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
    """Return mean and std as [1, c, 1, 1] tensors on the images' device, copied asynchronously."""
    mean, std = (
        torch.tensor(values, dtype=images.dtype, device="cpu").to(images.device, non_blocking=True).view(1, -1, 1, 1)
        for values in (preprocessing.mean, preprocessing.std)
    )
    return mean, std
