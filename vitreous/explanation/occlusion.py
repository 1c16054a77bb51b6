"""Occlusion: the drop in a class's probability when a window of the image is masked.

Slow, but it measures the model's answer itself, so other maps are compared with it.

k: masks; c: channels; h, w: image height and width; gh, gw: grid height and width.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation.captured import CapturedForward, check_target, evaluation_mode, no_step

Fill = Literal["mean", "blur"]  # of masked pixels: the image's mean colour, or the image blurred
BATCH = 32  # images at once


@torch.no_grad()
def occlusion(
    captured: CapturedForward,
    target: int,
    window: Size | None = None,
    stride: Size | None = None,
    batch_size: int = BATCH,
    between: Callable[[], None] = no_step,
) -> Float[Tensor, "h w"]:
    """Mean drop in probability over all windows that cover a pixel. Negative: masking it raises the probability.

    By default a window is a seventh of the image high and wide, in whole patches, and moves by half of that.
    """
    check_target(captured.model, target)
    size = (captured.images.shape[2], captured.images.shape[3])
    usual = default_windows(captured)
    places = _windows(size, window or usual[0], stride or usual[1])
    masked = masked_probabilities(captured, _window_masks(places, size, batch_size), "mean", between)
    drops = captured.logits().softmax(dim=-1)[0, target] - masked[:, target]
    total, times = torch.zeros(2, *size, device=drops.device)
    for place, drop in zip(places, drops, strict=True):
        total[place] += drop
        times[place] += 1
    return total / times


def default_windows(captured: CapturedForward) -> tuple[Size, Size]:
    """Size and stride of the windows, in pixels."""
    (ph, pw), (gh, gw) = captured.model.config.patch_stride, captured.layout.grid
    window = (ph * max(round(gh / 7), 1), pw * max(round(gw / 7), 1))
    return window, (ph * max(round(gh / 14), 1), pw * max(round(gw / 14), 1))


def _windows(size: Size, window: Size, stride: Size) -> list[tuple[slice, slice]]:
    """Rows and columns of windows that cover an image; the last of a row ends where the row does."""
    tops, lefts = (
        [*range(0, max(side - length, 0), step), max(side - length, 0)]
        for side, length, step in zip(size, window, stride, strict=True)
    )
    return [(slice(top, top + window[0]), slice(left, left + window[1])) for top in tops for left in lefts]


def _window_masks(places: list[tuple[slice, slice]], size: Size, batch_size: int) -> Iterator[Bool[Tensor, "k h w"]]:
    for first in range(0, len(places), batch_size):
        some = places[first : first + batch_size]
        masks = torch.zeros(len(some), *size, dtype=torch.bool)
        for mask, place in zip(masks, some, strict=True):
            mask[place] = True
        yield masks


@torch.no_grad()
def masked_probabilities(
    captured: CapturedForward,
    batches: Iterable[Bool[Tensor, "k h w"]],
    fill: Fill,
    between: Callable[[], None] = no_step,
) -> Float[Tensor, "masks classes"]:
    """Probabilities of all classes for the image with masked pixels; `between` is called before each batch."""
    model, image, found = captured.model, captured.images, []
    replacement = fill_image(captured, fill)
    with evaluation_mode(model):
        for masks in batches:
            between()
            images = torch.where(masks[:, None].to(image.device), replacement, image)
            found.append(model(images).float().softmax(dim=-1))
    return torch.cat(found)


def fill_image(captured: CapturedForward, fill: Fill) -> Float[Tensor, "1 c h w"]:
    """Pixels that replace masked ones."""
    image = captured.images
    if fill == "mean":
        return image.mean(dim=(2, 3), keepdim=True).expand_as(image)
    return blurred(image, max(captured.model.config.patch_stride) / 2 + max(image.shape[2:]) / 20)


def blurred(image: Float[Tensor, "b c h w"], sigma: float) -> Float[Tensor, "b c h w"]:
    """Apply a Gaussian blur of `sigma` pixels; the border is replicated."""
    reach = max(round(3 * sigma), 1)
    x = torch.arange(-reach, reach + 1, device=image.device, dtype=image.dtype)
    kernel = (-0.5 * (x / sigma) ** 2).exp()
    kernel = (kernel / kernel.sum()).expand(image.shape[1], 1, 1, -1)
    for weight, padding in ((kernel, (reach, reach, 0, 0)), (kernel.mT, (0, 0, reach, reach))):
        image = F.conv2d(F.pad(image, padding, mode="replicate"), weight, groups=image.shape[1])
    return image


def as_pixels(masks: Bool[Tensor, "k gh gw"], patch_stride: Size, size: Size) -> Bool[Tensor, "k h w"]:
    """Masks of patches as masks of pixels."""
    ph, pw = patch_stride
    return masks.repeat_interleave(ph, dim=1).repeat_interleave(pw, dim=2)[:, : size[0], : size[1]]


def as_patches(pixels: Float[Tensor, "h w"], patch_stride: Size) -> Float[Tensor, "gh gw"]:
    """Mean over the pixels of every patch."""
    (h, w), (ph, pw) = pixels.shape, patch_stride
    whole = F.pad(pixels[None, None], (0, -w % pw, 0, -h % ph), mode="replicate")
    return F.avg_pool2d(whole, patch_stride)[0, 0]
