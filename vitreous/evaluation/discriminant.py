"""Linear discriminant analysis (LDA) on frozen features: a closed-form classifier that can be extended.

Each class c is modelled as a Gaussian with mean m_c; all classes share the covariance S. All classes are assumed to be
equally likely, because the number of images of a class need not reflect the frequency of the class. The scores are
linear in x:

    log p(c | x) = -1/2 (x - m_c)' S^-1 (x - m_c) + ... = w_c' x + b_c + ...

S is shrunk towards its diagonal, as in regularised discriminant analysis (Friedman 1989). Features are not exactly
Gaussian, and S is an estimate, so the scores are multiplied by a factor that calibrates the probabilities. The factor
and the shrinkage minimise the cross-entropy of leave-one-out predictions, which also have a closed form.

The `Statistics` of two sets of images can be added, which gives the statistics of their union. A classifier can
therefore be extended without the earlier images (as in deep streaming LDA, arXiv 1909.01520). Ridge regression has
this property too, but hardly ever predicts a class with far fewer images than the other classes.

m: images in the sample; d: feature width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitreous.common.rng import SampleRng
from vitreous.evaluation.features import FeatureSet, rows_within_budget, slices
from vitreous.evaluation.linear import CPU, EPSILON, Linear, Scaling

SAMPLE = 4096  # maximum number of images for choosing the shrinkage and the score factor
SHRINKAGES = (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97, 1.0)
NEVER = -1e4  # score of a class without images


@dataclass(frozen=True)
class Statistics:
    """Moments of all features, and a random sample of features for choosing the shrinkage and the score factor."""

    counts: Float[Tensor, "classes"]  # images per class
    means: Float[Tensor, "classes d"]  # zero for a class without images
    scatter: Float[Tensor, "d d"]  # sum of (x - m_c) (x - m_c)' over all images, each with the mean of its class
    features: Float[Tensor, "m d"]  # the sample
    labels: Int[Tensor, "m"]
    keys: Float[Tensor, "m"]  # random numbers; the sample contains the images with the smallest keys

    @classmethod
    def of(cls, train: FeatureSet, num_classes: int, device: torch.device = CPU) -> "Statistics":
        """Compute the statistics of features in float64 on the device."""
        n, d = train.features.shape
        keys = SampleRng(0, 0, torch.arange(n)).uniform("sample")
        zeros = torch.zeros(num_classes, d, dtype=torch.float64)
        total = cls(zeros[:, 0], zeros, zeros.new_zeros(d, d), torch.zeros(0, d), train.labels[:0], keys[:0])
        for rows in slices(n, rows_within_budget(d)):
            features, labels = train.features[rows].to(device).double(), train.labels[rows].to(device)
            counts = torch.bincount(labels, minlength=num_classes).double()
            means = counts.new_zeros(num_classes, d).index_add_(0, labels, features) / counts.clamp(min=1)[:, None]
            centred = features - means[labels]
            scatter, sample = (centred.T @ centred).cpu(), train.features[rows].float()
            total += cls(counts.cpu(), means.cpu(), scatter, sample, train.labels[rows], keys[rows])
        return total

    def __add__(self, other: "Statistics") -> "Statistics":
        """Merge the statistics of two sets of images with the same classes."""
        counts, shift = self.counts + other.counts, other.means - self.means
        fraction = (other.counts / counts.clamp(min=1))[:, None]
        keys = torch.cat([self.keys, other.keys])
        keep = keys.argsort(stable=True)[:SAMPLE]
        return Statistics(
            counts,
            self.means + fraction * shift,
            self.scatter + other.scatter + shift.T @ (fraction * self.counts[:, None] * shift),
            torch.cat([self.features, other.features])[keep],
            torch.cat([self.labels, other.labels])[keep],
            keys[keep],
        )

    def with_classes(self, places: Sequence[int], num_classes: int) -> "Statistics":
        """Return the statistics for another class list: class i becomes places[i], and new classes have no images."""
        index = torch.tensor(places)
        counts, means = self.counts.new_zeros(num_classes), self.means.new_zeros(num_classes, self.means.shape[1])
        counts[index], means[index] = self.counts, self.means
        return Statistics(counts, means, self.scatter, self.features, index[self.labels], self.keys)

    @property
    def count(self) -> int:
        """Number of images."""
        return int(self.counts.sum())

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name, for storage in a checkpoint."""
        return dict(vars(self))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], num_classes: int, width: int) -> "Statistics":
        """Build statistics from the tensors of a checkpoint. Raise ValueError if the tensors are invalid."""
        m = len(tensors["labels"]) if "labels" in tensors else 0
        expected = {
            "counts": (num_classes,), "means": (num_classes, width), "scatter": (width, width),
            "features": (m, width), "labels": (m,), "keys": (m,),
        }  # fmt: skip
        for name, shape in expected.items():
            if name not in tensors:
                raise ValueError(f"{name} is missing")
            if tuple(tensors[name].shape) != shape:
                raise ValueError(f"{name} must have shape {list(shape)}, got {list(tensors[name].shape)}")
        labels = tensors["labels"]
        if labels.dtype != torch.int64 or bool(((labels < 0) | (labels >= num_classes)).any()):
            raise ValueError(f"labels must be integers from 0 to {num_classes - 1}")
        return cls(**{name: tensors[name] for name in expected})


