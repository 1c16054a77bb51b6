"""Familiarity of an image to a classifier: how well its features fit one of the classes.

Features of each class are modelled as a Gaussian, with one covariance for all classes, and those of all images as
another Gaussian. The score is the squared Mahalanobis distance to all images minus that to the nearest class (relative
Mahalanobis distance, Ren et al., arXiv 2106.09022). The two differ only in the directions in which class means differ
(linear discriminant analysis). These are fewer than the classes, so a score costs little more than the head.

n: images; d: width of the features; r: directions; k: classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

SHRINKAGE = 0.01  # fraction of the mean variance that is added to every variance, for few images


@dataclass(frozen=True)
class Familiarity:
    """Statistics of the features of training images."""

    centre: Float[Tensor, "d"]
    directions: Float[Tensor, "d r"]  # in which the variance within classes is 1
    means: Float[Tensor, "k r"]  # of the classes that have images
    weights: Float[Tensor, "r"]  # fraction of the total variance that is between classes

    @classmethod
    def fit(cls, features: Float[Tensor, "n d"], labels: Int[Tensor, "n"]) -> "Familiarity":
        known, members = torch.unique(labels, return_inverse=True)
        centre = features.double().mean(dim=0)
        rows = features.double() - centre
        counts = torch.bincount(members).double()[:, None]
        means = rows.new_zeros(len(known), rows.shape[1]).index_add_(0, members, rows) / counts
        within = rows - means[members]
        covariance, between = within.T @ within / len(rows), (means * counts).T @ means / len(rows)
        variance = (covariance + between).diagonal().mean()
        covariance += (SHRINKAGE * variance + 1e-12) * torch.eye(len(covariance), dtype=torch.float64)
        inverse = torch.linalg.inv(torch.linalg.cholesky(covariance))
        ratios, vectors = torch.linalg.eigh(inverse @ between @ inverse.T)  # of the variances between and within
        count = min(len(known) - 1, rows.shape[1])
        directions = inverse.T @ vectors[:, len(vectors) - count :]
        ratios = ratios[len(ratios) - count :].clamp(min=0)
        found = (centre, directions, means @ directions, ratios / (1 + ratios))
        return cls(*(tensor.float().contiguous() for tensor in found))

    def scores(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
        """Return the score of each image; higher is more familiar."""
        rows = (features.float() - self.centre) @ self.directions
        nearest = (2 * rows @ self.means.T - self.means.square().sum(dim=1)).amax(dim=1)
        return nearest - (rows.square() * self.weights).sum(dim=1)

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], width: int) -> "Familiarity":
        """Build it from stored tensors, which must fit features of this width."""
        names = [field.name for field in fields(cls)]
        if set(tensors) != set(names):
            raise ValueError(f"expected the tensors {', '.join(names)}, got {', '.join(tensors) or 'none'}")
        found = cls(**{name: tensors[name].clone() for name in names})
        (classes, count), shapes = found.means.shape, [tuple(tensor.shape) for tensor in found.tensors().values()]
        if shapes != [(width,), (width, count), (classes, count), (count,)]:
            raise ValueError(f"the shapes {shapes} do not fit features of width {width}")
        return found

    def to(self, device: torch.device) -> "Familiarity":
        return Familiarity(*(tensor.to(device) for tensor in self.tensors().values()))
