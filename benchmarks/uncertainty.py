"""Calibration error, detection of unknown images, and coverage of label sets.

A classifier is calibrated on the validation split and measured on the test split. The unknown images are from another
data set. Several familiarity scores and kinds of label sets are compared. The coverage of label sets varies with
the validation images, so it is averaged over random splits of the validation and test images. A trained classifier is
measured with its head, temperature and familiarity statistics. If the checkpoint has no head for the classes, a linear
one is fitted to the features of the train split.

    python -m benchmarks.uncertainty runs/cifar/best cifar10.npz cifar100.npz --cache features/
    python -m benchmarks.uncertainty dinov2s.pt cifar10.npz cifar100.npz --image-size 84 --cache features/

Vitreous uses the Mahalanobis distance and thresholds.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor

from benchmarks.publish_table import publish
from vitreous.data import open_data
from vitreous.evaluation.features import FeatureSet, cached_features
from vitreous.evaluation.linear import Ridge, Sgd, train_sgd
from vitreous.inference import Precision
from vitreous.inference.fit_calibration import calibrate_scores
from vitreous.inference.predictor import Embedder
from vitreous.model.calibration import UNKNOWN, Calibration
from vitreous.model.familiarity import Familiarity
from vitreous.tasks import Evaluation
from vitreous.weights.load import load_encoder

NEIGHBOURS = 10
COVERAGES = (0.8, 0.9, 0.95, 0.99)
REPEATS = 20  # random splits of the validation and test images for label sets, and subsets of the training images
RATIOS = (1, 1.5, 2, 3, 4, 5)  # training images per dimension
Score = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Options:
    """Benchmark options."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    data: Annotated[str, tyro.conf.Positional]
    unknown: Annotated[str, tyro.conf.Positional]
    image_size: int | None = None
    head: Literal["logistic", "ridge"] = "logistic"  # fitted if the checkpoint has no head for these classes
    cache: Path | None = None
    device: str = "auto"
    precision: Precision = "fp32"
    out: Path = Path("runs/bench/uncertainty.json")


@dataclass(frozen=True)
class Result:
    quantity: str
    method: str
    value: float
    note: str = ""


@torch.no_grad()
def main(options: Options) -> list[Result]:
    model = load_encoder(options.checkpoint, options.image_size)
    predictor = Embedder(model, options.device, 64, options.precision, backend="auto")
    data, unknown_data = open_data(options.data), open_data(options.unknown)
    unknown = [source for source in (unknown_data.train, unknown_data.val, unknown_data.test) if source is not None]
    sources = (data.train, data.val, data.test or data.val, *unknown)
    found = (cached_features(options.cache, predictor, source)[0] for source in sources)
    train, val, test, *unlike = (FeatureSet(split.features.float(), split.labels) for split in found)
    if model.config.labels == data.classes:
        head: Score = model.float().heads[0].cpu()
    elif options.head == "ridge":
        head = Ridge(train, len(data.classes)).at(0.1 * len(train))
    else:
        [head] = train_sgd(train, len(data.classes), [Sgd(lr=10.0, weight_decay=1e-4)])
    features = {"val": val.features, "test": test.features, "unknown": torch.cat([part.features for part in unlike])}
    logits = {split: head(values).float() for split, values in features.items()}
    calibration = model.config.calibration or calibrate_scores(logits["val"], val.labels)
    return [
        *errors(logits["test"], test.labels, calibration),
        *unknown_images(train, features, logits, model.familiarity),
        *coverages(torch.cat([logits["val"], logits["test"]]), torch.cat([val.labels, test.labels]), len(val)),
    ]


def errors(logits: Tensor, labels: Tensor, calibration: Calibration) -> list[Result]:
    temperature = calibration.temperature
    found = Evaluation.of(logits, labels, temperature=temperature).metrics()
    loss = float(F.cross_entropy(logits / temperature, labels))
    return [
        Result("top-1", "", found["top1"], f"{len(labels)} test images"),
        Result("calibration error", "before", found["ece"], f"loss {found['loss']:.3f}"),
        Result("calibration error", f"temperature {temperature:.3f}", found["ece_calibrated"], f"loss {loss:.3f}"),
    ]


# ---- Unknown images --------------------------------------------------------------------------------------------------


def unknown_images(
    train: FeatureSet, features: dict[str, Tensor], logits: dict[str, Tensor], stored: Familiarity | None
) -> list[Result]:
    by_logits: dict[str, Score] = {
        "energy": lambda x: x.logsumexp(1),
        "largest logit": lambda x: x.amax(1),
        "largest probability": lambda x: x.softmax(1).amax(1),
    }
    known = stored or Familiarity.fit(train.features, train.labels)
    by_class = known.scores
    by_all = Familiarity.fit(train.features, torch.zeros_like(train.labels)).scores
    by_distance: dict[str, Score] = {
        "Mahalanobis": by_class,
        "relative Mahalanobis": lambda x: by_class(x) - by_all(x),
        "cosine to class mean": cosine(train),
        "the same, whitened": lambda x: whitened_cosine(known, x),
        "k-NN": nearest(train),
    }
    found = {name: {split: score(x) for split, x in logits.items()} for name, score in by_logits.items()}
    found |= {name: {split: score(x) for split, x in features.items()} for name, score in by_distance.items()}
    results = []
    for name, score in found.items():
        threshold = score["val"].double().quantile(UNKNOWN)
        marked, unknown = (float((score[split] < threshold).double().mean()) for split in ("test", "unknown"))
        note = f"marked as unknown: {marked:.1%} of the known images, {unknown:.1%} of the unknown ones"
        results.append(Result("AUROC", name, auroc(score["test"], score["unknown"]), note))
    return results + fewer_images(train, features)


