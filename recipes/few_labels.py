"""Compares supervised and semi-supervised training with a few labels per class, for several seeds.

recipes/cifar10_4000_labels.py and recipes/pets_few_labels.py use this file. The labelled images of a seed are drawn
from the train split of a data set. All images of that split are also used without their labels, as in the papers. Each
run is evaluated once, after its last step, so nothing is selected on the test images.
"""

import contextlib
import csv
import dataclasses
import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from recipes.finished_run import finished
from vitreous.data.open import open_data
from vitreous.data.sources.base import ArraySource, FileSource, Source, Subset
from vitreous.training import SemiSupervised, TrainConfig

METHODS = ("supervised", "consistency", "noisy-student", "meta-pseudo-labels")


@dataclass(frozen=True)
class Options:
    """Options of the comparison."""

    data: str
    """Data set with a train and a test split."""
    labels: int
    """Number of labelled images per class."""
    out: Path
    """Output folder for all runs and results.json."""
    data_root: Path | None = None
    """Folder with a local copy of the data."""
    methods: tuple[str, ...] = METHODS
    seeds: int = 3
    """Number of seeds, each with other labelled images and initial weights."""
    processes: int = 4
    """Number of runs side by side on one device."""
    steps: int = 1000
    """Steps of each run; Noisy Student has one run per teacher and student."""
    device: str = "auto"


@dataclass(frozen=True)
class Result:
    """Results of one method, in the order of the seeds."""

    method: str
    top1: list[float]
    mean: float
    std: float  # of the sample; 0 for a single seed
    seconds: list[float]  # of runs that share the device


AnyOptions = TypeVar("AnyOptions", bound=Options)


def draw(source: Source, labels: int, seed: int) -> np.ndarray:
    """Draw the indices of `labels` images per class."""
    shuffled = np.random.default_rng(seed).permutation(len(source))
    return np.concatenate([shuffled[source.labels[shuffled] == c][:labels] for c in range(len(source.classes))])


def write_labelled(options: Options, seed: int) -> Path:
    """Write a data set of the drawn images and the test split: arrays as .npz, files as a table of their paths."""
    data = open_data(options.data, root=options.data_root)
    test = data.val if data.test is None else data.test
    parts = {"train": (data.train, draw(data.train, options.labels, seed)), "test": (test, np.arange(len(test)))}
    stem = options.out / "labelled" / f"{Path(options.data).stem}-{options.labels}-{seed}"
    stem.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {"classes": np.array(data.classes)}
    rows: list[tuple[str, str, str]] = []
    for split, (source, indices) in parts.items():
        inner = source.source if isinstance(source, Subset) else source
        places = source.indices[indices] if isinstance(source, Subset) else indices
        if isinstance(inner, ArraySource):
            arrays |= {f"x_{split}": inner.images[places], f"y_{split}": inner.labels[places]}
        elif isinstance(inner, FileSource):
            root = inner.root.resolve()
            rows += [(str(root / inner.paths[i]), inner.classes[inner.labels[i]], split) for i in places.tolist()]
        else:
            raise ValueError(f"{options.data} contains neither arrays nor image files")
    if not rows:
        path = stem.with_suffix(".npz")
        np.savez_compressed(path, allow_pickle=False, **arrays)
        return path
    path = stem.with_suffix(".csv")
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("image", "label", "split"), *rows])
    return path


def run_of(base: TrainConfig, method: str, seed: int, labelled: Path, options: Options) -> TrainConfig:
    """Return the config of one run. `base` has the settings that all methods share."""
    semi = SemiSupervised()
    if method != "supervised":
        semi = dataclasses.replace(base.semi_supervised, unlabelled=options.data, semi=method)  # type: ignore[arg-type]
    return dataclasses.replace(
        base,
        data=labelled.resolve(),
        data_root=options.data_root,
        semi_supervised=semi,
        steps=options.steps,
        epochs=None,
        evaluate_every=10**6,  # only after the last step
        seed=seed,
        device=options.device,
        out=options.out / f"{method}-{seed}",
    )


def train_quietly(config: TrainConfig) -> tuple[float, float]:
    """Train or resume a run, with its output in a file beside its folder. Return the top-1 accuracy and the seconds."""
    with open(f"{config.out}.log", "a") as log, contextlib.redirect_stdout(log):
        metrics = finished(config)
    return metrics["top1"], metrics["seconds"]


def compare(config: Callable[[str], TrainConfig], options: Options) -> list[Result]:
    """Train every method with every seed. `config` returns the settings of a method. Finished runs are not repeated."""
    from benchmarks.publish_table import publish

    if unknown := set(options.methods) - set(METHODS):
        raise ValueError(f"methods must be from {', '.join(METHODS)}, got {', '.join(sorted(unknown))}")
    seeds = range(options.seeds)
    labelled = [write_labelled(options, seed) for seed in seeds]
    runs = [run_of(config(m), m, seed, labelled[seed], options) for m in options.methods for seed in seeds]
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(train_quietly, runs))
    results = []
    for i, method in enumerate(options.methods):
        accuracies, seconds = map(list, zip(*found[i * len(seeds) : (i + 1) * len(seeds)], strict=True))
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        results.append(Result(method, accuracies, statistics.mean(accuracies), spread, seconds))
    rows = [
        [r.method, f"{r.mean:.2%} ± {r.std:.2%}", " ".join(f"{x:.2%}" for x in r.top1), f"{max(r.seconds):.0f}"]
        for r in results
    ]
    setting = f"{options.data}, {options.labels} labels per class, {options.steps} steps"
    publish(setting, ["method", "top-1", "per seed", "s"], rows, results, options.out / "results.json")
    return results


def main(config: Callable[[str, AnyOptions], TrainConfig], defaults: AnyOptions, description: str | None) -> None:
    """Parse the options and compare the methods. `config` returns the settings of a method."""
    import tyro

    from vitreous.cli.main import run_recipes

    def script() -> None:
        options = tyro.cli(type(defaults), default=defaults, description=description)
        compare(lambda method: config(method, options), options)

    run_recipes(script)
