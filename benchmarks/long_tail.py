"""Compares ways to train on long-tailed data: nothing, `balance` (logit adjustment), class weights, oversampling.

The class sizes fall exponentially from `largest` to `largest` / ratio; each seed has its own order of the classes. All
are evaluated after the last step on the same number of images of each class. The natural top-1 is the mean recall,
weighted with the class frequencies of the training images.

    python -m benchmarks.long_tail --data digits --largest 100 --test 35
    python -m benchmarks.long_tail --data cifar10.npz --init dinov2-s --image-size 84
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np
import torch
import tyro

from benchmarks.publish_table import publish
from vitreous.common.distributed import World
from vitreous.data.loader import Batch
from vitreous.data.open import open_data
from vitreous.data.sources.base import DataSet, Source, Subset, pick
from vitreous.evaluation.evaluate_model import choose_split
from vitreous.tasks.base import FEW_IMAGES, Task
from vitreous.tasks.classification_metrics import Evaluation
from vitreous.tasks.config import TrainConfig, with_fields
from vitreous.training.cached_head import FeatureLoader
from vitreous.training.defaults import choose
from vitreous.training.frozen_features import FrozenFeatures
from vitreous.training.optimizer_step import rate_fraction
from vitreous.training.setup import Job, set_up

CPU = World(0, 1, torch.device("cpu"))
SMALL = FEW_IMAGES | {"width": 64, "mlp_width": 128, "depth": 4, "num_heads": 2}  # from scratch


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    data: str = "digits"
    init: str | None = None
    train_only: Literal["head", "lora"] = "head"  # with --init
    image_size: int = 16
    largest: int = 500  # training images of the largest class
    test: int = 200  # test images per class
    ratios: tuple[float, ...] = (10, 50, 100)
    ways: tuple[str, ...] = ("balance 0", "balance 0.5", "balance 0.75", "balance 1", "weights", "oversampling")
    seeds: int = 3
    epochs: float | None = None
    out: Path = Path("runs/bench/long_tail.json")


@dataclass(frozen=True)
class Trial:
    """Accuracy of one run."""

    ratio: float
    way: str
    seed: int
    natural: float  # top-1 if the classes are as frequent as in training
    balanced: float  # mean recall
    rare: float  # mean recall of the smallest third of the classes


class Pool:
    """Images that all runs draw from. Features of a frozen encoder are computed once."""

    def __init__(self, options: Options):
        found = open_data(options.data)
        self.name, self.train = found.name, _last(found.train, options.largest)
        self.test = _last(choose_split(found)[1], options.test)
        self.features: dict[tuple[int, bool], tuple[Source, FrozenFeatures]] = {}  # as `FeatureLoader.known`

    def draw(self, ratio: float, seed: int) -> np.ndarray:
        """Return the indices of long-tailed training images."""
        chance, classes = np.random.default_rng(seed), len(self.train.classes)
        sizes = np.bincount(self.train.labels).min() * ratio ** -np.linspace(0, 1, classes)
        shuffled = chance.permutation(len(self.train))
        parts = [
            shuffled[self.train.labels[shuffled] == label][: max(round(size), 1)]
            for label, size in zip(chance.permutation(classes), sizes, strict=True)
        ]
        return np.concatenate(parts)

    def cache(self, loader: FeatureLoader, train: Subset, indices: np.ndarray) -> None:
        """Give a loader the features of the test images and of the training images `indices`."""
        loader.known = self.features
        loader.features(self.test)
        known = dict(self.features)
        for mirrored in (False, True):
            features, labels, _ = loader.features(self.train, mirrored)
            known[id(train), mirrored] = train, FrozenFeatures(features[indices], labels[indices], [])
        loader.known = known


def _last(source: Source, count: int) -> Subset:
    """Return the last `count` images of each class."""
    classes = range(len(source.classes))
    return pick(source, np.concatenate([np.flatnonzero(source.labels == label)[-count:] for label in classes]))


def run(options: Options, pool: Pool, ratio: float, way: str, seed: int) -> Trial:
    """Train once and evaluate the final weights."""
    indices = pool.draw(ratio, seed)
    train = pick(pool.train, indices)
    counts = np.bincount(train.labels, minlength=len(train.classes))
    config = choose(config_of(options, way, seed), DataSet(pool.name, train, pool.test, None, ""), "cpu").config
    assert isinstance(config.batch_size, int)
    steps = round((config.epochs or 1) * (len(train) // config.batch_size))
    config = dataclasses.replace(config, epochs=None, steps=steps)  # equal for all ways
    if way == "oversampling":
        repeats = [np.resize(indices[train.labels == label], counts.max()) for label in range(len(counts))]
        indices = np.concatenate(repeats)
        train = pick(pool.train, indices)
    job = set_up(config, DataSet(pool.name, train, pool.test, None, ""), CPU)
    if way == "weights":
        weigh(job.task, torch.from_numpy(counts.sum() / (len(counts) * counts)).float())
    if isinstance(job.loader, FeatureLoader):
        pool.cache(job.loader, train, indices)
    train_steps(job)
    results = job.evaluate(pool.test)
    assert isinstance(results, Evaluation)
    recalls = np.array([row.recall for row in results.per_class()])
    rare = recalls[np.argsort(counts)[: len(counts) // 3]].mean()
    natural = (recalls * counts).sum() / counts.sum()
    return Trial(ratio, way, seed, float(natural), float(recalls.mean()), float(rare))


def config_of(options: Options, way: str, seed: int) -> TrainConfig:
    fields: dict[str, Any] = {"init": options.init, "train_only": options.train_only}
    if options.init is None:
        fields = {"model": "ViT-Lite-7/4", "overrides": SMALL}
    balance = float(way.removeprefix("balance ")) if way.startswith("balance") else 0.0
    fields |= {"seed": seed, "image_size": options.image_size, "epochs": options.epochs, "balance": balance}
    return with_fields(TrainConfig(data=options.data, device="cpu", out=options.out), fields)


def weigh(task: Task, weights: torch.Tensor) -> None:
    """Multiply the loss of each class by a weight."""
    prepare = task.prepare

    def weighted(batch: Batch) -> tuple[torch.Tensor, ...]:
        inputs, targets, present = prepare(batch)
        return inputs, targets * weights, present

    task.prepare = weighted  # type: ignore[method-assign]


def train_steps(job: Job) -> None:
    for step, batch in enumerate(job.loader.batches(0, job.total_steps)):
        torch.manual_seed(job.config.seed * 1_000_003 + step)
        job.state.optimizers.set_rate(rate_fraction(step, job.total_steps, job.config.optim))
        job.stepper(batch)


def main(options: Options) -> None:
    pool = Pool(options)
    trials = [
        run(options, pool, ratio, way, seed)
        for seed in range(options.seeds)
        for ratio in options.ratios
        for way in options.ways
    ]
    rows = []
    for ratio in options.ratios:
        for way in options.ways:
            group = [trial for trial in trials if (trial.ratio, trial.way) == (ratio, way)]
            texts = []
            for name in ("natural", "balanced", "rare"):
                values = [100 * getattr(trial, name) for trial in group]
                texts.append(f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else ""))
            rows.append([f"{ratio:g}", way, *texts])
    trained = f"{options.init}, {options.train_only}" if options.init else "from scratch"
    setting = f"{pool.name} at {options.image_size} pixels, {trained}; {options.largest} images in the largest class"
    publish(setting, ["ratio", "way", "natural top-1", "balanced accuracy", "rare classes"], rows, trials, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
