"""What colours become, each picture of a batch with its own strength. 8 bits in, 8 bits out; Pillow's definitions.

b: batch, c: channels, h, w: height and width.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

Images = UInt8[Tensor, "b c h w"]
Numbers = Float[Tensor, "b"]


def _each(numbers: Tensor) -> Tensor:
    """One number for each picture, ready to meet pixels."""
    return numbers[:, None, None, None]


def _eight_bits(images: Tensor) -> Images:
    return images.round().clamp(0, 255).to(torch.uint8)


# ---- Blends with something duller: factor 0 gives that, 1 the picture, above 1 exaggerates ---------------------------


def _blend(dull: Tensor, images: Tensor, factor: Numbers) -> Tensor:
    return dull + (images - dull) * _each(factor)


def luma(images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 1 h w"]:
    """How bright pixels are (ITU-R 601); the mean of channels that are not red, green and blue."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    red, green, blue = images.unbind(1)
    return (0.299 * red + 0.587 * green + 0.114 * blue)[:, None]


def brightness(images: Images, factor: Numbers) -> Images:
    return _eight_bits(images * _each(factor))


def contrast(images: Images, factor: Numbers) -> Images:
    """The dull picture is the mean luma, everywhere."""
    x = images.float()
    return _eight_bits(_blend(luma(x).mean((2, 3), keepdim=True).round(), x, factor))


def saturation(images: Images, factor: Numbers) -> Images:
    """The dull picture is grey."""
    x = images.float()
    return _eight_bits(_blend(luma(x), x, factor))


def sharpness(images: Images, factor: Numbers) -> Images:
    """The dull picture is smoothed with (1 1 1, 1 5 1, 1 1 1) / 13. The border, without all neighbours, stays."""
    if min(images.shape[2:]) < 3:
        return images
    x = images.float()
    inner = x[:, :, 1:-1, 1:-1]
    smooth = (9 * F.avg_pool2d(x, 3, stride=1) + 4 * inner) / 13
    sharpened = images.clone()
    sharpened[:, :, 1:-1, 1:-1] = _eight_bits(_blend(smooth.round(), inner, factor))
    return sharpened


def jitter(images: Images, factors: Float[Tensor, "b 3"], order: Int[Tensor, "b"]) -> Images:
    """Brightness, contrast and saturation by their factors, in one of the six orders (0 to 5)."""
    orders = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
    orders = orders.to(images.device, non_blocking=True)
    x = images.float()
    for which in orders[order].unbind(1):
        grey = luma(x)
        dull = torch.where(_each(which == 2), grey, grey.mean((2, 3), keepdim=True) * _each(which == 1))
        x = _blend(dull, x, factors.gather(1, which[:, None])[:, 0]).clamp(0, 255)
    return _eight_bits(x)


# ---- Tables ----------------------------------------------------------------------------------------------------------


def posterize(images: Images, bits: Numbers) -> Images:
    """Keep only the highest bits."""
    return images & _each(256 - 2 ** (8 - bits)).to(torch.uint8)


def solarize(images: Images, threshold: Numbers) -> Images:
    """Invert what is at least as bright as the threshold."""
    return torch.where(images >= _each(threshold), 255 - images, images)


def autocontrast(images: Images) -> Images:
    """Stretch every channel to the full range."""
    low, high = (extreme((2, 3), keepdim=True).float() for extreme in (images.amin, images.amax))
    flat = high <= low
    scale = torch.where(flat, 1, 255 / (high - low))
    return ((images - torch.where(flat, 0, low)) * scale + 1e-3).to(torch.uint8)  # cut off, not rounded, as Pillow does


def equalize(images: Images) -> Images:
    """Give every channel a flat histogram, by a table of 256 entries for each."""
    b, c, h, w = images.shape
    values = images.reshape(b * c, h * w).long()
    histogram = torch.zeros(b * c, 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(1, values, torch.ones_like(values))
    brightest = histogram.gather(1, values.amax(1, keepdim=True))
    step = (h * w - brightest) // 255  # how many pixels a level should have
    below = histogram.cumsum(1) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step == 0, torch.arange(256, device=images.device), table)  # too few pixels to spread
    return table.gather(1, values).to(torch.uint8).reshape(b, c, h, w)


# ---- Filters ---------------------------------------------------------------------------------------------------------


def blur(images: Images, sigma: Numbers) -> Images:
    """Gaussian. Rows and then columns are multiplied by matrices whose lines are bells: a softmax of -distance^2."""

    def bells(n: int) -> Tensor:
        at = torch.arange(n, device=images.device, dtype=torch.float32)
        return (-((at[:, None] - at) ** 2) / (2 * sigma**2)[:, None, None]).softmax(-1)[:, None]

    _, _, h, w = images.shape
    return _eight_bits(bells(h) @ images.float() @ bells(w).mT)
