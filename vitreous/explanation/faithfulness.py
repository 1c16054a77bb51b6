"""Tests of importance maps: deletion and insertion (Petsiuk et al., arXiv 1806.07421).

Masking the patches that a map calls important should lower the class's probability soon; showing only them should raise
it soon.

gh, gw: grid height and width; s: steps.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import check_whole
from vitreous.explanation.captured import CapturedForward, check_target, no_step
from vitreous.explanation.occlusion import BATCH, Fill, as_pixels, masked_probabilities

STEPS = 16


@dataclass(frozen=True)
class Faithfulness:
    """Two curves of a class's probability, from no patch to all of them, and the areas under them."""

    fractions: Float[Tensor, "s"]  # of the patches that are masked, or shown
    deletion_curve: Float[Tensor, "s"]
    insertion_curve: Float[Tensor, "s"]

    @property
    def deletion(self) -> float:
        """Area from 0 to 1; lower is better."""
        return float(torch.trapezoid(self.deletion_curve, self.fractions))

    @property
    def insertion(self) -> float:
        """Area from 0 to 1; higher is better."""
        return float(torch.trapezoid(self.insertion_curve, self.fractions))


def faithfulness(
    captured: CapturedForward,
    target: int,
    importance: Float[Tensor, "gh gw"],
    steps: int = STEPS,
    batch_size: int = BATCH,
    between: Callable[[], None] = no_step,
) -> Faithfulness:
    """Mask and show the most important patches first, in `steps` equal steps; ties in reading order."""
    grid, size = captured.layout.grid, (captured.images.shape[2], captured.images.shape[3])
    if tuple(importance.shape) != grid:
        raise ValueError(f"the map has {tuple(importance.shape)} places, but the image has {grid} patches")
    check_whole("steps", steps, 1, 2**20)
    check_target(captured.model, target)
    count = importance.numel()
    numbers = torch.linspace(0, count, min(steps, count) + 1).round().long()
    rank = torch.empty(count, dtype=torch.long)
    rank[importance.flatten().cpu().argsort(descending=True, stable=True)] = torch.arange(count)
    first = rank.view(grid) < numbers[:, None, None]

    def curve(masks: Tensor, fill: Fill) -> Float[Tensor, "s"]:
        stride = captured.model.config.patch_stride
        batches = (as_pixels(some, stride, size) for some in torch.split(masks, batch_size))
        return masked_probabilities(captured, batches, fill, between)[:, target].cpu()

    return Faithfulness(numbers / count, curve(first, "mean"), curve(~first, "blur"))


def random_faithfulness(
    captured: CapturedForward,
    target: int,
    draws: int = 3,
    steps: int = STEPS,
    seed: int = 0,
    batch_size: int = BATCH,
    between: Callable[[], None] = no_step,
) -> Faithfulness:
    """Mean curves of several random orders: the baseline of every map."""
    generator = torch.Generator().manual_seed(seed)
    orders = [torch.rand(captured.layout.grid, generator=generator) for _ in range(draws)]
    runs = [faithfulness(captured, target, order, steps, batch_size=batch_size, between=between) for order in orders]
    return Faithfulness(
        runs[0].fractions,
        torch.stack([run.deletion_curve for run in runs]).mean(dim=0),
        torch.stack([run.insertion_curve for run in runs]).mean(dim=0),
    )
