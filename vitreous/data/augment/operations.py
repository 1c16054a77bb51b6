"""Operations on batches of uint8 images, each with its own strength per image.

b: batch; c: channels; h, w: height and width.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitreous.common.rng import SampleRng

Images = UInt8[Tensor, "b c h w"]
Numbers = Float[Tensor, "b"]

FILL = 128.0  # grey level outside the image after an affine transform, as in AutoAugment

# ---- Geometry --------------------------------------------------------------------------------------------------------


def draw_flips(rng: SampleRng, flip: float | Literal["alternate"]) -> Bool[Tensor, "b"]:
    """Return True for each image to flip (see `Augmentation.flip`)."""
    if flip == "alternate":
        return (rng.in_epoch(0).uniform("flip") < 0.5) ^ bool(rng.epoch % 2)
    return rng.uniform("flip") < flip


def flip(images: Images, which: Bool[Tensor, "b"]) -> Images:
    """Flip the images selected by `which` horizontally."""
    return torch.where(per_image(which), images.flip(-1), images)


def padded_crop(images: Images, positions: Float[Tensor, "b 2"]) -> Images:
    """Shift each image by up to an eighth of its size: reflection-pad all sides, then crop to the original size.

    `positions` contains the relative top and left of each crop, from 0 to 1.
    """
    b, _, h, w = images.shape
    pad_h, pad_w = h // 8, w // 8
    padded = F.pad(images, (pad_w, pad_w, pad_h, pad_h), mode="reflect")
    windows = padded.unfold(2, h, 1).unfold(3, w, 1)  # [b, c, tops, lefts, h, w], a view
    top, left = ((positions[:, i] * windows.shape[2 + i]).long() for i in range(2))
    return windows[torch.arange(b, device=images.device), :, top, left]


def warp(
    images: Images,
    shear_x: Numbers | float = 0,
    shear_y: Numbers | float = 0,
    right: Numbers | float = 0,
    down: Numbers | float = 0,
    degrees: Numbers | float = 0,
) -> Images:
    """Shear, shift (by whole pixels) or rotate (counter-clockwise about the centre) each image.

    At most one of the parameters may be non-zero for an image. As in AutoAugment, a shear moves rows (or columns) in
    proportion to their distance from the top (or left). The affine matrix maps output to input pixels, relative to the
    centre; sampling is bilinear.
    """
    count, _, h, w = images.shape
    shear_x, shear_y, right, down, degrees = (
        x.float() if isinstance(x, Tensor) else torch.full((count,), float(x), device=images.device)
        for x in (shear_x, shear_y, right, down, degrees)
    )
    sine, cosine = degrees.deg2rad().sin(), degrees.deg2rad().cos()
    to_x = (cosine, shear_x - sine, shear_x * (h / 2) - right.trunc())
    to_y = (shear_y + sine, cosine, shear_y * (w / 2) - down.trunc())
    x = torch.arange(w, device=images.device) + 0.5 - w / 2
    y = torch.arange(h, device=images.device)[:, None] + 0.5 - h / 2
    # Not a matmul, which a GPU may compute in TF32 with errors of a tenth of a pixel.
    from_x, from_y = (a[:, None, None] * x + b[:, None, None] * y + c[:, None, None] for a, b, c in (to_x, to_y))
    grid = torch.stack([from_x * (2 / w), from_y * (2 / h)], dim=-1)  # grid_sample expects [-1, 1]
    sampled = F.grid_sample(images.float() - FILL, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled + FILL).round().to(torch.uint8)


# ---- Blending: factor 0 gives the degenerate image, 1 the original; above 1 extrapolates -----------------------------


def _blend(degenerate: Tensor, images: Tensor, factor: Numbers) -> Tensor:
    return degenerate + (images - degenerate) * per_image(factor)


def luma(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 1 h w"]:
    """Compute ITU-R 601 luma, or the channel mean of images that are not RGB."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def brightness(images: Images, factor: Numbers) -> Images:
    return _to_uint8(images * per_image(factor))