@dataclass(frozen=True)
class Classifier:
    """A linear classifier with calibrated scores, and the metrics of leave-one-out predictions on the sample."""

    linear: Linear
    shrinkage: float
    factor: float
    top1: float
    loss: float

    @classmethod
    def fit(cls, statistics: Statistics, device: torch.device = CPU) -> "Classifier":
        """Choose the shrinkage and the score factor, and compute the weights."""
        rows = statistics.counts[statistics.labels] > 1  # a class with one image cannot be predicted without that image
        if not bool(rows.any()):
            raise ValueError(
                "estimating the covariance requires a class with at least two images, but no class has two"
            )
        most = rows_within_budget(len(statistics.counts))
        features, labels = (x[rows][:most].to(device) for x in (statistics.features, statistics.labels))
        model, best = Discriminant(statistics, device), None
        for shrinkage in SHRINKAGES:
            scores = model.leave_one_out(features, labels, shrinkage)
            factor = best_factor(scores, labels)
            loss = float(F.cross_entropy(factor * scores, labels))
            if best is None or loss <= best.loss:  # prefer the largest shrinkage in a tie
                top1 = float((scores.argmax(dim=1) == labels).double().mean())
                best = cls(model.at(shrinkage, factor), shrinkage, factor, top1, loss)
        assert best is not None
        return best


class Discriminant:
    """Discriminant analysis for any shrinkage, from one eigendecomposition of the within-class correlation matrix."""

    def __init__(self, statistics: Statistics, device: torch.device = CPU):
        counts, means, scatter = (x.to(device) for x in (statistics.counts, statistics.means, statistics.scatter))
        self.counts, self.total = counts, counts.sum()
        std = (scatter.diagonal() / self.total).sqrt() + EPSILON
        self.scaling = Scaling(counts @ means / self.total, std)
        eigenvalues, self.axes = torch.linalg.eigh(scatter / self.total / torch.outer(std, std))
        self.eigenvalues = eigenvalues.clamp(min=0)  # rounding can make zero eigenvalues slightly negative
        self.means = self.rotate(means)

    def rotate(self, features: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Standardise features and project them onto the eigenvectors."""
        return self.scaling(features) @ self.axes

    def precision(self, shrinkage: float) -> Float[Tensor, "d"]:
        """Return the eigenvalues of S^-1."""
        return 1 / ((1 - shrinkage) * self.eigenvalues + shrinkage)

    def at(self, shrinkage: float, factor: float) -> Linear:
        """Return the linear classifier. Its scores omit the term x' S^-1 x, which is the same for all classes."""
        weighted = factor * self.precision(shrinkage) * self.means
        bias = -(weighted * self.means).sum(dim=1) / 2
        absent = self.counts == 0
        weighted, bias = weighted.masked_fill(absent[:, None], 0), bias.masked_fill(absent, NEVER)
        return Linear.scaled(self.scaling, self.axes @ weighted.T, bias)

    def leave_one_out(
        self, features: Float[Tensor, "m d"], labels: Int[Tensor, "m"], shrinkage: float
    ) -> Float[Tensor, "m classes"]:
        """Return the scores of each image from a fit to all other images, with the same standardisation.

        Removing an image shifts the mean of its class, and changes the scatter by a matrix of rank one, so S^-1 can be
        updated with the Sherman-Morrison formula.
        """
        precision, rows = self.precision(shrinkage), torch.arange(len(labels), device=labels.device)
        x = self.rotate(features)
        own = x - self.means[labels]
        away = (self.counts / (self.counts - 1))[labels]  # distance to the new mean, relative to the old mean
        weighted = own * precision
        length = (weighted * own).sum(dim=1)
        change = (1 - shrinkage) * away / self.total
        distance = (x * x) @ precision[:, None] - 2 * (x * precision) @ self.means.T + self.means.square() @ precision
        along = (weighted * x).sum(dim=1, keepdim=True) - weighted @ self.means.T
        distance[rows, labels], along[rows, labels] = away**2 * length, away * length
        scores = -(distance + (change / (1 - change * length))[:, None] * along.square()) / 2
        return scores.masked_fill(self.counts == 0, scores.min() + NEVER)


def best_factor(scores: Float[Tensor, "m classes"], labels: Int[Tensor, "m"]) -> float:
    """Return the factor, at most 1, that minimises the cross-entropy of the scaled scores.

    The factor is 1 for exactly Gaussian features. Without the limit, the factor would be infinite if every prediction
    were correct.
    """
    own, factor = scores.gather(1, labels[:, None])[:, 0], 1.0
    for _ in range(100):  # Newton's method, because the cross-entropy is convex in the factor
        p = (factor * scores).softmax(dim=1)
        mean = (p * scores).sum(dim=1)
        curvature = float((p * (scores - mean[:, None]).square()).sum(dim=1).mean())
        step = float((mean - own).mean()) / max(curvature, 1e-30)
        before, factor = factor, min(max(factor - step, factor / 4), factor * 4, 1.0)
        if abs(factor - before) <= 1e-9 * before:
            break
    return factor
