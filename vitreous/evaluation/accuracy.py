"""Top-1 and top-5 accuracy of the scores of probes.

n: images.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Accuracy(NamedTuple):
    """Fractions of images whose class has the best score, or is among the best five."""

    top1: float
    top5: float


def count_hits(
    scores: Float[Tensor, "n classes"], labels: Int[Tensor, "n"], ranks: tuple[int, int] = (1, 5)
) -> Int[Tensor, "2"]:
    """Count the images whose class is among the `ranks` best scores. Of equal scores the lower class ranks first.

    Infinite scores of the true class and rows with NaN are never hits.

    >>> count_hits(torch.tensor([[0.0, 2.0, 1.0], [1.0, 1.0, 0.0]]), torch.tensor([2, 1]))
    tensor([0, 2])
    """
    own = scores.gather(1, labels[:, None])
    earlier = torch.arange(scores.shape[1], device=scores.device) < labels[:, None]
    rank = ((scores > own) | ((scores == own) & earlier)).sum(dim=1)
    valid = own[:, 0].isfinite() & ~scores.isnan().any(dim=1)
    return torch.stack([(valid & (rank < best)).sum() for best in ranks])


def accuracy(hits: Int[Tensor, "2"], count: int) -> Accuracy:
    first, among_five = hits.tolist()
    return Accuracy(first / count, among_five / count)