def contrast(images: Images, factor: Numbers) -> Images:
    """Scale the contrast by blending with the mean luma."""
    x = images.float()
    return _to_uint8(_blend(luma(x).mean((2, 3), keepdim=True).round(), x, factor))


def saturation(images: Images, factor: Numbers) -> Images:
    """Scale the saturation by blending with the greyscale image."""
    x = images.float()
    return _to_uint8(_blend(luma(x), x, factor))


def sharpness(images: Images, factor: Numbers) -> Images:
    """Scale the sharpness by blending with a smoothed image, except at the border.

    The smoothing kernel is (1 1 1, 1 5 1, 1 1 1) / 13.
    """
    if min(images.shape[2:]) < 3:
        return images
    x = images.float()
    inner = x[:, :, 1:-1, 1:-1]
    smooth = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * inner) / 13
    sharpened = images.clone()
    sharpened[:, :, 1:-1, 1:-1] = _to_uint8(_blend(smooth.round(), inner, factor))
    return sharpened


def jitter(images: Images, factors: Float[Tensor, "b 3"], order: Int[Tensor, "b"]) -> Images:
    """Scale brightness, contrast and saturation by `factors`, in one of six orders: `order` is from 0 to 5."""
    orders = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
    orders = orders.to(images.device, non_blocking=True)
    x = images.float()
    for which in orders[order].unbind(1):
        grey = luma(x)
        degenerate = torch.where(per_image(which == 2), grey, grey.mean((2, 3), keepdim=True) * per_image(which == 1))
        x = _blend(degenerate, x, factors.gather(1, which[:, None])[:, 0]).clamp(0, 255)
    return _to_uint8(x)


# ---- Tone ------------------------------------------------------------------------------------------------------------


def posterize(images: Images, bits: Numbers) -> Images:
    """Keep only the `bits` most significant bits of each value."""
    return images & per_image(256 - 2 ** (8 - bits)).to(torch.uint8)


def solarize(images: Images, threshold: Numbers) -> Images:
    """Invert values at or above the threshold."""
    return torch.where(images >= per_image(threshold), 255 - images, images)


def autocontrast(images: Images) -> Images:
    """Stretch the values of each channel to the range 0 to 255."""
    low, high = (extreme((2, 3), keepdim=True).float() for extreme in (images.amin, images.amax))
    flat = high <= low
    scale = torch.where(flat, 1, 255 / (high - low))
    return ((images - torch.where(flat, 0, low)) * scale + 1e-3).to(torch.uint8)  # truncated, as in Pillow


def equalize(images: Images) -> Images:
    """Equalise the histogram of each channel."""
    b, c, h, w = images.shape
    values = images.reshape(b * c, h * w).long()
    histogram = torch.zeros(b * c, 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(1, values, torch.ones_like(values))
    brightest = histogram.gather(1, values.amax(1, keepdim=True))
    step = (h * w - brightest) // 255  # target number of pixels per level
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step == 0, torch.arange(256, device=images.device), table)  # too few pixels to equalise
    return table.gather(1, values).to(torch.uint8).reshape(b, c, h, w)


# ---- Filters ---------------------------------------------------------------------------------------------------------


def blur(images: Images, sigma: Numbers) -> Images:
    """Apply a Gaussian blur as two matrix products. Each matrix row is a softmax over negative squared distances."""

    def kernels(n: int) -> Tensor:
        at = torch.arange(n, device=images.device, dtype=torch.float32)
        return (-((at[:, None] - at) ** 2) / (2 * sigma**2)[:, None, None]).softmax(-1)[:, None]

    _, _, h, w = images.shape
    return _to_uint8(kernels(h) @ images.float() @ kernels(w).mT)


# ---- Helpers ---------------------------------------------------------------------------------------------------------


def per_image(numbers: Tensor) -> Tensor:
    return numbers[:, None, None, None]


def _to_uint8(images: Tensor) -> Images:
    return images.round().clamp(0, 255).to(torch.uint8)
