"""Positions for another image size: the grid of vectors resampled as if it were a picture (section 3.2).

Systems differ in how, and a checkpoint is only faithful with its own system's way, so each way has that system's name.

gh, gw: grid height and width; d: width.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model.options import Interpolation


class _Way(NamedTuple):
    mode: str
    align_corners: bool = False
    antialias: bool = False
    scale_offset: float = 0.0


WAYS: dict[Interpolation, _Way] = {
    "google": _Way("bilinear", align_corners=True),  # scipy.ndimage.zoom(order=1), also big_vision's
    "timm": _Way("bicubic", antialias=True),
    "huggingface": _Way("bicubic"),  # also MAE's and DeiT's
    "torchvision": _Way("bicubic", align_corners=True),
    "dinov2": _Way("bicubic", scale_offset=0.1),  # kept by DINOv2 for the sake of its released weights
    "dinov2-registers": _Way("bicubic", antialias=True),
}


def resample(table: Float[Tensor, "gh gw d"], grid: Size, interpolation: Interpolation) -> Float[Tensor, "h w d"]:
    """`table` at another grid.

    >>> resample(torch.zeros(14, 14, 768), (16, 20), "timm").shape
    torch.Size([16, 20, 768])
    """
    gh, gw, _ = table.shape
    if (gh, gw) == grid:
        return table
    way = WAYS[interpolation]
    picture = table.to(torch.promote_types(table.dtype, torch.float32)).permute(2, 0, 1)[None]
    if way.scale_offset:
        # The scale, not the size, decides where the samples are taken: (h + 0.1) / gh instead of h / gh.
        scale = ((grid[0] + way.scale_offset) / gh, (grid[1] + way.scale_offset) / gw)
        picture = F.interpolate(picture, scale_factor=scale, mode=way.mode)
    elif way.align_corners:
        picture = F.interpolate(picture, size=grid, mode=way.mode, align_corners=True)
    else:
        picture = F.interpolate(picture, size=grid, mode=way.mode, antialias=way.antialias)
    return picture[0].permute(1, 2, 0).to(table.dtype)


def resample_line(table: Float[Tensor, "g d"], length: int, interpolation: Interpolation) -> Float[Tensor, "n d"]:
    """A row's or a column's vectors at another length."""
    return resample(table[:, None], (length, 1), interpolation)[:, 0]
