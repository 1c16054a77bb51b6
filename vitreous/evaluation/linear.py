"""Linear classifiers on frozen features: ridge regression, linear probes and few-shot least squares.

n: images; d: feature width; m: the smaller of n and d.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.common.progress import Report, silent, tracked
from vitreous.common.rng import SampleRng
from vitreous.common.text import plural
from vitreous.data.open import stratified
from vitreous.evaluation import features
from vitreous.evaluation.features import Accuracy, FeatureSet, count_hits, rows_within_budget, slices

# ---- Ridge regression ------------------------------------------------------------------------------------------------
# Regularised least squares from features to {-1, 1} for each class, in float64.
#
#     minimise |X W + b - Y|^2 + l2 |W|^2        W = (X'X + l2 I)^-1 X'Y  =  X' (X X' + l2 I)^-1 Y
#
# X contains the standardised features. One eigendecomposition, of X'X or (with fewer images than features) of X X',
# gives the solutions for every l2. Because X is centred, the intercept b is the mean of Y for every l2. One-hot targets
# would give the same ranking of classes, because they are an affine function of Y.

CPU = torch.device("cpu")
EPSILON = 1e-5  # added to the std, as in big_vision, because a constant feature has a std of 0


@dataclass(frozen=True)
class Scaling:
    """Standardisation of features by the mean and std of a training set."""

    mean: Float[Tensor, "d"]
    std: Float[Tensor, "d"]

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], device: torch.device) -> "Scaling":
        """Compute mean and std in two passes, because one pass is inaccurate for large means."""
        n, d = features.shape
        total, squares = torch.zeros(2, d, dtype=torch.float64, device=device)
        parts = list(slices(n, rows_within_budget(d)))
        for part in parts:
            total += features[part].to(device).double().sum(dim=0)
        for part in parts:
            squares += (features[part].to(device).double() - total / n).square().sum(dim=0)
        return cls(total / n, (squares / n).sqrt() + EPSILON)

    def __call__(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return (features.to(self.mean.device).double() - self.mean) / self.std


@dataclass(frozen=True)
class Linear:
    """Linear classifier for unscaled features."""

    weight: Float[Tensor, "d classes"]
    bias: Float[Tensor, "classes"]

    @classmethod
    def scaled(cls, scaling: Scaling, weight: Float[Tensor, "d classes"], bias: Float[Tensor, "classes"]) -> "Linear":
        """Fold the scaling into the weights of a classifier for scaled features."""
        weight = weight / scaling.std[:, None]
        return cls(weight, bias - scaling.mean @ weight)

    def __call__(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n classes"]:
        return features.to(self.weight) @ self.weight + self.bias

    def accuracy(self, test: FeatureSet) -> Accuracy:
        d, classes = self.weight.shape
        device = self.weight.device
        hits = torch.zeros(2, dtype=torch.int64, device=device)
        for part in slices(len(test), rows_within_budget(d + classes)):
            hits += count_hits(self(test.features[part]), test.labels[part].to(device))
        return Accuracy(*(hit / len(test) for hit in hits.tolist()))


class Ridge:
    """Ridge regression for any penalty l2, from a single eigendecomposition.

    dual: Decompose X X' instead of X'X. None selects the smaller matrix. Both give the same solution.
    """

    def __init__(self, train: FeatureSet, num_classes: int, *, dual: bool | None = None, device: torch.device = CPU):
        n, d = train.features.shape
        self.scaling = Scaling.of(train.features, device)
        labels = train.labels.to(device)
        if dual if dual is not None else n < d:
            scaled = self.scaling(train.features)
            self.eigenvalues, vectors = torch.linalg.eigh(scaled @ scaled.T)
            self.left = scaled.T @ vectors
            right = vectors.new_zeros(num_classes, n).index_add_(0, labels, vectors).T  # one_hot(labels).T @ vectors
        else:
            gram = torch.zeros(d, d, dtype=torch.float64, device=device)
            sums = gram.new_zeros(num_classes, d)
            for part in slices(n, rows_within_budget(d)):
                scaled = self.scaling(train.features[part])
                gram.addmm_(scaled.T, scaled)
                sums.index_add_(0, labels[part], scaled)
            self.eigenvalues, self.left = torch.linalg.eigh(gram)
            right = self.left.T @ sums.T
        # Y is twice the one-hot labels minus 1. The constant drops out because X has zero mean.
        self.right: Float[Tensor, "m classes"] = 2 * right
        self.bias = 2 * torch.bincount(labels, minlength=num_classes).double() / n - 1

    def at(self, l2: float) -> Linear:
        # Rounding can make zero eigenvalues slightly negative.
        weight = self.left @ (self.right / (self.eigenvalues.clamp(min=0) + l2)[:, None])
        return Linear.scaled(self.scaling, weight, self.bias)


# ---- Linear probe ----------------------------------------------------------------------------------------------------
# There are two methods: ridge regression with a sweep over penalties, and multinomial logistic regression (SGD with a
# cosine schedule) with a sweep over learning rates and weight decays. The settings of each method, and the method to
# report, are selected on a held-out fifth of the training images, never on the test images. Each method is then
# refitted to all training images with the selected settings.

HELD_OUT = 0.2
PENALTIES = tuple(10.0**power for power in range(-6, 4))  # per image; features have unit variance
MOMENTUM = 0.9


@dataclass(frozen=True)
class Sgd:
    """SGD settings. Features are scaled to a norm of about 1, so the learning rates do not depend on the width."""

    lr: float
    weight_decay: float


SWEEP = tuple(Sgd(lr, weight_decay) for weight_decay in (1e-4, 1e-5, 1e-6, 0.0) for lr in (1.0, 10.0, 100.0))
BATCH_SIZE = 64, 1024  # an eighth of the images, within these limits
STEPS = 1000, 12_500  # 30 epochs, within these limits; the maximum is that of DINOv2


@dataclass(frozen=True)
class LinearResult:
    """Best setting of one method (ridge regression or SGD), and the accuracy with that setting."""

    method: str
    held_out: float  # top-1 accuracy on the held-out images
    top1: float
    top5: float
    setting: dict[str, float]

    def describe(self) -> tuple[str, str]:
        settings = ", ".join(f"{name} {value:g}" for name, value in self.setting.items())
        return self.method, f"{settings} (held-out accuracy {self.held_out:.4f})"


def linear_probe(
    train: FeatureSet,
    test: FeatureSet,
    num_classes: int,
    seed: int = 0,
    sweep: Sequence[Sgd] = SWEEP,
    device: torch.device = CPU,
    progress: Report = silent,
) -> list[LinearResult]:
    """Return the results of ridge regression and SGD on `test`, sorted by accuracy on held-out images."""
    fit, held = hold_out(train, num_classes, seed)
    ridge = Ridge(fit, num_classes, device=device)
    accuracies = {penalty: ridge.at(penalty * len(fit)).accuracy(held).top1 for penalty in PENALTIES}
    penalty = max(accuracies, key=lambda penalty: (accuracies[penalty], penalty))  # largest in a tie
    chosen = Ridge(train, num_classes, device=device).at(penalty * len(train))
    by_ridge = LinearResult("ridge", accuracies[penalty], *chosen.accuracy(test), {"penalty": penalty})

    together = max(1, features.BUDGET // (16 * BATCH_SIZE[1] * num_classes))
    groups = [
        train_sgd(fit, num_classes, sweep[chunk], seed, device=device, progress=progress)
        for chunk in slices(len(sweep), together)
    ]
    held_out = [classifier.accuracy(held).top1 for group in groups for classifier in group]
    best = held_out.index(max(held_out))  # the first in a tie
    [chosen] = train_sgd(train, num_classes, sweep[best : best + 1], seed, device=device, progress=progress)
    by_sgd = LinearResult("sgd", held_out[best], *chosen.accuracy(test), asdict(sweep[best]))
    return sorted([by_ridge, by_sgd], key=lambda result: -result.held_out)


def hold_out(train: FeatureSet, num_classes: int, seed: int) -> tuple[FeatureSet, FeatureSet]:
    """Hold out a fraction of every class of `train`. A class with one image is not split."""
    labels = train.labels.numpy()
    several = np.flatnonzero(np.bincount(labels, minlength=num_classes)[labels] > 1)
    if not len(several):
        raise ValueError("a linear probe requires a class with at least two training images, because one is held out")
    held = several[stratified(labels[several], [""] * num_classes, HELD_OUT, seed, "train")[1]]
    keep = np.setdiff1d(np.arange(len(labels)), held)
    return train.pick(torch.from_numpy(keep)), train.pick(torch.from_numpy(held))


def train_sgd(
    train: FeatureSet,
    num_classes: int,
    sweep: Sequence[Sgd],
    seed: int = 0,
    steps: int | None = None,
    device: torch.device = CPU,
    progress: Report = silent,
) -> list[Linear]:
    """Train one classifier per setting. All classifiers start from zero and use the same batches."""
    (n, d), count = train.features.shape, len(sweep)
    batch_size = min(max(n // 8, BATCH_SIZE[0]), BATCH_SIZE[1], n)
    steps = steps or min(max(30 * n // batch_size, STEPS[0]), STEPS[1])
    scaling = Scaling.of(train.features, device)
    scaling = Scaling(scaling.mean, scaling.std * math.sqrt(d))
    lr, decay = torch.tensor([[how.lr, how.weight_decay] for how in sweep], device=device).T[..., None]
    # The classifiers are stacked to compute all logits at once.
    weight, bias = torch.zeros(d, count, num_classes, device=device), torch.zeros(count, num_classes, device=device)
    speed, bias_speed = torch.zeros_like(weight), torch.zeros_like(bias)
    stage = f"training {plural(count, 'linear classifier')}"
    for step, indices in enumerate(tracked(_batches(n, batch_size, steps, seed), stage, steps, progress)):
        inputs, labels = scaling(train.features[indices]).float(), train.labels[indices].to(device)
        error = (torch.tensordot(inputs, weight, dims=1) + bias).softmax(dim=-1)
        error[torch.arange(len(labels), device=device), :, labels] -= 1  # gradient with respect to the logits
        error /= len(labels)
        speed.mul_(MOMENTUM).add_(torch.tensordot(inputs.T, error, dims=1)).add_(decay * weight)
        bias_speed.mul_(MOMENTUM).add_(error.sum(dim=0))
        rate = lr * (1 + math.cos(math.pi * step / steps)) / 2
        weight -= rate * speed
        bias -= rate * bias_speed
    return [Linear.scaled(scaling, weight[:, i].double(), bias[i].double()) for i in range(count)]


def _batches(count: int, size: int, steps: int, seed: int) -> Iterator[Int[Tensor, "b"]]:
    """Yield the indices of `steps` batches. Incomplete batches at the end of an epoch are dropped."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(count, generator=generator)
        yield order[:size]
        order = order[size:]


