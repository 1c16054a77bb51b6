"""Compares the accuracy of the best checkpoint if it is selected from every epoch, from fewer epochs, or not at all.

Evaluations do not change the training, so a single run that is evaluated in every epoch shows which weights each
interval selects. They are compared on a test split that no selection has seen. Data that have a test split are used as
they are. With --images, that many images (a fifth of them for validation) are drawn from the training images, and
--test images from the test split. With --tail N, the largest class has N times as many images as the smallest.

    python -m benchmarks.evaluation_interval --data digits --images 1400 --small
    python -m benchmarks.evaluation_interval --data table.csv --init dinov2-s-reg --image-size 56
"""

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from benchmarks.long_tail import SMALL
from benchmarks.publish_table import publish
from vitreous.data.loader import Batch
from vitreous.data.open import open_data, stratified
from vitreous.data.sources.base import DataSet
from vitreous.inference.predictor import Predictor
from vitreous.tasks.base import EVALUATION_BATCH, Results, open_init
from vitreous.tasks.classification_metrics import classify_source
from vitreous.tasks.classify import Classify
from vitreous.tasks.config import TrainConfig, with_fields
from vitreous.training.checkpoint import merged_state
from vitreous.training.defaults import UNMIRRORED, choose
from vitreous.training.run import train

FEW, NEVER = 5, 10**6


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    data: str
    init: str | None = None
    images: int | None = None
    tail: float = 1.0
    test: int = 2000
    image_size: tuple[int, ...] = ()
    epochs: float | None = None
    small: bool = False  # train the small ViT of benchmarks.long_tail, if from scratch
    seeds: tuple[int, ...] = (0, 1, 2)
    out: Path = Path("runs/bench/evaluation_interval.json")


@dataclass(frozen=True)
class Trial:
    """Top-1 of a run on the test images, with the weights that each interval selects."""

    seed: int
    epochs: float
    interval: int  # default
    selected: dict[str, int]  # epoch
    top1: dict[str, float]


class Selection:
    """Weights of the best epoch among every n-th one from `start` on and the last one, as the training loop selects."""

    def __init__(self, interval: int, start: float = 0):
        self.interval, self.start, self.epoch = interval, start, 0
        self.rank = (-np.inf, 0.0)
        self.state: dict[str, Tensor] = {}

    def add(self, epoch: int, last: bool, metrics: dict[str, Any], model: nn.Module) -> None:
        rank = (metrics["top1"], -metrics["loss"])
        if ((epoch % self.interval == 0 and epoch >= self.start) or last) and rank >= self.rank:
            self.rank, self.epoch = rank, epoch
            self.state = {name: value.clone() for name, value in merged_state(model).items()}


def subset(options: Options, out: Path) -> None:
    """Write arrays with a training, a validation and a test split."""
    found = open_data(options.data)
    pool, test = found.train, found.test or found.val
    chance, classes = np.random.default_rng(0), len(pool.classes)
    sizes = options.tail ** -np.linspace(0, 1, classes)
    sizes *= (options.images or 0) / sizes.sum()
    shuffled = chance.permutation(len(pool))
    parts = [shuffled[pool.labels[shuffled] == label][: round(size)] for label, size in enumerate(sizes)]
    drawn = np.concatenate(parts)
    train, val = stratified(pool.labels[drawn], pool.classes, 0.2, 0, found.name)
    tested = np.sort(chance.permutation(len(test))[: options.test])
    arrays: dict[str, Any] = {"classes": np.array(pool.classes)}
    for split, source, rows in (("train", pool, drawn[train]), ("val", pool, drawn[val]), ("test", test, tested)):
        arrays |= {f"x_{split}": np.stack([source.image(i) for i in rows.tolist()])}
        arrays |= {f"y_{split}": source.labels[rows]}
    np.savez(out, **arrays)


def run(config: TrainConfig, data: DataSet) -> Trial:
    """Train once and evaluate the weights that each interval selects on the test images."""
    chosen = choose(config, data, "cpu", init=open_init(config)).config
    epochs, interval = chosen.epochs or 1, chosen.evaluate_every or 1
    selections = {
        "every epoch": Selection(1),
        "every epoch of the last quarter": Selection(1, 0.75 * epochs),
        "the default": Selection(interval),
        f"{FEW} evaluations": Selection(max(int(epochs / FEW), 1)),
        "no selection": Selection(NEVER),
    }

    class Recorded(Classify):
        epoch, last = 0, False

        def start_step(self, step: int, total: int) -> None:
            self.last = step + 1 == total

        def evaluate(self, module: nn.Module, batches: Iterable[Batch], precision: torch.dtype) -> Results:
            results = super().evaluate(module, batches, precision)
            self.epoch += 1
            for selection in selections.values():
                selection.add(self.epoch, self.last, results.metrics(), self.model)
            return results

    finished = train(replace(config, evaluate_every=1), task=Recorded)
    model, top1 = finished.model, {}
    for name, selection in selections.items():
        model.load_state_dict(selection.state)
        predictor = Predictor(model, "cpu", EVALUATION_BATCH)
        top1[name] = classify_source(predictor, data.test or data.val, model.config.labels).metrics()["top1"]
    assert top1["every epoch"] == finished.metrics["top1"], "the selection differs from that of the training loop"
    selected = {name: selection.epoch for name, selection in selections.items()}
    return Trial(config.seed, epochs, interval, selected, top1)


def main(options: Options) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = options.data
        if options.images is not None:
            data = str(Path(folder) / "subset.npz")
            subset(options, Path(data))
        config = TrainConfig(
            data=data,
            init=options.init,
            image_size=options.image_size,
            epochs=options.epochs,
            device="cpu",
        )
        if options.small:
            config = with_fields(config, {"model": "ViT-Lite-7/4", "overrides": SMALL})
        if options.data in UNMIRRORED:
            config = with_fields(config, {"flip": 0.0})
        trials = [
            run(replace(config, seed=seed, out=Path(folder) / f"run-{seed}"), open_data(data)) for seed in options.seeds
        ]
    names = list(trials[0].top1)
    rows = []
    for name in names:
        texts = [f"{trial.top1[name]:.2%} (epoch {trial.selected[name]})" for trial in trials]
        rows.append([name, *texts, f"{fmean(trial.top1[name] for trial in trials):.2%}"])
    first = trials[0]
    setting = f"{options.data}: {first.epochs:g} epochs, by default evaluated every {first.interval}"
    publish(setting, ["selected from", *(f"seed {trial.seed}" for trial in trials), "mean"], rows, trials, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
