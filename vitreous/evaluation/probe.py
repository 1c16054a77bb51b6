"""Probes for frozen encoders: k-NN, linear classifiers and few-shot classifiers.

A probe is trained on features of the train split and evaluated on another split. It does not use the head of the model,
so the model may have different classes from the data.

q: queries; n: training images; d: width; k: neighbours.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from rich.table import Table
from torch import Tensor
from torch.nn import functional as F

from vitreous.common.checks import check_choice, check_whole, fail
from vitreous.common.progress import Report, silent
from vitreous.common.text import plural
from vitreous.data.sources.base import Source
from vitreous.evaluation import features
from vitreous.evaluation.features import FeatureSet, cached_features, count_hits, slices
from vitreous.evaluation.linear import FewShotResult, LinearResult, fewshot, fitting_shots, linear_probe
from vitreous.inference.predictor import FEATURE_KINDS, Embedder, FeatureKind

# ---- Weighted k-NN ---------------------------------------------------------------------------------------------------
# As in DINO (arXiv 2104.14294), the nearest training images vote with weight exp(cosine similarity / 0.07). Classes are
# ranked by votes, and top-5 uses the first min(5, k) classes. Classes without votes rank last but can be among them.

CPU = torch.device("cpu")
TEMPERATURE = 0.07
PAIR_BYTES = 24  # per pair of images: similarity (4), comparison (1), and a sorted copy if there are ties (16)


@dataclass(frozen=True)
class KnnResult:
    """Accuracy of k-NN for one number of neighbours."""

    neighbours: int
    top1: float
    top5: float

    def describe(self) -> tuple[str, str]:
        """Return the name of the result and an empty remark."""
        return plural(self.neighbours, "neighbour"), ""


def knn(
    train: FeatureSet, test: FeatureSet, num_classes: int, neighbours: Sequence[int] = (20,), device: torch.device = CPU
) -> list[KnnResult]:
    """Compute k-NN accuracy on `test` for several numbers of neighbours in one pass."""
    if (most := max(neighbours)) > len(train):
        raise ValueError(f"neighbours is {most}, but must be at most {len(train)}, the number of training images")
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
    """Return the similarities and indices of the k nearest images in the bank, nearest first.

    Ties are broken in favour of the lower index. The bank is copied to the device of the queries in chunks of `rows`
    rows.
    """
    queries = F.normalize(queries.float(), dim=1)
    best = queries.new_empty(len(queries), 0)
    where = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for part in slices(len(bank), rows):
        similarity = queries @ F.normalize(bank[part].to(queries.device).float(), dim=1).T
        places = _top(similarity, k)
        # Earlier results have lower indices. In a tie, the stable sort keeps them first.
        best = torch.cat([best, similarity.gather(1, places)], dim=1)
        where = torch.cat([where, places + part.start], dim=1)
        best, order = best.sort(dim=1, descending=True, stable=True)
        best, where = best[:, :k], where.gather(1, order[:, :k])
    return best, where


def _top(similarity: Float[Tensor, "q n"], k: int) -> Int[Tensor, "q k"]:
    """Return the columns of the k highest values, sorted by column. Unlike torch.topk, ties favour lower columns."""
    k = min(k, similarity.shape[1])
    lowest, places = similarity.topk(k, dim=1)
    crowded = ((similarity >= lowest[:, -1:]).sum(dim=1) > k).nonzero()[:, 0]  # rare
    if len(crowded):
        places[crowded] = similarity[crowded].sort(dim=1, descending=True, stable=True).indices[:, :k]
    return places.sort(dim=1).values


def votes(
    similarity: Float[Tensor, "q k"], labels: Int[Tensor, "q k"], num_classes: int, neighbours: Sequence[int]
) -> Iterator[tuple[int, Float[Tensor, "q classes"]]]:
    """Yield each k in `neighbours`, in ascending order, with the votes of the k nearest images for each class.

    Votes are added one neighbour at a time, which makes the sum deterministic on every device.
    """
    weights = ((similarity - similarity[:, :1]) / TEMPERATURE).exp()  # at most 1, to avoid overflow
    total = similarity.new_zeros(len(similarity), num_classes)
    for rank in range(max(neighbours)):
        total.scatter_add_(1, labels[:, rank : rank + 1], weights[:, rank : rank + 1])
        if rank + 1 in neighbours:
            yield rank + 1, total.clone()


# ---- All probes ------------------------------------------------------------------------------------------------------

Probe = Literal["knn", "linear", "fewshot"]
PROBES: tuple[Probe, ...] = get_args(Probe)
DRAWS = 5  # number of random training sets for few-shot probes
Result = KnnResult | LinearResult | FewShotResult


@dataclass(frozen=True)
class ProbeMetrics:
    """Results of a probe. Accuracies are fractions. The first entry of `results` is the reported result."""

    probe: Probe
    results: Sequence[Result]
    split: str
    count: int
    train_count: int
    num_classes: int
    features: FeatureKind
    width: int
    images_per_second: float | None  # speed of the encoder; None if features came from the cache
    seconds: float
    skipped: str  # default numbers of shots that were skipped, with the reason
    problems: tuple[str, ...]  # unreadable images, each with the reason

    def summary(self) -> dict[str, Any]:
        """Return the values that `vitreous eval` prints first."""
        counts = {"count": self.count, "train_count": self.train_count, "unreadable": len(self.problems)}
        about = {"features": self.features, "width": self.width, "seconds": self.seconds}
        return {self.probe: self.results[0].top1, "split": self.split, **counts, **about}

    def lines(self) -> Iterator[Table | str]:
        """Yield the table and remarks that `vitreous eval` prints after the summary."""
        top5 = self.num_classes > 5
        table = Table("", "top-1", *(["top-5"] * top5), "", box=None)
        for result in self.results:
            name, remark = result.describe()
            table.add_row(name, f"{result.top1:.4f}", *([f"{result.top5:.4f}"] * top5), remark)
        yield table
        if self.skipped:
            yield f"skipped: {self.skipped}"

    def to_dict(self) -> dict[str, Any]:
        """Return the metrics with the keys of metrics.json (`knn`, `linear`, `fewshot`, ...), and all `results`."""
        return {
            "probe": self.probe,
            **headline(self.results),
            "part": self.split,
            "count": self.count,
            "train_count": self.train_count,
            "unreadable": len(self.problems),
            "features": self.features,
            "width": self.width,
            "images_per_second": self.images_per_second,
            "seconds": self.seconds,
            "results": [asdict(result) for result in self.results],
            "left_out": self.skipped,
            "problems": self.problems,
        }


def check_options(probe: Probe, features: FeatureKind, neighbours: Sequence[int], shots: Sequence[int]) -> None:
    """Raise BadValue if an option is invalid."""
    check_choice("probe", probe, PROBES)
    check_choice("features", features, FEATURE_KINDS)
    if not neighbours:
        fail("neighbours", neighbours, "at least one integer")
    for field, numbers in (("neighbours", neighbours), ("shots", shots)):
        for number in numbers:
            check_whole(field, number, 1, 2**20)


def probe_encoder(
    predictor: Embedder,
    train: Source,
    split: str,
    test: Source,
    probe: Probe,
    *,
    features: FeatureKind = "pooled",
    cache: Path | None = None,
    neighbours: Sequence[int] = (20,),
    shots: Sequence[int] = (),
    seed: int = 0,
    progress: Report = silent,
) -> ProbeMetrics:
    """Train a probe on the features of `train` and evaluate it on `test`. `split` is the name of the test split."""
    started, classes = time.perf_counter(), train.classes
    (known, known_cached), (unknown, unknown_cached) = (
        cached_features(cache, predictor, source, features, progress) for source in (train, test)
    )
    seconds = time.perf_counter() - started
    skipped = ""
    if probe == "fewshot" and not shots:
        shots, skipped = fitting_shots(known, classes)
    return ProbeMetrics(
        probe=probe,
        results=run_probe(probe, known, unknown, classes, seed, neighbours, shots, predictor.device, progress),
        split=split,
        count=len(unknown),
        train_count=len(known),
        num_classes=len(classes),
        features=features,
        width=known.features.shape[1],
        images_per_second=None if known_cached or unknown_cached else (len(train) + len(test)) / seconds,
        seconds=time.perf_counter() - started,
        skipped=skipped,
        problems=(*known.problems, *unknown.problems),
    )


def run_probe(
    probe: Probe,
    train: FeatureSet,
    test: FeatureSet,
    classes: Sequence[str],
    seed: int,
    neighbours: Sequence[int],
    shots: Sequence[int],
    device: torch.device,
    progress: Report = silent,
) -> Sequence[Result]:
    """Train and evaluate a probe on features. The first result is the reported one."""
    if device.type == "mps":
        device = torch.device("cpu")  # MPS does not support float64
    if probe == "knn":
        return knn(train, test, len(classes), neighbours, device=device)
    if probe == "linear":
        return linear_probe(train, test, len(classes), seed=seed, device=device, progress=progress)
    return fewshot(train, test, classes, shots, seeds=range(seed, seed + DRAWS), device=device)


def headline(results: Sequence[Result]) -> dict[str, float | str]:
    """Return the accuracies of the first result, which is reported, with the keys of metrics.json."""
    first = results[0]
    if isinstance(first, KnnResult):
        return {"knn": first.top1, "knn_top5": first.top5}
    if isinstance(first, FewShotResult):
        return {"fewshot": first.top1, "fewshot_std": first.std, "fewshot_top5": first.top5}
    methods = {f"linear_{result.method}": result.top1 for result in results if isinstance(result, LinearResult)}
    return {"linear": first.top1, "linear_top5": first.top5, "linear_method": first.method, **methods}
