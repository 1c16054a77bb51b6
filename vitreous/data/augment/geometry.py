"""Where pixels go: flips, padded crops, rotations, shears and shifts, each picture of a batch with its own numbers.

b: batch, c: channels, h, w: height and width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

Images = UInt8[Tensor, "b c h w"]
Numbers = Float[Tensor, "b"]

GREY = 128.0  # what stands where an affine map finds no picture, as in AutoAugment


def flip(images: Images, which: Bool[Tensor, "b"]) -> Images:
    """Mirror left and right in some pictures."""
    return torch.where(which[:, None, None, None], images.flip(-1), images)


def padded_crop(images: Images, places: Float[Tensor, "b 2"]) -> Images:
    """Shift by up to an eighth of the size: pad by that much on every side, cut out a window of the old size.

    The padding reflects the picture, so that no edge appears which the model could take for a sign. `places` in [0, 1)
    are the windows' tops and lefts.
    """
    b, _, h, w = images.shape
    pad_h, pad_w = h // 8, w // 8
    padded = F.pad(images, (pad_w, pad_w, pad_h, pad_h), mode="reflect")
    windows = padded.unfold(2, h, 1).unfold(3, w, 1)  # [b, c, tops, lefts, h, w], a view
    top, left = ((places[:, i] * windows.shape[2 + i]).long() for i in range(2))
    return windows[torch.arange(b, device=images.device), :, top, left]


def affine(images: Images, matrices: Float[Tensor, "b 2 3"]) -> Images:
    """Each pixel is taken from where its matrix says, bilinearly. Coordinates are (x, y) in pixels from the centre."""
    _, _, h, w = images.shape
    x = torch.arange(w, device=images.device) + 0.5 - w / 2
    y = torch.arange(h, device=images.device)[:, None] + 0.5 - h / 2
    # Written out: as a matrix product a GPU might round it to TF32, which is a tenth of a pixel.
    a, b = matrices[..., None, None].unbind(1)
    from_x, from_y = (row[:, 0] * x + row[:, 1] * y + row[:, 2] for row in (a, b))
    grid = torch.stack([from_x * (2 / w), from_y * (2 / h)], dim=-1)  # grid_sample's borders are at -1 and 1
    sampled = F.grid_sample(images.float() - GREY, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled + GREY).round().to(torch.uint8)


def warp(
    images: Images,
    shear_x: Numbers | float = 0,
    shear_y: Numbers | float = 0,
    right: Numbers | float = 0,
    down: Numbers | float = 0,
    degrees: Numbers | float = 0,
) -> Images:
    """Sheared, shifted by whole pixels, or rotated counter-clockwise about the centre: one of them in each picture.

    A shear moves rows by `shear_x` times their distance from the upper edge, or columns from the left one, as
    AutoAugment has it.
    """
    b, _, h, w = images.shape
    shear_x, shear_y, right, down, degrees = (
        x.float() if isinstance(x, Tensor) else torch.full((b,), float(x), device=images.device)
        for x in (shear_x, shear_y, right, down, degrees)
    )
    sine, cosine = degrees.deg2rad().sin(), degrees.deg2rad().cos()
    to_x = torch.stack([cosine, shear_x - sine, shear_x * (h / 2) - right.trunc()], dim=1)
    to_y = torch.stack([shear_y + sine, cosine, shear_y * (w / 2) - down.trunc()], dim=1)
    return affine(images, torch.stack([to_x, to_y], dim=1))
