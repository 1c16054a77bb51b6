"""The exported program: a model from decoded uint8 images to its outputs, traced with dynamic batch and image size.

n: batch; c: channels; h, w: height and width of the decoded images; k: classes; sh, sw: height and width after the
resize of a segmenter.
"""

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.export import Dim

from vitreous.common.checks import Size
from vitreous.exporting.options import OptionalOutput
from vitreous.exporting.outputs import Outputs, output_names
from vitreous.exporting.preprocess import Preprocess, covering, decoded
from vitreous.exporting.resample import Scalar, resize_columns, resize_rows, resize_weights
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing
from vitreous.model.protocol import Model
from vitreous.model.segmenter import Segmenter
from vitreous.runtimes.trace import Program, exportable, traced

OVERLAP = 0.5  # of neighbouring windows of a segmenter, as in SegmentPredictor

# ---- Modules to trace ------------------------------------------------------------------------------------------------


class ImageModel(nn.Module):
    """Preprocessing and a model with one input size, or with the input size as a second input."""

    def __init__(self, outputs: Outputs):
        super().__init__()
        self.outputs, self.config = outputs, outputs.model.config
        self.preprocess = Preprocess(self.config.preprocessing, self.config.channels)

    def forward(self, images: UInt8[Tensor, "n h w c"], size: Int[Tensor, "2"] | None = None) -> tuple[Tensor, ...]:
        if size is None:
            height, width = self.config.image_size
            pixels = self.preprocess(images, torch.tensor([height, width]))
            return self.outputs(pixels.reshape(-1, self.config.channels, height, width))
        return self.outputs(whole_patches(self.preprocess(images, size), self.config.patch_stride))


class AnySize(nn.Module):
    """Model for preprocessed images of any size."""

    def __init__(self, outputs: Outputs):
        super().__init__()
        self.outputs = outputs

    def forward(self, pixels: Float[Tensor, "n c h w"]) -> tuple[Tensor, ...]:
        return self.outputs(whole_patches(pixels, self.outputs.model.config.patch_stride))


def whole_patches(pixels: Float[Tensor, "n c h w"], stride: Size) -> Float[Tensor, "n c h w"]:
    """Return the images unchanged, but with sides that torch knows to be multiples of `stride`."""
    counts = [
        torch.full((), side, dtype=torch.int64) // step for side, step in zip(pixels.shape[2:], stride, strict=True)
    ]
    rows, columns = (cast(int, count.item()) for count in counts)
    torch._check(rows >= 1)  # type: ignore[no-untyped-call]
    torch._check(columns >= 1)  # type: ignore[no-untyped-call]
    return pixels.reshape(*pixels.shape[:2], rows * stride[0], columns * stride[1])


class ImageSegmenter(nn.Module):
    """Preprocessing, sliding windows and a segmenter; see `SegmentPredictor`."""

    def __init__(self, model: Segmenter, dtype: torch.dtype):
        super().__init__()
        self.model, self.config, self.dtype = model, model.config, dtype

    def forward(self, images: UInt8[Tensor, "n h w c"]) -> tuple[Float[Tensor, "n k sh sw"], UInt8[Tensor, "n h w"]]:
        (n, h, w, c), size, how = images.shape, self.config.image_size, self.config.preprocessing
        pixels, image = decoded(images)
        seen = covering(image, (torch.tensor(size[0]), torch.tensor(size[1])))
        rows, columns = resize_weights(image, seen, how.interpolation)
        pixels = normalise(resize_rows(resize_columns(pixels, columns), rows) / 255, how)
        tops, lefts = (_starts(side, window) for side, window in zip(seen, size, strict=True))
        y, x = (start[:, None] + torch.arange(window) for start, window in zip((tops, lefts), size, strict=True))
        windows = pixels[:, :, y][..., x].permute(0, 2, 4, 1, 3, 5).reshape(-1, c, *size)
        scores = self.model(windows.to(self.dtype)).float().reshape(n, tops.shape[0], lefts.shape[0], -1, *size)
        scores = _average(scores.permute(0, 2, 3, 5, 1, 4), tops, seen[0])  # n, windows in a row, k, window width, sh
        scores = _average(scores.permute(0, 2, 4, 1, 3), lefts, seen[1])
        full = F.interpolate(scores, (h, w), mode="bilinear", align_corners=False)
        return scores, full.argmax(dim=1).to(torch.uint8)


