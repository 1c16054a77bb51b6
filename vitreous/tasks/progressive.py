"""Progressive resizing: smaller training images in the first epochs (EfficientNetV2, arXiv 2104.00298).

A Vision Transformer accepts them without changes: it computes fewer tokens, and its positions are resampled.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model.protocol import ModelConfig

STAGES = (0.5, 0.625, 0.75, 0.875)  # sizes of the images relative to the full size, each for the same number of epochs


@dataclass(frozen=True)
class Progressive:
    """Image sizes of a run whose first `epochs` epochs have smaller images."""

    sizes: tuple[Size, ...]  # the last one is the full size
    epochs: float

    @classmethod
    def of(cls, model: ModelConfig, epochs: float) -> "Progressive":
        """Return the schedule for a model. All sizes are multiples of its patches.

        >>> from vitreous.model.presets import configure
        >>> Progressive.of(configure("ViT-Ti/4", image_size=32), 8).sizes
        ((16, 16), (20, 20), (24, 24), (28, 28), (32, 32))
        """
        grid, stride = model.grid, model.patch_stride
        sizes = [
            tuple(max(round(cells * scale), 1) * step for cells, step in zip(grid, stride, strict=True))
            for scale in STAGES
        ]
        small = dict.fromkeys((height, width) for height, width in sizes if (height, width) != model.image_size)
        return cls((*small, model.image_size), epochs)

    def size(self, epoch: int) -> Size:
        """Return the image size in an epoch, counted from 0."""
        small = len(self.sizes) - 1
        return self.sizes[small if epoch >= self.epochs else int(epoch / self.epochs * small)]

    @property
    def first_epochs(self) -> list[int]:
        """The first epoch of every size that is used."""
        epochs = range(int(self.epochs) + 2)
        return [epoch for epoch in epochs if epoch == 0 or self.size(epoch) != self.size(epoch - 1)]


def resize(images: Float[Tensor, "b c h w"], size: Size) -> Float[Tensor, "b c h2 w2"]:
    """Resize images in [0, 1] with antialiasing."""
    if (images.shape[2], images.shape[3]) == size:
        return images
    return F.interpolate(images, size, mode="bilinear", antialias=True)
