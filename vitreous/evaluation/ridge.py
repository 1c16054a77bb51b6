"""Regularised least squares from features to {-1, 1} for each class, in float64, for linear and few-shot probes.

    minimise |X W + b - Y|^2 + l2 |W|^2        W = (X'X + l2 I)^-1 X'Y  =  X' (X X' + l2 I)^-1 Y

X are the features, standardised. One eigendecomposition, of X'X or, with fewer images than features, of X X', gives
the solutions for every l2. As X is centred, the intercept b is the mean of Y for every l2. (One-hot targets would give
the same ranking of classes: they are Y halved and shifted.)

n: images; d: width; m: the smaller of the two.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.evaluation.features import Accuracy, FeatureSet, count_hits, rows_within_budget, slices

CPU = torch.device("cpu")
EPSILON = 1e-5  # added to the std, as in big_vision: a constant feature has a std of 0


@dataclass(frozen=True)
class Scaling:
    """Standardise features by the mean and std of a training set."""

    mean: Float[Tensor, "d"]
    std: Float[Tensor, "d"]

    @classmethod
    def of(cls, features: Float[Tensor, "n d"], device: torch.device) -> "Scaling":
        """Compute in two passes: for large means, one pass would lose the variance to rounding."""
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
    """A linear classifier of unscaled features."""

    weight: Float[Tensor, "d classes"]
    bias: Float[Tensor, "classes"]

    @classmethod
    def scaled(cls, scaling: Scaling, weight: Float[Tensor, "d classes"], bias: Float[Tensor, "classes"]) -> "Linear":
        """Fold the scaling into the weights of a classifier of scaled features."""
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
    """Solutions of one problem for every l2.

    dual: decompose X X' rather than X'X; None chooses the smaller. The solutions are the same.

    >>> features = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> ridge = Ridge(FeatureSet(features, torch.tensor([0, 0, 1, 1])), num_classes=2)
    >>> ridge.at(0.1)(features).argmax(dim=1)
    tensor([0, 0, 1, 1])
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
        # Y is twice the one-hot labels minus 1, and the constant drops out: X has zero mean.
        self.right: Float[Tensor, "m classes"] = 2 * right
        self.bias = 2 * torch.bincount(labels, minlength=num_classes).double() / n - 1

    def at(self, l2: float) -> Linear:
        # Zero eigenvalues come out slightly negative or positive.
        weight = self.left @ (self.right / (self.eigenvalues.clamp(min=0) + l2)[:, None])
        return Linear.scaled(self.scaling, weight, self.bias)
