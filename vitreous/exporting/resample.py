"""The antialiased resize of `vitreous.data.image.resize` as two matrix products, for runtimes without such an operator.

Torch resizes uint8 images first along the width, then along the height. It rounds the filter weights to 16-bit integers
and the pixels to uint8 after each step, and so does this module: all pixels are equal. Some runtimes compute in float32
whatever types the graph has. All numbers are therefore integers below 2^24, which float32 represents exactly, or sums
of two float32 numbers (`Pair`), which are precise enough to round every weight in the same way.

n: batch; c: channels; h, w: height and width; r: pixels along a resized side; k: weights of one of them.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.data.image.decoding import Interpolation

Scalar = Int[Tensor, ""]  # an integer that the graph computes from the size of the image
Sides = tuple[Scalar, Scalar]  # height and width

# ---- Pairs of float32 numbers ----------------------------------------------------------------------------------------
# The value is high + low, and low is at most half a unit in the last place of high (Dekker 1971).


class Pair(NamedTuple):
    high: Tensor
    low: Tensor


def add(a: Pair, b: Pair) -> Pair:
    total, error = _exact_sum(a.high, b.high)
    return _short_sum(total, error + (a.low + b.low))


def multiply(a: Pair, b: Pair) -> Pair:
    product, error = _exact_product(a.high, b.high)
    return _short_sum(product, error + (a.high * b.low + a.low * b.high))


def divide(a: Pair, b: Pair) -> Pair:
    quotient = a.high / b.high
    product, error = _exact_product(quotient, b.high)
    rest = ((a.high - product) - error) + (a.low - quotient * b.low)
    return _short_sum(quotient, rest / b.high)


def where(condition: Bool[Tensor, "..."], a: Pair, b: Pair) -> Pair:
    return Pair(torch.where(condition, a.high, b.high), torch.where(condition, a.low, b.low))


def pair(value: Tensor | float) -> Pair:
    """Convert a tensor of integers below 2^24, or a number that float32 represents exactly."""
    high = torch.as_tensor(value).float()
    return Pair(high, torch.zeros_like(high))


def _exact_sum(a: Tensor, b: Tensor) -> Pair:
    total = a + b
    part = total - a
    return Pair(total, (a - (total - part)) + (b - part))


def _short_sum(high: Tensor, low: Tensor) -> Pair:
    """Add a small number to a large one."""
    total = high + low
    return Pair(total, low - (total - high))


def _exact_product(a: Tensor, b: Tensor) -> Pair:
    product = a * b
    (a1, a2), (b1, b2) = _halves(a), _halves(b)
    return Pair(product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2))


def _halves(value: Tensor) -> tuple[Tensor, Tensor]:
    """Split the 24 bits of each number into two numbers of 12 bits."""
    shifted = value * 4097.0
    upper = shifted - (shifted - value)
    return upper, value - upper


# ---- Filter weights --------------------------------------------------------------------------------------------------


class Weights(NamedTuple):
    """Integer weights of a resize along one side. Their sum is about `unit`, a power of two."""

    first: Int[Tensor, "r"]  # index of the first input pixel
    values: Float[Tensor, "r k"]
    unit: Float[Tensor, "1"]


def resize_weights(lengths: Sides, sizes: Sides, interpolation: Interpolation) -> tuple[Weights, Weights]:
    """Return the weights that torch uses to resize a height and a width of `lengths` pixels to `sizes` pixels.

    Both are computed at once, so that the graph contains the operations once. Shapes: side, r, k.
    """
    length, size = (torch.stack(sides).view(2, 1, 1) for sides in (lengths, sizes))
    radius = 1 if interpolation == "bilinear" else 2
    longer = torch.maximum(length, size)
    span = (2 * radius * longer + size - 1) // size  # width of the filter in pixels
    odd = (2 * torch.arange(size.max().item())[:, None] + 1).minimum(2 * size - 1)  # the shorter side repeats its last
    # In half pixels, the centre of an output pixel is odd * length / size = whole + rest / size.
    times = length // size
    scaled = odd * (length - times * size)  # small enough for float32
    carry = scaled // size
    whole, rest = odd * times + carry, scaled - carry * size
    first = (whole - span - 1) // 2
    pixels = first + torch.arange((span.max() + 3).item())
    distance = divide(pair((size * (2 * pixels + 1 - whole) - rest).abs()), pair(2 * longer))
    inside = (distance.high < radius) & (pixels >= 0) & (pixels < length)
    filtered = _triangle(distance) if interpolation == "bilinear" else _cubic(distance)
    values, units = _as_integers(where(inside, filtered, pair(0.0)))
    rows, columns = (torch.arange(side.item()) for side in sizes)
    return (
        Weights(first[0, rows, 0], values[0, rows], units[0]),
        Weights(first[1, columns, 0], values[1, columns], units[1]),
    )


def _triangle(distance: Pair) -> Pair:
    return add(pair(1.0), Pair(-distance.high, -distance.low))


def _cubic(distance: Pair) -> Pair:
    """Keys' cubic with a = -0.5: 1 + x^2 (1.5 x - 2.5) below 1, and y^2 (0.5 y - 0.5) with y = 2 - x above."""
    near = distance.high < 1
    x = where(near, distance, add(pair(2.0), Pair(-distance.high, -distance.low)))
    half = Pair(x.high / 2, x.low / 2)
    line = add(where(near, add(x, half), half), pair(torch.where(near, -2.5, -0.5)))
    return add(multiply(multiply(x, x), line), pair(near))


