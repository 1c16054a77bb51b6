"""Finds likely label errors by confident learning (arXiv 1911.00068) with a ridge classifier on frozen features.

Each image gets class probabilities from a classifier that was fitted without that image. An image is suspicious if the
probability of its label is low. On CIFAR-10N, ranking by this probability found more errors than ranking by the margin
to the most probable other class (docs/en/measured.md).

n: images; d: feature width.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitreous.common.rng import SampleRng
from vitreous.evaluation.features import FeatureSet
from vitreous.evaluation.linear import CPU, Ridge

FOLDS = 5
PENALTIES = tuple(10.0**power for power in range(-4, 2))  # per image, as in linear.py
FACTORS = tuple(2.0 ** (power / 4) for power in range(-4, 25))  # inverse temperatures, for scores from -1 to 1


@dataclass(frozen=True)
class LabelErrors:
    """Out-of-sample class probabilities of all images, and the labels that are likely to be wrong."""

    probabilities: Float[Tensor, "n classes"]
    labels: Int[Tensor, "n"]
    likely: Bool[Tensor, "n"]

    @property
    def confidence(self) -> Float[Tensor, "n"]:
        """Probability of the given label. The lowest values are the most suspicious."""
        return self.probabilities.gather(1, self.labels[:, None])[:, 0]

    @property
    def suggested(self) -> Int[Tensor, "n"]:
        """The most probable class other than the given label."""
        return self.probabilities.scatter(1, self.labels[:, None], -1).argmax(dim=1)

    @property
    def accuracy(self) -> float:
        """Fraction of labels that equal the predicted class. If it is low, most findings are classifier errors."""
        return float((self.probabilities.argmax(dim=1) == self.labels).float().mean())

    def ranked(self) -> Int[Tensor, "m"]:
        """Return the indices of the likely errors, the most suspicious first."""
        order = self.confidence.argsort(stable=True)
        return order[self.likely[order]]


def find_label_errors(images: FeatureSet, num_classes: int, seed: int = 0, device: torch.device = CPU) -> LabelErrors:
    """Cross-validate a classifier on all images and select the labels that it contradicts.

    An image that is the only one of its class is never selected.
    """
    probabilities = out_of_sample(images, num_classes, seed, device)
    return LabelErrors(probabilities, images.labels, likely_errors(probabilities, images.labels))


def out_of_sample(
    images: FeatureSet, num_classes: int, seed: int = 0, device: torch.device = CPU
) -> Float[Tensor, "n classes"]:
    """Return the class probabilities of each image from a ridge classifier that was fitted to the other folds.

    The penalty and the softmax temperature minimise the cross-entropy of these probabilities. The penalty is chosen on
    the first fold.
    """
    fold, labels = folds(images.labels, seed), images.labels
    scores, penalties = torch.zeros(len(labels), num_classes), PENALTIES
    for number in range(min(FOLDS, len(labels))):
        held = (fold == number).nonzero()[:, 0]
        rest = images.pick((fold != number).nonzero()[:, 0])
        ridge = Ridge(rest, num_classes, device=device)
        outputs = {penalty: ridge.at(penalty * len(rest))(images.features[held]).float().cpu() for penalty in penalties}
        best = min(outputs, key=lambda penalty: sharpened(outputs[penalty], labels[held])[1])
        scores[held], penalties = outputs[best], (best,)
    return (scores * sharpened(scores, labels)[0]).softmax(dim=1)


def sharpened(scores: Float[Tensor, "n classes"], labels: Int[Tensor, "n"]) -> tuple[float, float]:
    """Return the factor that minimises the cross-entropy of the scaled scores, and that cross-entropy."""
    losses = {factor: float(F.cross_entropy(scores * factor, labels)) for factor in FACTORS}
    factor = min(losses, key=lambda factor: losses[factor])
    return factor, losses[factor]


def folds(labels: Int[Tensor, "n"], seed: int) -> Int[Tensor, "n"]:
    """Return the fold of each image. Every class is divided evenly into random folds."""
    numbers = SampleRng(seed, 0, torch.arange(len(labels))).uniform("folds").numpy()
    order = np.lexsort((numbers, labels.numpy()))  # grouped by class, shuffled within each class
    fold = torch.empty_like(labels)
    fold[torch.from_numpy(order)] = torch.arange(len(labels)) % FOLDS
    return fold


def likely_errors(probabilities: Float[Tensor, "n classes"], labels: Int[Tensor, "n"]) -> Bool[Tensor, "n"]:
    """Select the n labels with the lowest probability, where confident learning estimates that n labels are wrong.

    Confident learning counts a label as wrong if another class is the most probable among all classes whose probability
    reaches their threshold. The threshold of a class is its mean probability over the images with that label. Only the
    number of wrong labels is used, because selecting the counted images themselves is less precise. Labels that the
    classifier predicts are never selected.
    """
    classes = probabilities.shape[1]
    confidence = probabilities.gather(1, labels[:, None])[:, 0]
    counts = torch.bincount(labels, minlength=classes)
    threshold = torch.zeros(classes).index_add_(0, labels, confidence) / counts
    threshold[counts < 2] = torch.inf  # a class with one image cannot be predicted without that image
    confident = probabilities.where(probabilities >= threshold, -1)
    wrong = (confident.amax(dim=1) >= 0) & (confident.argmax(dim=1) != labels) & (counts[labels] > 1)
    known = (counts[labels] > 1).nonzero()[:, 0]
    lowest = known[confidence[known].argsort(stable=True)[: int(wrong.sum())]]
    likely = torch.zeros(len(labels), dtype=torch.bool)
    likely[lowest] = True
    return likely & (probabilities.argmax(dim=1) != labels)
