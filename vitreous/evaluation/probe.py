"""Probes: the quality of a frozen encoder, measured by k-NN, a linear classifier or a few labels.

Probes learn from features of the train split and are measured on another split. The head of the model is not used, so
its classes need not be those of the data.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from vitreous.common.checks import check_choice, check_whole, fail
from vitreous.data.sources.base import Source
from vitreous.evaluation.features import FeatureSet, cached_features
from vitreous.evaluation.fewshot import FewShotResult, fewshot, fitting_shots
from vitreous.evaluation.knn import KnnResult, knn
from vitreous.evaluation.linear import LinearResult, linear_probe
from vitreous.inference.predictor import FEATURE_KINDS, FeatureKind, Predictor

Probe = Literal["knn", "linear", "fewshot"]
PROBES: tuple[Probe, ...] = ("knn", "linear", "fewshot")
DRAWS = 5  # random sets of images that a few-shot probe learns from
Result = KnnResult | LinearResult | FewShotResult


@dataclass(frozen=True)
class ProbeMetrics:
    """Results of a probe; the first of `results` is the reported one. Fractions, not percent."""

    probe: Probe
    results: Sequence[Result]
    split: str
    count: int
    train_count: int
    num_classes: int
    features: FeatureKind
    width: int
    images_per_second: float | None  # of the encoder; None if features came from the cache
    seconds: float
    skipped: str  # default numbers of shots that some class has too few images for
    problems: tuple[str, ...]  # names of unreadable images, each with the reason

    def to_dict(self) -> dict[str, Any]:
        """The keys of metrics.json (`knn`, `linear`, `fewshot`, ...), with all `results`."""
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
    """Raise if an option is invalid, before anything is loaded."""
    check_choice("probe", probe, PROBES)
    check_choice("features", features, FEATURE_KINDS)
    if not neighbours:
        fail("neighbours", neighbours, "at least one whole number")
    for field, numbers in (("neighbours", neighbours), ("shots", shots)):
        for number in numbers:
            check_whole(field, number, 1, 2**20)


def probe_encoder(
    predictor: Predictor,
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
) -> ProbeMetrics:
    """Train a probe on features of `train` and measure it on `test`, the images of `split`."""
    started, classes = time.perf_counter(), train.classes
    (known, known_cached), (unknown, unknown_cached) = (
        cached_features(cache, predictor, source, features) for source in (train, test)
    )
    seconds = time.perf_counter() - started
    skipped = ""
    if probe == "fewshot" and not shots:
        shots, skipped = fitting_shots(known, classes)
    return ProbeMetrics(
        probe=probe,
        results=run_probe(probe, known, unknown, classes, seed, neighbours, shots, predictor.device),
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
) -> Sequence[Result]:
    """Run one probe on features; the first result is the reported one."""
    if device.type == "mps":
        device = torch.device("cpu")  # MPS has no float64
    if probe == "knn":
        return knn(train, test, len(classes), neighbours, device=device)
    if probe == "linear":
        return linear_probe(train, test, len(classes), seed=seed, device=device)
    return fewshot(train, test, classes, shots, seeds=range(seed, seed + DRAWS), device=device)


def headline(results: Sequence[Result]) -> dict[str, float | str]:
    """The reported result under its keys in metrics.json."""
    first = results[0]
    if isinstance(first, KnnResult):
        return {"knn": first.top1, "knn_top5": first.top5}
    if isinstance(first, FewShotResult):
        return {"fewshot": first.top1, "fewshot_std": first.std, "fewshot_top5": first.top5}
    methods = {f"linear_{result.method}": result.top1 for result in results if isinstance(result, LinearResult)}
    return {"linear": first.top1, "linear_top5": first.top5, "linear_method": first.method, **methods}