# ---- Few-shot accuracy -----------------------------------------------------------------------------------------------
# As in section 4.1 of the ViT paper: regularised least squares from the features of k images per class to
# {-1, 1}^classes. The details follow the authors' code (big_vision, `fewshot_lsr`): standardised features and a penalty
# of 2^10. The authors' penalised bias is omitted: with k images in every class, it is the same for all classes.

PENALTY = 2.0**10
SHOTS = (5, 10, 25)  # defaults


@dataclass(frozen=True)
class FewShotResult:
    """Accuracy with `shots` images per class, averaged over several random draws."""

    shots: int
    top1: float
    top5: float
    std: float  # sample std of top1; 0 for a single draw
    draws: tuple[float, ...]  # top1 of each draw

    def describe(self) -> tuple[str, str]:
        return plural(self.shots, "shot"), f"± {self.std:.4f} over {len(self.draws)} draws"


def fewshot(
    train: FeatureSet,
    test: FeatureSet,
    classes: Sequence[str],
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = range(5),
    device: torch.device = CPU,
) -> list[FewShotResult]:
    """Compute the accuracy on `test` for each number of shots. Classes without training images are never predicted."""
    least, name = smallest_class(train, classes)
    if max(shots) > least:
        few = plural(least, "training image")
        raise ValueError(f"shots is {max(shots)}, but must be at most {least}: class {name!r} only has {few}")
    results = []
    for count in shots:
        drawn = (train.pick(draw(train.labels, count, seed)) for seed in seeds)
        accuracies = [Ridge(subset, len(classes), device=device).at(PENALTY).accuracy(test) for subset in drawn]
        top1, top5 = zip(*accuracies, strict=True)
        std = statistics.stdev(top1) if len(top1) > 1 else 0.0
        results.append(FewShotResult(count, statistics.fmean(top1), statistics.fmean(top5), std, top1))
    return results


