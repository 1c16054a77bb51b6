"""What a model accepts as images, checked before anything is computed."""

from torch import Tensor


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