def _starts(side: Scalar, window: int) -> Int[Tensor, "windows"]:
    """Return the first pixel of each window along one side; see `segmenter.slide`."""
    step = _step(window)
    count = (side - window + step - 1) // step + 1
    return (torch.arange(count.item()) * step).minimum(side - window)


def _step(window: int) -> int:
    return max(round(window * (1 - OVERLAP)), 1)


def _average(
    scores: Float[Tensor, "*rest windows size"], starts: Int[Tensor, "windows"], side: Scalar
) -> Float[Tensor, "*rest side"]:
    """Place windows at their starts along one side, and average them where they overlap."""
    size = scores.shape[-1]
    flat, place = scores.flatten(-2), torch.arange(side.item())
    last = (starts <= place[:, None]).sum(dim=1) - 1  # the last window that begins at or before each pixel
    total, count = torch.zeros(()), torch.zeros(())
    for back in range(-(-size // _step(size)) + 1):
        window = (last - back).clamp(min=0)
        offset = place - starts[window]
        covered = (last >= back) & (offset < size)
        values = flat[..., window * size + offset.clamp(max=size - 1)]
        total, count = total + torch.where(covered, values, 0.0), count + covered
    return total / count


# ---- Tracing ---------------------------------------------------------------------------------------------------------


def trace_images(
    model: Model,
    optional: Sequence[OptionalOutput] = (),
    dtype: torch.dtype = torch.float32,
    dynamic_size: bool = False,
) -> Program:
    """Trace a model from decoded images to its outputs."""
    names, module = output_names(model, optional), exportable(model, dtype)
    example = torch.zeros(2, 40, 50, model.config.channels, dtype=torch.uint8)
    dynamic = dict.fromkeys((0, 1, 2), Dim.DYNAMIC)
    if isinstance(module, Segmenter):
        return traced(ImageSegmenter(module, dtype), {"images": example}, (dynamic,), names)
    images = ImageModel(Outputs(module, names, dtype))
    if not dynamic_size:
        return traced(images, {"images": example}, (dynamic,), names)
    size = torch.tensor(model.config.image_size)
    return traced(images, {"images": example, "size": size}, (dynamic, None), names)


def trace_tensors(
    model: Model,
    optional: Sequence[OptionalOutput] = (),
    dtype: torch.dtype = torch.float32,
    dynamic_size: bool = False,
) -> Program:
    """Trace a model from preprocessed images to its outputs. A segmenter takes single windows."""
    config, names, module = model.config, output_names(model, optional), exportable(model, dtype)
    names = names[:1] if isinstance(module, Segmenter) else names
    outputs, example = Outputs(module, names, dtype), torch.zeros(2, config.channels, *config.image_size)
    if dynamic_size:
        return traced(AnySize(outputs), {"pixels": example}, (dict.fromkeys((0, 2, 3), Dim.DYNAMIC),), names)
    return traced(outputs, {"pixels": example}, ({0: Dim.DYNAMIC},), names)


def trace_preprocessing(how: Preprocessing, channels: int) -> Program:
    """Trace the preprocessing alone, from decoded images and an image size to the input of `trace_tensors`."""
    example = torch.zeros(2, 40, 50, channels, dtype=torch.uint8)
    inputs = {"images": example, "size": torch.tensor([32, 48])}
    return traced(Preprocess(how, channels), inputs, (dict.fromkeys((0, 1, 2), Dim.DYNAMIC), None), ("pixels",))