def _as_integers(weights: Pair) -> tuple[Float[Tensor, "2 r k"], Float[Tensor, "2 1"]]:
    """Normalise weights to a sum of 1 and scale them to 16-bit integers. Also return the factor of each side."""
    upper = (weights.high * 2**12).floor() / 2**12  # so few bits that the sum is exact
    middle = ((weights.high - upper) * 2**24).floor() / 2**24
    lower = ((weights.high - upper) - middle) + weights.low
    sums = [part.sum(dim=2, keepdim=True) for part in (upper, middle, lower)]
    total = add(_exact_sum(sums[0], sums[1]), Pair(sums[2], torch.zeros_like(sums[2])))
    weights = divide(weights, total)
    units = torch.tensor([2.0**bits for bits in range(23)])
    bits = (weights.high.amax(dim=(1, 2))[:, None] * 2 * units[:22] < 2**15 - 0.5).sum(dim=1)
    unit = units.index_select(0, bits)[:, None, None]
    sign = torch.where(weights.high < 0, -1.0, 1.0)
    high, low = weights.high * sign * unit, weights.low * sign * unit
    whole = high.floor()
    return (whole + (((high - whole) - 0.5) + low >= 0)) * sign, unit[:, 0]


# ---- Product with an image -------------------------------------------------------------------------------------------


def resize_rows(images: Float[Tensor, "n c h w"], weights: Weights) -> Float[Tensor, "n c r w"]:
    """Resize the height. All pixel values are integers from 0 to 255."""
    upper, lower = _matrices(weights, images.shape[2])
    return _rounded(upper @ images, lower @ images, weights.unit)


def resize_columns(images: Float[Tensor, "n c h w"], weights: Weights) -> Float[Tensor, "n c h r"]:
    """Resize the width. All pixel values are integers from 0 to 255."""
    upper, lower = (matrix.T for matrix in _matrices(weights, images.shape[3]))
    return _rounded(images @ upper, images @ lower, weights.unit)


def _matrices(weights: Weights, length: int) -> tuple[Float[Tensor, "r h"], Float[Tensor, "r h"]]:
    """Return the matrix of the weights as 256 * upper + lower, so that products with an image are below 2^24."""
    place = torch.arange(length) - weights.first[:, None]
    count = weights.values.shape[1]
    known = weights.values.gather(1, place.clamp(0, count - 1))
    matrix = torch.where((place >= 0) & (place < count), known, 0.0)
    upper = (matrix / 256).round()
    return upper, matrix - 256 * upper


def _rounded(upper: Tensor, lower: Tensor, unit: Tensor) -> Tensor:
    """Divide 256 * upper + lower by the unit and round to a pixel value."""
    whole = (upper / (unit / 256)).floor()
    rest = 256 * upper - unit * whole
    return (whole + ((rest + lower) / unit + 0.5).floor()).clamp(0, 255)
