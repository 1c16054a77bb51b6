"""Random resized crops of a whole batch on the device, from images of different sizes in one packed tensor.

A resize is linear and separable, so two batched matrix products resize all images at once. The results equal those of
`random_resized_crop` up to rounding, and do not depend on the other images in the batch.

b: batch; c: channels; h, w: height and width of the result; n: pixels of all images.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.data.image.decoding import Interpolation

Box = tuple[int, int, int, int]  # top, left, height and width of a crop

CHUNK = 1 << 24  # number of pixels to crop at a time; bounds the memory for pixel indices
SUPPORT = {"bilinear": 1, "bicubic": 2}  # radius of the interpolation kernel, in pixels
# Weights are multiples of 2^-15, so float32 sums of their products with 8-bit values are exact, in any order. The
# pixels of a crop are then the same in a batch of any size.
WEIGHT_BITS = 15


def crop_images(
    pixels: UInt8[Tensor, "n c"],
    starts: Sequence[int],
    widths: Sequence[int],
    boxes: Sequence[Box],
    size: Size,
    interpolation: Interpolation,
) -> UInt8[Tensor, "b c {size[0]} {size[1]}"]:
    """Crop each image to its box, and resize the crops to `size` with antialiasing.

    `pixels` contains all images. `starts` has the index of the first pixel of each image, `widths` the image widths.
    """
    result = torch.empty(len(boxes), size[0], pixels.shape[1], size[1], dtype=torch.uint8, device=pixels.device)
    table = _table(starts, widths, boxes, pixels.device)
    rows, columns = (max(box[axis] for box in boxes) for axis in (2, 3))
    step = max(CHUNK // (rows * columns), 1)
    for first in range(0, len(boxes), step):
        chunk = slice(first, first + step)
        start, width, top, left, crop_height, crop_width = table[chunk].unbind(1)
        # Smaller crops are padded by repeating their last row and column; the padding has weight 0.
        y = top[:, None] + torch.arange(rows, device=pixels.device).minimum(crop_height[:, None] - 1)
        x = left[:, None] + torch.arange(columns, device=pixels.device).minimum(crop_width[:, None] - 1)
        crops = pixels[start[:, None, None] + y[:, :, None] * width[:, None, None] + x[:, None, :]]
        dtype = torch.float16 if pixels.device.type == "cuda" else torch.float32
        across = resize_weights(crop_width, size[1], columns, interpolation).to(dtype)
        down = resize_weights(crop_height, size[0], rows, interpolation).to(dtype)
        values = crops.permute(0, 1, 3, 2).to(dtype).flatten(1, 2)  # [b, rows x c, columns]
        values = _rounded(values @ across.mT).view(len(values), rows, -1)  # [b, rows, c x w]
        result[chunk] = _rounded(down @ values).view(len(values), size[0], -1, size[1])
    return result.permute(0, 2, 1, 3)


def crop_masks(
    masks: UInt8[Tensor, "n"], starts: Sequence[int], widths: Sequence[int], boxes: Sequence[Box], size: Size
) -> UInt8[Tensor, "b {size[0]} {size[1]}"]:
    """Crop masks as `crop_images` crops their images, but with nearest-neighbour interpolation."""
    table = _table(starts, widths, boxes, masks.device)
    start, width, top, left, height, columns = (column[:, None] for column in table.unbind(1))
    i, j = (torch.arange(side, device=masks.device) for side in size)
    y, x = top + (2 * i + 1) * height // (2 * size[0]), left + (2 * j + 1) * columns // (2 * size[1])
    return masks[start[:, None] + y[:, :, None] * width[:, None] + x[:, None, :]]


def resize_weights(
    lengths: Int[Tensor, "b"], out: int, longest: int, interpolation: Interpolation
) -> Float[Tensor, "b {out} {longest}"]:
    """Return one matrix per length, which resizes rows of that length to `out` pixels. Matrices are zero-padded."""
    scale = lengths[:, None] / out
    stretch = scale.clamp(min=1)  # when shrinking, the kernel covers more pixels
    centre = (torch.arange(out, device=lengths.device) + 0.5) * scale
    support = SUPPORT[interpolation] * stretch
    taps = math.ceil(2 * SUPPORT[interpolation] * max(longest / out, 1)) + 1
    pixel = (centre - support + 0.5).floor().long()[..., None] + torch.arange(taps, device=lengths.device)
    kernel = _cubic if interpolation == "bicubic" else _triangle
    weights = kernel((pixel + 0.5 - centre[..., None]).abs() / stretch[..., None])
    weights = torch.where((pixel >= 0) & (pixel < lengths[:, None, None]), weights, 0)
    weights /= weights.sum(2, keepdim=True)
    weights = ((weights * 2**WEIGHT_BITS).round() / 2**WEIGHT_BITS).half().float()
    matrix = torch.zeros(len(lengths), out, longest, device=lengths.device)
    return matrix.scatter_add_(2, pixel.clamp(0, longest - 1), weights)  # pixels outside have weight 0


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp(min=0)


def _cubic(x: Tensor) -> Tensor:
    """Evaluate the Catmull-Rom kernel, as in torch's and Pillow's antialiased resize."""
    near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0))


def _rounded(values: Tensor) -> Tensor:
    return values.round_().clamp_(0, 255)  # also between the two passes, as in torch's resize of uint8 images


def _table(
    starts: Sequence[int], widths: Sequence[int], boxes: Sequence[Box], device: torch.device
) -> Int[Tensor, "b 6"]:
    rows = [(start, width, *box) for start, width, box in zip(starts, widths, boxes, strict=True)]
    return torch.tensor(rows).to(device, non_blocking=True)
