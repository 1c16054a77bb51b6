"""`vitreous eval --probe`: how good a frozen encoder is, whatever its head: k-NN, a linear probe, a few labels.

Probes learn from the train part of the data and are measured on the part that `eval` reports on. The head of the
checkpoint is not used, so its classes need not be those of the data.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
from rich.table import Table

from vitreous.common.checks import check_choice, check_whole, fail
from vitreous.common.text import plural
from vitreous.evaluation.classifier import SHOWN
from vitreous.evaluation.feature_cache import cached_features
from vitreous.evaluation.features import KINDS, FeatureSet, Kind
from vitreous.evaluation.fewshot import FewShotResult, fewshot, fitting_shots
from vitreous.evaluation.knn import KnnResult, knn
from vitreous.evaluation.linear import LinearResult, linear_probe
from vitreous.evaluation.print_metrics import summary_table, tell
from vitreous.evaluation.setting import USUAL, Setting
from vitreous.inference.device import choose_device, choose_dtype
from vitreous.weights.load import load_encoder

Probe = Literal["knn", "linear", "fewshot"]
PROBES: tuple[Probe, ...] = ("knn", "linear", "fewshot")
DRAWS = 5  # of the pictures that a few-shot probe learns from
Result = KnnResult | LinearResult | FewShotResult


def probe_checkpoint(
    checkpoint: Path,
    data: str,
    probe: Probe,
    setting: Setting = USUAL,
    *,
    features: Kind = "pooled",
    cache: Path | None = None,
    neighbours: Sequence[int] = (20,),
    shots: Sequence[int] = (),
) -> dict[str, Any]:
    """The figures. `knn`, `linear` or `fewshot` is the result, that of the first of `neighbours` or `shots`.

    `results` has all of them, and `problems` names the pictures that could not be read. Without `shots` they are the
    usual ones that every class has pictures for; `left_out` says which it has not.
    """
    check_choice("probe", probe, PROBES)
    check_choice("features", features, KINDS)
    if not neighbours:
        fail("neighbours", neighbours, "at least one whole number")
    for field, numbers in (("neighbours", neighbours), ("shots", shots)):
        for number in numbers:
            check_whole(field, number, 1, 2**20)
    if setting.part == "train":
        fail("part", setting.part, "'val' or 'test' for a probe, which learns from train")
    found, name, source = setting.open(data)
    where = choose_device(setting.device, torch.device("cpu"))
    model = load_encoder(checkpoint, setting.image_size or None).float().to(where)
    began = time.perf_counter()
    train, test = (
        cached_features(
            cache, model, pictures, where, choose_dtype(setting.precision, where),
            kind=features, batch_size=setting.batch_size, workers=setting.workers, flip=setting.flip,
        )
        for pictures in (found.train, source)
    )  # fmt: skip
    seconds, cached = time.perf_counter() - began, train[1] or test[1]
    left_out = ""
    if probe == "fewshot" and not shots:
        shots, left_out = fitting_shots(train[0], found.classes)
    results = run_probe(probe, train[0], test[0], found.classes, setting.seed, neighbours, shots, where)
    problems = (*train[0].problems, *test[0].problems)
    return {
        "probe": probe,
        **headline(results),
        "part": name,
        "count": len(test[0]),
        "train_count": len(train[0]),
        "unreadable": len(problems),
        "features": features,
        "width": train[0].features.shape[1],
        "images_per_second": None if cached else (len(found.train) + len(source)) / seconds,  # of the encoder
        "seconds": time.perf_counter() - began,
        "results": [asdict(result) for result in results],
        "left_out": left_out,
        "problems": problems,
    }


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
    """One of the probes on features; the first result is the one to be reported."""
    if device.type == "mps":
        device = torch.device("cpu")  # it has no float64
    if probe == "knn":
        return knn(train, test, len(classes), neighbours, device=device)
    if probe == "linear":
        return linear_probe(train, test, len(classes), seed=seed, device=device)
    return fewshot(train, test, classes, shots, seeds=range(seed, seed + DRAWS), device=device)


def headline(results: Sequence[Result]) -> dict[str, float | str]:
    """The figures by the names they have in `metrics.json`."""
    first = results[0]
    if isinstance(first, KnnResult):
        return {"knn": first.top1, "knn_top5": first.top5}
    if isinstance(first, FewShotResult):
        return {"fewshot": first.top1, "fewshot_std": first.std, "fewshot_top5": first.top5}
    ways = {f"linear_{result.method}": result.top1 for result in results if isinstance(result, LinearResult)}
    return {"linear": first.top1, "linear_top5": first.top5, "linear_method": first.method, **ways}


def print_probe(figures: dict[str, Any], as_json: bool, out: Path | None) -> None:
    """For people or for programs; `out` gets the JSON as well."""
    if (console := tell(figures, as_json, out)) is None:
        return
    shown = (figures["probe"], "part", "count", "train_count", "unreadable", "features", "width", "seconds")
    console.print(summary_table(figures, shown))
    results = Table("", "top-1", "top-5", "", box=None)
    for row in figures["results"]:
        results.add_row(_what(row), f"{row['top1']:.4f}", f"{row['top5']:.4f}", _how(row))
    console.print(results)
    if figures["left_out"]:
        console.print(f"left out: {figures['left_out']}", soft_wrap=True)
    for problem in figures["problems"][:SHOWN]:
        console.print(f"unreadable: {problem}", soft_wrap=True)


def _what(row: dict[str, Any]) -> str:
    if "neighbours" in row:
        return plural(row["neighbours"], "neighbour")
    return plural(row["shots"], "shot") if "shots" in row else row["method"]


def _how(row: dict[str, Any]) -> str:
    if "draws" in row:
        return f"± {row['std']:.4f} over {len(row['draws'])} draws"
    if "setting" in row:
        settings = ", ".join(f"{name} {value:g}" for name, value in row["setting"].items())
        return f"{settings} (held out {row['held_out']:.4f})"
    return ""
