"""Few-shot accuracy, as the paper measures it (section 4.1): least squares on a few pictures of each class.

The features of k pictures per class are mapped to {-1, 1}^classes by regularised regression, which has a closed form.
The details are those of the authors' code (big_vision, `fewshot_lsr`): standardised features and a penalty of 2^10.
Its penalised bias is missing here because it is the same for every class when all have equally many pictures.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitreous.common.checks import check_positive, check_whole, fail
from vitreous.common.text import plural
from vitreous.data.rng import SampleRng
from vitreous.evaluation.features import BUDGET, FeatureSet
from vitreous.evaluation.ridge import Ridge

PENALTY = 2.0**10
SHOTS = (5, 10, 25)  # which are measured where none are asked for


@dataclass(frozen=True)
class FewShotResult:
    """What is learnt from so many pictures of each class: the mean over several draws, and how far they lie apart."""

    shots: int
    top1: float
    top5: float
    std: float  # of top1, the estimate with n - 1; 0 for a single draw
    draws: tuple[float, ...]  # top1 of each


def fewshot(
    train: FeatureSet,
    test: FeatureSet,
    classes: Sequence[str],
    shots: Sequence[int] = SHOTS,
    *,
    seeds: Sequence[int] = range(5),
    penalty: float = PENALTY,
    device: torch.device | None = None,
    budget: int = BUDGET,
) -> list[FewShotResult]:
    """The accuracy on `test` for each number of shots. A class that has no pictures at all is not learnt."""
    _check(train, classes, shots, seeds, penalty)
    results = []
    for count in shots:
        found = []
        for seed in seeds:
            ridge = Ridge(train.pick(draw(train.labels, count, seed)), len(classes), device=device, budget=budget)
            found.append(ridge.at(penalty).accuracy(test, budget))
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
    """Which pictures are learnt from: so many of each class. Of one seed, fewer shots are among the more.

    >>> draw(torch.tensor([0, 1, 0, 1, 0, 1]), shots=1, seed=0).shape
    torch.Size([2])
    """
    numbers = SampleRng(seed, 0, torch.arange(len(labels))).uniform("fewshot").numpy()
    order = np.lexsort((numbers, labels.numpy()))  # class by class, within each in random order
    counts = np.bincount(labels.numpy())
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return torch.from_numpy(order[rank < shots])


def smallest_class(train: FeatureSet, classes: Sequence[str]) -> tuple[int, str]:
    """How many pictures there are to learn from of the class that has the fewest, but some; and its name."""
    counts = torch.bincount(train.labels, minlength=len(classes)).tolist()
    return min((count, name) for count, name in zip(counts, classes, strict=True) if count)


def fitting_shots(train: FeatureSet, classes: Sequence[str]) -> tuple[tuple[int, ...], str]:
    """The usual numbers of shots that every class has pictures for, and what to say of the others.

    Where the smallest class has too few for any of them, all of its pictures are taken.
    """
    least, name = smallest_class(train, classes)
    fitting = tuple(count for count in SHOTS if count <= least)
    if fitting == SHOTS:
        return SHOTS, ""
    left_out = ", ".join(str(count) for count in SHOTS if count > least)
    return fitting or (least,), f"{left_out} shots: class {name!r} has {plural(least, 'picture')} to learn from"


def _check(
    train: FeatureSet, classes: Sequence[str], shots: Sequence[int], seeds: Sequence[int], penalty: float
) -> None:
    check_positive("penalty", penalty)
    if not seeds:
        fail("seeds", seeds, "at least one whole number")
    if not shots:
        fail("shots", shots, "at least one whole number")
    for count in shots:
        check_whole("shots", count, 1, 2**20)
    least, name = smallest_class(train, classes)
    if max(shots) > least:
        raise ValueError(
            f"shots is {max(shots)}, but must be at most {least}: "
            f"class {name!r} has {plural(least, 'picture')} to learn from"
        )
