"""Transforms of uint8 batches, each image with its own strength: geometry, colours and filters, as in Pillow.

b: batch, c: channels, h, w: height and width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

Images = UInt8[Tensor, "b c h w"]
Numbers = Float[Tensor, "b"]

FILL = 128.0  # grey level outside of the image after an affine map, as in AutoAugment


def _per_image(numbers: Tensor) -> Tensor:
    """Add dimensions so that one number for each image broadcasts over its pixels."""
    return numbers[:, None, None, None]


def _to_uint8(images: Tensor) -> Images:
    return images.round().clamp(0, 255).to(torch.uint8)


# ---- Geometry --------------------------------------------------------------------------------------------------------


def flip(images: Images, which: Bool[Tensor, "b"]) -> Images:
    """Mirror some of the images left to right."""
    return torch.where(_per_image(which), images.flip(-1), images)


def padded_crop(images: Images, positions: Float[Tensor, "b 2"]) -> Images:
    """Shift by up to an eighth of the size: pad by that much on every side, and crop to the old size.

    The padding reflects the image, so that no artificial edge appears. `positions` in [0, 1) are the tops and lefts of
    the crops.
    """
    b, _, h, w = images.shape
    pad_h, pad_w = h // 8, w // 8
    padded = F.pad(images, (pad_w, pad_w, pad_h, pad_h), mode="reflect")
    windows = padded.unfold(2, h, 1).unfold(3, w, 1)  # [b, c, tops, lefts, h, w], a view
    top, left = ((positions[:, i] * windows.shape[2 + i]).long() for i in range(2))
    return windows[torch.arange(b, device=images.device), :, top, left]


def affine(images: Images, matrices: Float[Tensor, "b 2 3"]) -> Images:
    """Sample each pixel bilinearly from where its matrix maps it. Coordinates are (x, y) in pixels from the centre."""
    _, _, h, w = images.shape
    x = torch.arange(w, device=images.device) + 0.5 - w / 2
    y = torch.arange(h, device=images.device)[:, None] + 0.5 - h / 2
    # Written out: as a matrix product a GPU might round it to TF32, which is a tenth of a pixel.
    a, b = matrices[..., None, None].unbind(1)
    from_x, from_y = (row[:, 0] * x + row[:, 1] * y + row[:, 2] for row in (a, b))
    grid = torch.stack([from_x * (2 / w), from_y * (2 / h)], dim=-1)  # grid_sample's borders are at -1 and 1
    sampled = F.grid_sample(images.float() - FILL, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return (sampled + FILL).round().to(torch.uint8)


def warp(
    images: Images,
    shear_x: Numbers | float = 0,
    shear_y: Numbers | float = 0,
    right: Numbers | float = 0,
    down: Numbers | float = 0,
    degrees: Numbers | float = 0,
) -> Images:
    """Shear, shift by whole pixels, or rotate counter-clockwise about the centre: one of them for each image.

    A shear moves rows by `shear_x` times their distance from the upper edge, or columns from the left one, as in
    AutoAugment.
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


# ---- Blends with a degenerate image: factor 0 gives that, 1 the image, above 1 exaggerates ---------------------------


def _blend(degenerate: Tensor, images: Tensor, factor: Numbers) -> Tensor:
    return degenerate + (images - degenerate) * _per_image(factor)


def luma(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 1 h w"]:
    """Brightness of pixels (ITU-R 601); the mean of channels that are not RGB."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def brightness(images: Images, factor: Numbers) -> Images:
    return _to_uint8(images * _per_image(factor))


def contrast(images: Images, factor: Numbers) -> Images:
    """Blend with the mean luma."""
    x = images.float()
    return _to_uint8(_blend(luma(x).mean((2, 3), keepdim=True).round(), x, factor))


def saturation(images: Images, factor: Numbers) -> Images:
    """Blend with the grey image."""
    x = images.float()
    return _to_uint8(_blend(luma(x), x, factor))


def sharpness(images: Images, factor: Numbers) -> Images:
    """Blend with the image smoothed by (1 1 1, 1 5 1, 1 1 1) / 13; the border, which lacks neighbours, stays."""
    if min(images.shape[2:]) < 3:
        return images
    x = images.float()
    inner = x[:, :, 1:-1, 1:-1]
    smooth = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * inner) / 13
    sharpened = images.clone()
    sharpened[:, :, 1:-1, 1:-1] = _to_uint8(_blend(smooth.round(), inner, factor))
    return sharpened


def jitter(images: Images, factors: Float[Tensor, "b 3"], order: Int[Tensor, "b"]) -> Images:
    """Change brightness, contrast and saturation by their factors, in one of the six orders (0 to 5)."""
    orders = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
    orders = orders.to(images.device, non_blocking=True)
    x = images.float()
    for which in orders[order].unbind(1):
        grey = luma(x)
        degenerate = torch.where(_per_image(which == 2), grey, grey.mean((2, 3), keepdim=True) * _per_image(which == 1))
        x = _blend(degenerate, x, factors.gather(1, which[:, None])[:, 0]).clamp(0, 255)
    return _to_uint8(x)


# ---- Tables ----------------------------------------------------------------------------------------------------------


def posterize(images: Images, bits: Numbers) -> Images:
    """Keep only the highest bits."""
    return images & _per_image(256 - 2 ** (8 - bits)).to(torch.uint8)


def solarize(images: Images, threshold: Numbers) -> Images:
    """Invert values at or above the threshold."""
    return torch.where(images >= _per_image(threshold), 255 - images, images)


def autocontrast(images: Images) -> Images:
    """Stretch every channel to the full range."""
    low, high = (extreme((2, 3), keepdim=True).float() for extreme in (images.amin, images.amax))
    flat = high <= low
    scale = torch.where(flat, 1, 255 / (high - low))
    return ((images - torch.where(flat, 0, low)) * scale + 1e-3).to(torch.uint8)  # truncated, as in Pillow


def equalize(images: Images) -> Images:
    """Flatten the histogram of every channel, by a table of 256 entries for each."""
    b, c, h, w = images.shape
    values = images.reshape(b * c, h * w).long()
    histogram = torch.zeros(b * c, 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(1, values, torch.ones_like(values))
    brightest = histogram.gather(1, values.amax(1, keepdim=True))
    step = (h * w - brightest) // 255  # target number of pixels per level
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step == 0, torch.arange(256, device=images.device), table)  # too few pixels to spread
    return table.gather(1, values).to(torch.uint8).reshape(b, c, h, w)


# ---- Filters ---------------------------------------------------------------------------------------------------------


def blur(images: Images, sigma: Numbers) -> Images:
    """Gaussian blur: rows and columns are multiplied by matrices whose rows are a softmax of -distance^2."""

    def kernels(n: int) -> Tensor:
        at = torch.arange(n, device=images.device, dtype=torch.float32)
        return (-((at[:, None] - at) ** 2) / (2 * sigma**2)[:, None, None]).softmax(-1)[:, None]

    _, _, h, w = images.shape
    return _to_uint8(kernels(h) @ images.float() @ kernels(w).mT)
