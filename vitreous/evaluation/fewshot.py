"""Few-shot accuracy, as in section 4.1 of the paper: least squares on a few images of each class.

The features of k images per class are mapped to {-1, 1}^classes by regularised regression, which has a closed form.
The details are those of the authors' code (big_vision, `fewshot_lsr`): standardised features and a penalty of 2^10.
Its penalised bias is omitted because it is the same for every class when all have equally many images.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitreous.common.checks import check_whole, fail
from vitreous.common.text import plural
from vitreous.data.loader import SampleRng
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.ridge import CPU, Ridge

PENALTY = 2.0**10
SHOTS = (5, 10, 25)  # measured by default


@dataclass(frozen=True)
class FewShotResult:
    """Accuracy with `shots` images per class: mean and standard deviation over several draws."""

    shots: int
    top1: float
    top5: float
    std: float  # of top1 (n - 1); 0 for a single draw
    draws: tuple[float, ...]  # top1 of each


def fewshot(
    train: FeatureSet,
    test: FeatureSet,
    classes: Sequence[str],
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = range(5),
    device: torch.device = CPU,
) -> list[FewShotResult]:
    """Measure the accuracy on `test` for each number of shots. Classes without images are not learned."""
    if not shots:
        fail("shots", shots, "at least one whole number")
    for count in shots:
        check_whole("shots", count, 1, 2**20)
    least, name = smallest_class(train, classes)
    if max(shots) > least:
        raise ValueError(
            f"shots is {max(shots)}, but must be at most {least}: "
            f"class {name!r} has {plural(least, 'image')} to learn from"
        )
    results = []
    for count in shots:
        found = []
        for seed in seeds:
            ridge = Ridge(train.pick(draw(train.labels, count, seed)), len(classes), device=device)
            found.append(ridge.at(PENALTY).accuracy(test))
        firsts = tuple(accuracy.top1 for accuracy in found)
        results.append(
            FewShotResult(
                count,
                statistics.fmean(firsts),
                statistics.fmean(accuracy.top5 for accuracy in found),
                statistics.stdev(firsts) if len(firsts) > 1 else 0.0,
                firsts,
            )
        )
    return results


def draw(labels: Int[Tensor, "n"], shots: int, seed: int) -> Int[Tensor, "m"]:
    """Indices of `shots` images of each class. With one seed, fewer shots are a subset of more.

    >>> draw(torch.tensor([0, 1, 0, 1, 0, 1]), shots=1, seed=0).shape
    torch.Size([2])
    """
    numbers = SampleRng(seed, 0, torch.arange(len(labels))).uniform("fewshot").numpy()
    order = np.lexsort((numbers, labels.numpy()))  # class by class, within each in random order
    counts = np.bincount(labels.numpy())
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return torch.from_numpy(order[rank < shots])


def smallest_class(train: FeatureSet, classes: Sequence[str]) -> tuple[int, str]:
    """The number of images of the smallest class that has any, and its name."""
    counts = torch.bincount(train.labels, minlength=len(classes)).tolist()
    return min((count, name) for count, name in zip(counts, classes, strict=True) if count)


def fitting_shots(train: FeatureSet, classes: Sequence[str]) -> tuple[tuple[int, ...], str]:
    """The default numbers of shots that every class has images for, and why the others are skipped.

    If the smallest class has too few for any of them, the number of its images.
    """
    least, name = smallest_class(train, classes)
    fitting = tuple(count for count in SHOTS if count <= least)
    if fitting == SHOTS:
        return SHOTS, ""
    skipped = ", ".join(str(count) for count in SHOTS if count > least)
    return fitting or (least,), f"{skipped} shots: class {name!r} has {plural(least, 'image')} to learn from"
