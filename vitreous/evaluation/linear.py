"""The linear probe: a linear classifier on frozen features, fitted by two methods.

- ridge: regression to {-1, 1} for each class, in closed form (ridge.py), for a sweep of penalties.
- sgd: multinomial logistic regression by SGD with momentum and a cosine schedule, for a sweep of learning rates and
  weight decays.

All choices are made on a fifth of train that is held out, never on the test images: first the setting of each method,
which is then fitted again to all of train, and then the method that is reported.

n: images; d: width.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vitreous.data.open import stratified
from vitreous.evaluation import features
from vitreous.evaluation.features import FeatureSet, slices
from vitreous.evaluation.ridge import CPU, Linear, Ridge, Scaling

HELD_OUT = 0.2
PENALTIES = tuple(10.0**power for power in range(-6, 4))  # per image: features have a variance of 1
MOMENTUM = 0.9


@dataclass(frozen=True)
class Sgd:
    """Settings of SGD. Features are scaled to a length of about 1, so that learning rates suit any width."""

    lr: float
    weight_decay: float


SWEEP = tuple(Sgd(lr, weight_decay) for weight_decay in (1e-4, 1e-5, 1e-6, 0.0) for lr in (1.0, 10.0, 100.0))
BATCH_SIZE = 64, 1024  # minimum and maximum; in between, an eighth of the images
STEPS = 1000, 12_500  # minimum and maximum, which is that of DINOv2; in between, 30 epochs


@dataclass(frozen=True)
class LinearResult:
    """The best setting of one method and its accuracy."""

    method: str
    held_out: float  # top-1 on the held-out images that chose the setting
    top1: float
    top5: float
    setting: dict[str, float]


def linear_probe(
    train: FeatureSet,
    test: FeatureSet,
    num_classes: int,
    seed: int = 0,
    sweep: Sequence[Sgd] = SWEEP,
    device: torch.device = CPU,
) -> list[LinearResult]:
    """Results of both methods, the better one on held-out images first."""
    fit, held = hold_out(train, num_classes, seed)
    ridge = Ridge(fit, num_classes, device=device)
    accuracies = {penalty: ridge.at(penalty * len(fit)).accuracy(held).top1 for penalty in PENALTIES}
    penalty = max(accuracies, key=lambda penalty: (accuracies[penalty], penalty))  # of equal ones the most regularised
    chosen = Ridge(train, num_classes, device=device).at(penalty * len(train))
    by_ridge = LinearResult("ridge", accuracies[penalty], *chosen.accuracy(test), {"penalty": penalty})

    together = max(1, features.BUDGET // (16 * BATCH_SIZE[1] * num_classes))
    groups = [train_sgd(fit, num_classes, sweep[some], seed, device=device) for some in slices(len(sweep), together)]
    found = [classifier.accuracy(held).top1 for group in groups for classifier in group]
    best = found.index(max(found))  # of equal ones the first
    [chosen] = train_sgd(train, num_classes, sweep[best : best + 1], seed, device=device)
    by_sgd = LinearResult("sgd", found[best], *chosen.accuracy(test), asdict(sweep[best]))
    return sorted([by_ridge, by_sgd], key=lambda result: -result.held_out)


def hold_out(train: FeatureSet, num_classes: int, seed: int) -> tuple[FeatureSet, FeatureSet]:
    """Split a fraction of every class off `train`. A class of one image stays whole."""
    labels = train.labels.numpy()
    several = np.flatnonzero(np.bincount(labels, minlength=num_classes)[labels] > 1)
    if not len(several):
        raise ValueError("a linear probe needs held-out images, but no class has more than one image")
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
) -> list[Linear]:
    """Train a classifier for each setting, all from zero and on the same batches, which depend only on the seed."""
    (n, d), count = train.features.shape, len(sweep)
    batch_size = min(max(n // 8, BATCH_SIZE[0]), BATCH_SIZE[1], n)
    steps = steps or min(max(30 * n // batch_size, STEPS[0]), STEPS[1])
    scaling = Scaling.of(train.features, device)
    scaling = Scaling(scaling.mean, scaling.std * math.sqrt(d))
    lr, decay = torch.tensor([[how.lr, how.weight_decay] for how in sweep], device=device).T[..., None]
    # Classifiers are stacked, so that one product computes the scores of all.
    weight, bias = torch.zeros(d, count, num_classes, device=device), torch.zeros(count, num_classes, device=device)
    speed, bias_speed = torch.zeros_like(weight), torch.zeros_like(bias)
    for step, indices in enumerate(_batches(n, batch_size, steps, seed)):
        inputs, labels = scaling(train.features[indices]).float(), train.labels[indices].to(device)
        error = (torch.tensordot(inputs, weight, dims=1) + bias).softmax(dim=-1)
        error[torch.arange(len(labels), device=device), :, labels] -= (
            1  # the gradient of cross-entropy with respect to the logits
        )
        error /= len(labels)
        speed.mul_(MOMENTUM).add_(torch.tensordot(inputs.T, error, dims=1)).add_(decay * weight)
        bias_speed.mul_(MOMENTUM).add_(error.sum(dim=0))
        rate = lr * (1 + math.cos(math.pi * step / steps)) / 2
        weight -= rate * speed
        bias -= rate * bias_speed
    return [Linear.scaled(scaling, weight[:, i].double(), bias[i].double()) for i in range(count)]


def _batches(count: int, size: int, steps: int, seed: int) -> Iterator[Int[Tensor, "b"]]:
    """Yield `steps` batches; every epoch drops its incomplete last batch."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    for _ in range(steps):
        if len(order) < size:
            order = torch.randperm(count, generator=generator)
        yield order[:size]
        order = order[size:]