def draw(labels: Int[Tensor, "n"], shots: int, seed: int) -> Int[Tensor, "m"]:
    """Return the indices of `shots` random images per class. With the same seed, a larger `shots` only adds images."""
    numbers = SampleRng(seed, 0, torch.arange(len(labels))).uniform("fewshot").numpy()
    order = np.lexsort((numbers, labels.numpy()))  # sorted by class, in random order within each class
    counts = np.bincount(labels.numpy())
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return torch.from_numpy(order[rank < shots])


def smallest_class(train: FeatureSet, classes: Sequence[str]) -> tuple[int, str]:
    """Return the size and name of the smallest class that is not empty."""
    counts = torch.bincount(train.labels, minlength=len(classes)).tolist()
    return min((count, name) for count, name in zip(counts, classes, strict=True) if count)


def fitting_shots(train: FeatureSet, classes: Sequence[str]) -> tuple[tuple[int, ...], str]:
    """Return the default numbers of shots that the smallest class allows, and the reason for skipping the others.

    If the smallest class allows none of the default numbers, return its size instead.
    """
    least, name = smallest_class(train, classes)
    fitting = tuple(count for count in SHOTS if count <= least)
    if fitting == SHOTS:
        return SHOTS, ""
    skipped = ", ".join(str(count) for count in SHOTS if count > least)
    return fitting or (least,), f"{skipped} shots (class {name!r} only has {plural(least, 'training image')})"