def fewer_images(train: FeatureSet, features: dict[str, Tensor]) -> list[Result]:
    """Measure the Mahalanobis distance with fewer training images: 1, 1.5, 2, ... per dimension, several times."""
    results, generator = [], torch.Generator().manual_seed(0)
    width = train.features.shape[1]
    for ratio in RATIOS:
        if (count := round(ratio * width)) >= len(train):
            break
        areas, marked = [], []
        for _ in range(REPEATS):
            chosen = torch.randperm(len(train), generator=generator)[:count]
            score = Familiarity.fit(train.features[chosen], train.labels[chosen]).scores
            found = {split: score(x).double() for split, x in features.items()}
            areas.append(auroc(found["test"], found["unknown"]))
            marked.append(float((found["unknown"] < found["val"].quantile(UNKNOWN)).double().mean()))
        note = f"± {torch.tensor(areas).std():.4f}; marked as unknown: {fmean(marked):.1%} of the unknown images"
        results.append(Result("AUROC", f"Mahalanobis, {count} training images", fmean(areas), note))
    return results


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Return the probability that a known image has a higher score than an unknown one. Ties count half."""
    ordered, values = unknown.double().sort().values, known.double()
    below = torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)
    return float(below.double().mean()) / 2 / len(unknown)


def cosine(train: FeatureSet) -> Score:
    centre = train.features.mean(0)
    means = torch.stack([train.features[train.labels == label].mean(0) for label in torch.unique(train.labels)])
    return lambda x: (F.normalize(x - centre, dim=1) @ F.normalize(means - centre, dim=1).T).amax(1)


def whitened_cosine(known: Familiarity, features: Tensor) -> Tensor:
    return (F.normalize((features - known.centre) @ known.whiten) @ F.normalize(known.means).T).amax(1)


def nearest(train: FeatureSet) -> Score:
    known = F.normalize(train.features, dim=1)
    return lambda x: (F.normalize(x, dim=1) @ known.T).topk(NEIGHBOURS, dim=1).values[:, -1]


# ---- Label sets ------------------------------------------------------------------------------------------------------


def coverages(logits: Tensor, labels: Tensor, count: int) -> list[Result]:
    """Calibrate on `count` random images and evaluate the label sets of the others, several times."""
    found: dict[tuple[float, str], list[tuple[float, float, float]]] = defaultdict(list)
    generator = torch.Generator().manual_seed(0)
    for _ in range(REPEATS):
        order = torch.randperm(len(labels), generator=generator)
        fit, rest = order[:count], order[count:]
        calibration = calibrate_scores(logits[fit], labels[fit])
        before, after = ((logits[some] / calibration.temperature).softmax(1) for some in (fit, rest))
        scores = adaptive_scores(before).gather(1, labels[fit, None])[:, 0].sort().values
        for coverage in COVERAGES:
            limit = scores[min(math.ceil(coverage * (count + 1)), count) - 1]
            sets = {
                "threshold": after >= calibration.probability_threshold(coverage),
                "adaptive (APS)": adaptive_scores(after) <= limit,
            }
            for name, chosen in sets.items():
                covered, sizes = chosen.gather(1, labels[rest, None]).double(), chosen.sum(1).double()
                numbers = (covered.mean(), sizes.mean(), (sizes == 0).double().mean())
                found[coverage, name].append(tuple(map(float, numbers)))  # type: ignore[arg-type]
    results = []
    for (coverage, name), rows in found.items():
        (covered, size, empty), std = torch.tensor(rows).mean(0).tolist(), float(torch.tensor(rows).std(0)[0])
        note = f"± {std:.4f} over {REPEATS} splits, {size:.2f} labels on average, {empty:.1%} of the sets empty"
        results.append(Result(f"coverage {coverage:g}", name, covered, note))
    return results


def adaptive_scores(probabilities: Tensor) -> Tensor:
    """Return the total probability of the more probable classes plus a random part of that of the class itself."""
    ordered, order = probabilities.sort(dim=1, descending=True)
    random = torch.rand(len(ordered), 1, generator=torch.Generator().manual_seed(0))
    return torch.zeros_like(ordered).scatter(1, order, ordered.cumsum(1) - random * ordered)


if __name__ == "__main__":
    options = tyro.cli(Options, description=__doc__)
    results = main(options)
    setting = f"{options.checkpoint.name}: {options.data}, unknown images from {options.unknown}"
    rows = [(row.quantity, row.method, f"{row.value:.4f}", row.note) for row in results]
    publish(setting, ("", "method", "value", ""), rows, results, options.out)
