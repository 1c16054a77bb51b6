"""Weighted k-NN, as in DINO (arXiv 2104.14294): nothing is trained, the nearest images vote.

A neighbour's vote weighs exp(cosine similarity / 0.07). As in DINO's eval_knn.py, top-5 is the top min(5, k) of all
classes ranked by their votes: classes without a vote rank last, in their order, but may be among the five. Queries and
bank are processed in chunks that fit a memory budget.

q: queries; n: images of the bank; d: width; k: neighbours.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitreous.common.checks import check_whole, fail
from vitreous.evaluation import features
from vitreous.evaluation.features import FeatureSet, count_hits, slices

CPU = torch.device("cpu")
TEMPERATURE = 0.07
PAIR_BYTES = 24  # per pair of images: similarity (4), comparison (1), and if all are equal, a sorted copy (16)


@dataclass(frozen=True)
class KnnResult:
    """Accuracy with `neighbours` neighbours."""

    neighbours: int
    top1: float
    top5: float


def knn(
    train: FeatureSet,
    test: FeatureSet,
    num_classes: int,
    neighbours: Sequence[int] = (20,),
    device: torch.device = CPU,
) -> list[KnnResult]:
    """Measure the accuracy on `test` when images of `train` vote, for several numbers of neighbours in one pass.

    >>> bank = FeatureSet(torch.eye(3), torch.tensor([0, 1, 1]))
    >>> knn(bank, FeatureSet(torch.tensor([[0.1, 1.0, 0.9]]), torch.tensor([1])), 2, neighbours=(1, 3))
    [KnnResult(neighbours=1, top1=1.0, top5=1.0), KnnResult(neighbours=3, top1=1.0, top5=1.0)]
    """
    if not neighbours:
        fail("neighbours", neighbours, "at least one whole number")
    for k in neighbours:
        check_whole("neighbours", k, 1, 2**20)
        if k > len(train):
            raise ValueError(
                f"neighbours is {k}, but must be at most {len(train)}: there are no more images to learn from"
            )
    hits = {k: torch.zeros(2, dtype=torch.int64, device=device) for k in neighbours}
    labels = train.labels.to(device)
    budget, widest = features.BUDGET, max(train.features.shape[1], num_classes)
    rows = max(1, min(math.isqrt(budget // 2 // PAIR_BYTES), budget // (32 * widest)))
    for part in slices(len(test), rows):
        similarity, indices = nearest(test.features[part].to(device), train.features, max(neighbours), rows)
        true = test.labels[part].to(device)
        for k, scores in votes(similarity, labels[indices], num_classes, neighbours):
            hits[k] += count_hits(scores, true, (1, min(5, k)))
    return [KnnResult(k, *(hit / len(test) for hit in hits[k].tolist())) for k in neighbours]


def nearest(
    queries: Float[Tensor, "q d"], bank: Float[Tensor, "n d"], k: int, rows: int
) -> tuple[Float[Tensor, "q k"], Int[Tensor, "q k"]]:
    """Similarities and indices of the k nearest images of the bank, nearest first.

    Of equal similarities the earlier in the bank comes first. The bank is copied to the queries' device `rows` rows at
    a time.
    """
    queries = F.normalize(queries.float(), dim=1)
    best = queries.new_empty(len(queries), 0)
    where = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for part in slices(len(bank), rows):
        similarity = queries @ F.normalize(bank[part].to(queries.device).float(), dim=1).T
        places = _top(similarity, k)
        # Earlier results come from earlier in the bank: a stable sort keeps them before equal ones.
        best = torch.cat([best, similarity.gather(1, places)], dim=1)
        where = torch.cat([where, places + part.start], dim=1)
        best, order = best.sort(dim=1, descending=True, stable=True)
        best, where = best[:, :k], where.gather(1, order[:, :k])
    return best, where


def _top(similarity: Float[Tensor, "q n"], k: int) -> Int[Tensor, "q k"]:
    """Columns of the k highest, ascending; of equal values the leftmost, which torch.topk does not guarantee."""
    k = min(k, similarity.shape[1])
    lowest, places = similarity.topk(k, dim=1)
    crowded = ((similarity >= lowest[:, -1:]).sum(dim=1) > k).nonzero()[:, 0]  # rarely any
    if len(crowded):
        places[crowded] = similarity[crowded].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return places.sort(dim=1).values


def votes(
    similarity: Float[Tensor, "q k"],
    labels: Int[Tensor, "q k"],
    num_classes: int,
    neighbours: Sequence[int],
) -> Iterator[tuple[int, Float[Tensor, "q classes"]]]:
    """Yield each number of neighbours, in rising order, with the sum of the votes for each class.

    Votes are added one neighbour at a time, so that the sum is deterministic on every device.
    """
    weights = ((similarity - similarity[:, :1]) / TEMPERATURE).exp()  # the nearest has 1: nothing overflows
    total = similarity.new_zeros(len(similarity), num_classes)
    for rank in range(max(neighbours)):
        total.scatter_add_(1, labels[:, rank : rank + 1], weights[:, rank : rank + 1])
        if rank + 1 in neighbours:
            yield rank + 1, total.clone()
