"""Accuracy and run time of `train --train-only lda` and `extend`, and the effect of an added class on the others.

The features of all images are computed once. The classifier is then fitted to all classes and, for each of several
classes, to the others; that class is added as `vitreous extend` does, with all of its images and with a few.

    python -m benchmarks.closed_form --init dinov2-s --data pets --image-size 224
"""

import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
import tyro

from benchmarks.publish_table import publish
from vitreous.data.open import open_data
from vitreous.evaluation.discriminant import Classifier, Statistics
from vitreous.evaluation.evaluate_model import choose_split
from vitreous.evaluation.features import FeatureSet, extract
from vitreous.inference.predictor import Predictor
from vitreous.tasks.classification_metrics import Evaluation
from vitreous.weights.load import load_encoder


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    init: str = "dinov2-s"
    data: str = "pets"
    image_size: int = 224
    added: int = 10  # number of classes to add, each on its own
    few: int = 5  # images of a class to add instead of all
    device: str = "auto"
    batch_size: int = 64
    workers: int = 2
    out: Path = Path("runs/bench/closed_form.json")


@dataclass(frozen=True)
class Added:
    """Accuracy on test images after a class was added with `images` images."""

    images: str
    old_before: float  # top-1 of the other classes, without the new one
    old_after: float
    new: float  # top-1 of the new class
    seconds: float  # for merging statistics and computing the head


def top1(classifier: Classifier, test: FeatureSet, rows: torch.Tensor) -> float:
    scores = classifier.linear(test.features[rows]).cpu()
    return float((scores.argmax(dim=1) == test.labels[rows]).double().mean())


def add(train: FeatureSet, test: FeatureSet, new: int, classes: int, most: int | None, device: torch.device) -> Added:
    """Fit all classes except `new`, and then add it."""
    mine = train.labels == new
    others = Statistics.of(train.pick((~mine).nonzero()[:, 0]), classes, device)
    before = Classifier.fit(others, device)
    images = train.pick(mine.nonzero()[:most, 0])
    started = time.perf_counter()
    after = Classifier.fit(others + Statistics.of(images, classes, device), device)
    seconds = time.perf_counter() - started
    old = test.labels != new
    return Added(f"{len(images)}", top1(before, test, old), top1(after, test, old), top1(after, test, ~old), seconds)


def main(options: Options) -> None:
    data = open_data(options.data)
    split, source = choose_split(data)
    predictor = Predictor(
        load_encoder(options.init, options.image_size), options.device,
        batch_size=options.batch_size, precision="auto", workers=options.workers,
    )  # fmt: skip
    started = time.perf_counter()
    train = extract(predictor, data.train)
    extracted = time.perf_counter() - started
    test, classes, device = extract(predictor, source), len(data.classes), predictor.device
    started = time.perf_counter()
    found = Classifier.fit(Statistics.of(train, classes, device), device)
    solved = time.perf_counter() - started
    metrics = Evaluation.of(found.linear(test.features), test.labels).metrics()
    setting = (
        f"{data.name} at {options.image_size} pixels on {device}: {split} top-1 {metrics['top1']:.1%}, calibration "
        f"error {metrics['ece']:.3f}; {extracted:.1f} s for {len(train):,} images, {solved:.2f} s for the head"
    )
    chosen = torch.linspace(0, classes - 1, min(options.added, classes)).long().tolist()
    results = []
    for most in (None, options.few):
        trials = [add(train, test, new, classes, most, device) for new in chosen]
        means = {
            name: fmean(getattr(trial, name) for trial in trials)
            for name in ("old_before", "old_after", "new", "seconds")
        }
        results.append(Added("all" if most is None else f"{most}", **means))
    rows = [
        [row.images, *(f"{value:.1%}" for value in (row.old_before, row.old_after, row.new)), f"{row.seconds:.2f}"]
        for row in results
    ]
    columns = ["images of the added class", "others before", "others after", "added class", "s"]
    publish(setting, columns, rows, results, options.out)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
