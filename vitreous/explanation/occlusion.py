"""What the model loses when it cannot see a part: the drop in a class's probability, place by place.

Slow, but it asks the model itself instead of reading its inside, so other maps are compared with it.

b: batch; c: channels; h, w: image height and width; gh, gw: grid height and width.
"""

from collections.abc import Callable, Iterator
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.common.checks import Size, check_choice, check_whole
from vitreous.explanation.capture import at_rest, go_on, layout_of
from vitreous.model.inputs import normalise
from vitreous.model.tokens import keep_patches
from vitreous.model.vit import ViT

Fill = Literal["grey", "mean", "blur"]  # mid-grey, the image's own mean colour, or what is left of it without detail
BATCH = 32  # images at once


# ---- By painting over pixels -----------------------------------------------------------------------------------------


@torch.no_grad()
def occlusion(
    model: ViT,
    image: Float[Tensor, "1 c h w"],
    target: int,
    window: Size | None = None,
    stride: Size | None = None,
    fill: Fill = "mean",
    batch_size: int = BATCH,
    between: Callable[[], None] = go_on,
) -> Float[Tensor, "h w"]:
    """The mean drop in probability over all windows that cover a pixel. Negative: hiding it makes the class likelier.

    Left to itself, a window is a seventh of the image high and wide, in whole patches, and moves by half of that.
    `between` is called between batches.
    """
    size = (image.shape[2], image.shape[3])
    usual = usual_windows(model, size)
    window, stride = window or usual[0], stride or usual[1]
    paint, whole = painted(model, image, fill), probability(model, image, target)
    total, times = torch.zeros(2, *size, device=image.device)
    for places in _windows(size, window, stride, batch_size):
        between()
        images = image.repeat(len(places), 1, 1, 1)
        for hidden, place in zip(images, places, strict=True):
            hidden[place] = paint[0][place]
        for place, drop in zip(places, whole - probability(model, images, target), strict=True):
            total[place[1:]] += drop
            times[place[1:]] += 1
    return total / times


def usual_windows(model: ViT, size: Size) -> tuple[Size, Size]:
    """The sides of a window and of its step, in pixels."""
    (uh, uw), (gh, gw) = model.config.patch_stride, model.config.grid_for(size)
    window = (uh * max(round(gh / 7), 1), uw * max(round(gw / 7), 1))
    return window, (uh * max(round(gh / 14), 1), uw * max(round(gw / 14), 1))


def _windows(size: Size, window: Size, stride: Size, batch_size: int) -> Iterator[list[tuple[slice, slice, slice]]]:
    """Windows all over an image, as indices of it, a batch at a time; the last of a row ends where the row does."""
    tops, lefts = (
        [*range(0, max(side - length, 0), step), max(side - length, 0)]
        for side, length, step in zip(size, window, stride, strict=True)
    )
    places = [
        (slice(None), slice(top, top + window[0]), slice(left, left + window[1])) for top in tops for left in lefts
    ]
    for first in range(0, len(places), batch_size):
        yield places[first : first + batch_size]


def probability(model: ViT, images: Float[Tensor, "b c h w"], target: int) -> Float[Tensor, "b"]:
    check_whole("target", target, 0, model.config.num_classes - 1)
    with at_rest(model), torch.no_grad():
        return model(images).float().softmax(dim=-1)[:, target]


def painted(model: ViT, image: Float[Tensor, "1 c h w"], fill: Fill) -> Float[Tensor, "1 c h w"]:
    """What takes the place of the pixels that are hidden."""
    check_choice("fill", fill, get_args(Fill))
    match fill:
        case "grey":
            return normalise(torch.full_like(image, 0.5), model.config.preprocessing)
        case "mean":
            return image.mean(dim=(2, 3), keepdim=True).expand_as(image)
        case "blur":
            return blurred(image, max(model.config.patch_stride) / 2 + max(image.shape[2:]) / 20)


def blurred(image: Float[Tensor, "b c h w"], sigma: float) -> Float[Tensor, "b c h w"]:
    """Through a Gaussian of `sigma` pixels, the border repeated outwards."""
    reach = max(round(3 * sigma), 1)
    x = torch.arange(-reach, reach + 1, device=image.device, dtype=image.dtype)
    kernel = (-0.5 * (x / sigma) ** 2).exp()
    kernel = (kernel / kernel.sum()).expand(image.shape[1], 1, 1, -1)
    for weight, padding in ((kernel, (reach, reach, 0, 0)), (kernel.mT, (0, 0, reach, reach))):
        image = F.conv2d(F.pad(image, padding, mode="replicate"), weight, groups=image.shape[1])
    return image


# ---- By leaving patches out, which is cheaper ------------------------------------------------------------------------


@torch.no_grad()
def patch_occlusion(
    model: ViT, image: Float[Tensor, "1 c h w"], target: int, block: int = 1, batch_size: int = BATCH
) -> Float[Tensor, "gh gw"]:
    """The drop in probability when a block of `block` x `block` patches is left out of the sequence.

    Stem and patches are computed once, every pass has fewer tokens, and blocks do not overlap. Nothing is painted, so
    nothing is seen that was not there; but in a hybrid the patches next to a block have seen into it.
    """
    check_whole("block", block, 1, 2**16)
    layout = layout_of(model, image)
    drops = torch.zeros(layout.grid, device=image.device)
    with at_rest(model):
        tokens, _ = model.embed(*model.patchify(image))
        whole = probability(model, image, target)
        for keep_indices, cells in _batches(layout.grid, block, batch_size, image.device):
            some, places = keep_patches(tokens.expand(len(keep_indices), -1, -1), layout, keep_indices)
            left = model.classify(model.encode(some, places)).float().softmax(dim=-1)[:, target]
            for (top, bottom, start, end), drop in zip(cells, whole - left, strict=True):
                drops[top:bottom, start:end] = drop
    return drops


def _batches(
    grid: Size, block: int, batch_size: int, device: torch.device
) -> Iterator[tuple[Int[Tensor, "k kept"], list[tuple[int, int, int, int]]]]:
    """Blocks of the grid and what is left without each; those of a batch leave equally many."""
    gh, gw = grid
    everything = torch.arange(gh * gw, device=device).view(gh, gw)
    by_size: dict[int, list[tuple[int, int, int, int]]] = {}
    for top in range(0, gh, block):
        for left in range(0, gw, block):
            cell = (top, min(top + block, gh), left, min(left + block, gw))
            by_size.setdefault((cell[1] - top) * (cell[3] - left), []).append(cell)
    for cells in by_size.values():
        for first in range(0, len(cells), batch_size):
            some = cells[first : first + batch_size]
            keep_indices = []
            for top, bottom, left, right in some:
                stays = torch.ones(gh, gw, dtype=torch.bool, device=device)
                stays[top:bottom, left:right] = False
                keep_indices.append(everything[stays])
            yield torch.stack(keep_indices), some
