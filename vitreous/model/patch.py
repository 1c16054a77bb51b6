"""Patch embedding (ViT paper, section 3.1): cut an image into patches, and project each linearly (x_p E).

A convolution whose stride equals its kernel size is equivalent to cutting, flattening and multiplying. Which of the two
is faster depends on the hardware.

b: batch; c: channels; h, w: image height and width; n: patches; d: width.
"""

from typing import Literal

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitreous.common.checks import Size, check_tiling
from vitreous.model.init import lecun_normal_


class PatchProjection(nn.Conv2d):
    """Convolution of images [b, c, h, w], or the equivalent linear layer for flattened patches [b, n, c * h * w].

    Both kinds of input use `forward`, so hooks on this module (pruning, offloading) run in either case.
    """

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim == 3:
            return F.linear(input, self.weight.flatten(1), self.bias)
        return super().forward(input)


class PatchEmbedding(nn.Module):
    """Cuts images of any size into patches and projects them.

    >>> import torch
    >>> patches, grid = PatchEmbedding(3, 768, (16, 16))(torch.zeros(1, 3, 224, 320))
    >>> patches.shape, grid
    (torch.Size([1, 280, 768]), (14, 20))
    """

    def __init__(
        self,
        channels: int,
        width: int,
        patch_size: Size,
        method: Literal["conv", "linear"] = "conv",
        pad: bool = False,
        norm_eps: float | None = None,
        bias: bool = True,
        truncate: bool = False,
    ):
        super().__init__()
        self.patch_size, self.method, self.pad, self.truncate = patch_size, method, pad, truncate
        self.projection = PatchProjection(channels, width, kernel_size=patch_size, stride=patch_size, bias=bias)
        lecun_normal_(self.projection)
        pixels = channels * patch_size[0] * patch_size[1]
        self.pixel_norm = nn.Identity() if norm_eps is None else nn.LayerNorm(pixels, norm_eps)
        self.norm = nn.Identity() if norm_eps is None else nn.LayerNorm(width, norm_eps)

    def forward(
        self, images: Float[Tensor, "b c h w"], keep_indices: Int[Tensor, "b k"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], Size]:
        """Project all patches in row-major order, or only those at `keep_indices`."""
        images = self._fit(images)
        grid = (images.shape[2] // self.patch_size[0], images.shape[3] // self.patch_size[1])
        # On a GPU, the gradient of a convolution with few channels is several times as slow as that of a linear layer.
        if self.method == "conv" and keep_indices is None and not images.is_cuda:
            return self.projection(images).flatten(2).transpose(1, 2), grid
        patches = cut(images, self.patch_size)
        return self.project(patches if keep_indices is None else pick(patches, keep_indices)), grid

    def pixels(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n cpp"]:
        """Return the input of the projection for all patches."""
        return self.pixel_norm(self.cut(images))

    def cut(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n cpp"]:
        """Return the values of all patches."""
        return cut(self._fit(images), self.patch_size)

    def project(self, patches: Float[Tensor, "b n cpp"]) -> Float[Tensor, "b n d"]:
        return self.norm(self.projection(self.pixel_norm(patches)))

    def _fit(self, images: Tensor) -> Tensor:
        size = (images.shape[2], images.shape[3])
        if self.truncate:
            (h, w), (ph, pw) = size, self.patch_size
            return images[:, :, : h - h % ph, : w - w % pw]
        if not self.pad:
            check_tiling(size, self.patch_size)
            return images
        bottom, right = (-side % step for side, step in zip(size, self.patch_size, strict=True))
        return F.pad(images, (0, right, 0, bottom)) if bottom or right else images


def pick(patches: Float[Tensor, "b n d"], keep_indices: Int[Tensor, "b k"]) -> Float[Tensor, "b k d"]:
    """Select patches of each image by index."""
    return patches.gather(1, keep_indices[..., None].expand(-1, -1, patches.shape[-1]))


def cut(images: Float[Tensor, "b c h w"], patch_size: Size) -> Float[Tensor, "b n cpp"]:
    """Cut images into patches in row-major order, each flattened as (channel, row, column)."""
    b, c, h, w = images.shape
    ph, pw = patch_size
    patches = images.reshape(b, c, h // ph, ph, w // pw, pw).permute(0, 2, 4, 1, 3, 5)
    return patches.reshape(b, (h // ph) * (w // pw), c * ph * pw)


def uncut(patches: Float[Tensor, "b n cpp"], patch_size: Size, grid: Size) -> Float[Tensor, "b c h w"]:
    """Assemble images from patches: the inverse of `cut`."""
    (ph, pw), (gh, gw) = patch_size, grid
    b, _, pixels = patches.shape
    c = pixels // (ph * pw)
    return patches.reshape(b, gh, gw, c, ph, pw).permute(0, 3, 1, 4, 2, 5).reshape(b, c, gh * ph, gw * pw)
