"""Is a map right about the model? Take away what it calls important and the answer should go; show only that, and it
should come back (deletion and insertion, Petsiuk et al., arXiv 1806.07421).

gh, gw: grid height and width; h, w: image height and width; s: steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from vitreous.common.checks import Size, check_whole
from vitreous.explanation.capture import go_on
from vitreous.explanation.occlusion import BATCH, Fill, painted, probability
from vitreous.model.vit import ViT

STEPS = 16


@dataclass(frozen=True)
class Faithfulness:
    """Two curves of a class's probability, from no patch to all of them, and the areas under them."""

    shares: Float[Tensor, "s"]  # of the patches that are taken away, or shown
    deletion_curve: Float[Tensor, "s"]
    insertion_curve: Float[Tensor, "s"]

    @property
    def deletion(self) -> float:
        """From 0 to 1; the lower, the better the map."""
        return float(torch.trapezoid(self.deletion_curve, self.shares))

    @property
    def insertion(self) -> float:
        """From 0 to 1; the higher, the better the map."""
        return float(torch.trapezoid(self.insertion_curve, self.shares))


@torch.no_grad()
def faithfulness(
    model: ViT,
    image: Float[Tensor, "1 c h w"],
    target: int,
    importance: Float[Tensor, "gh gw"],
    steps: int = STEPS,
    deletion_fill: Fill = "mean",
    insertion_fill: Fill = "blur",
    batch_size: int = BATCH,
    between: Callable[[], None] = go_on,
) -> Faithfulness:
    """The most important patches first, in `steps` equal steps; equally important ones in reading order."""
    size = (image.shape[2], image.shape[3])
    grid = model.config.grid_for(size)
    if tuple(importance.shape) != grid:
        raise ValueError(f"the map has {tuple(importance.shape)} places, but the image has {grid} patches")
    check_whole("steps", steps, 1, 2**20)
    count = importance.numel()
    numbers = torch.linspace(0, count, min(steps, count) + 1).round().long()
    rank = torch.empty(count, dtype=torch.long)
    rank[importance.flatten().cpu().argsort(descending=True, stable=True)] = torch.arange(count)
    first = (rank.view(grid) < numbers[:, None, None]).to(image.device)
    gone = painted(model, image, deletion_fill)
    blank = painted(model, image, insertion_fill)
    deleted, inserted = [], []
    for start in range(0, len(first), batch_size):
        between()
        mask = as_pixels(first[start : start + batch_size], model.config.patch_stride, size)[:, None]
        deleted.append(probability(model, torch.where(mask, gone, image), target))
        inserted.append(probability(model, torch.where(mask, image, blank), target))
    return Faithfulness(numbers / count, torch.cat(deleted).cpu(), torch.cat(inserted).cpu())


def random_faithfulness(
    model: ViT,
    image: Float[Tensor, "1 c h w"],
    target: int,
    draws: int = 3,
    steps: int = STEPS,
    seed: int = 0,
    batch_size: int = BATCH,
    between: Callable[[], None] = go_on,
) -> Faithfulness:
    """Of patches in random order, the mean of several: what a map must beat."""
    generator = torch.Generator().manual_seed(seed)
    grid = model.config.grid_for((image.shape[2], image.shape[3]))
    orders = [torch.rand(grid, generator=generator) for _ in range(draws)]
    tries = [
        faithfulness(model, image, target, order, steps, batch_size=batch_size, between=between) for order in orders
    ]
    return Faithfulness(
        tries[0].shares,
        torch.stack([one.deletion_curve for one in tries]).mean(dim=0),
        torch.stack([one.insertion_curve for one in tries]).mean(dim=0),
    )


def as_pixels(masks: Bool[Tensor, "k gh gw"], unit: Size, size: Size) -> Bool[Tensor, "k h w"]:
    """Every patch as the pixels that it stands for."""
    return masks.repeat_interleave(unit[0], dim=1).repeat_interleave(unit[1], dim=2)[:, : size[0], : size[1]]


def as_patches(pixels: Float[Tensor, "h w"], unit: Size) -> Float[Tensor, "gh gw"]:
    """The mean over the pixels of every patch."""
    h, w = pixels.shape
    whole = F.pad(pixels[None, None], (0, -w % unit[1], 0, -h % unit[0]), mode="replicate")
    return F.avg_pool2d(whole, unit)[0, 0]
