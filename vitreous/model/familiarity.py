"""Familiarity of an image to a classifier: how close its features are to the nearest class of training images.

The score is the negative squared Mahalanobis distance to the nearest class mean, with one covariance matrix for all
classes (Lee et al., arXiv 1807.03888). It does not depend on the head, which often scores images
of unknown classes highly.

n: images; d: feature dimension; k: classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Int
from torch import Tensor

SHRINKAGE = 0.01  # fraction of the mean variance that is added to every variance, for data sets with few images


@dataclass(frozen=True)
class Familiarity:
    """Class means and whitening matrix of the features of training images."""

    centre: Float[Tensor, "d"]
    whiten: Float[Tensor, "d d"]  # transforms the within-class covariance to the identity
    means: Float[Tensor, "k d"]  # centred and whitened means of the classes that have images

    @classmethod
    def fit(cls, features: Float[Tensor, "n d"], labels: Int[Tensor, "n"]) -> "Familiarity":
        known, members = torch.unique(labels, return_inverse=True)
        centre = features.double().mean(dim=0)
        rows = features.double() - centre
        means = rows.new_zeros(len(known), rows.shape[1]).index_add_(0, members, rows)
        means /= torch.bincount(members)[:, None]
        within = rows - means[members]
        ridge = SHRINKAGE * rows.square().mean() + 1e-12
        covariance = within.T @ within / len(rows) + ridge * torch.eye(rows.shape[1], dtype=torch.float64)
        whiten = torch.linalg.inv(torch.linalg.cholesky(covariance)).T
        return cls(*(tensor.float().contiguous() for tensor in (centre, whiten, means @ whiten)))

    def scores(self, features: Float[Tensor, "b d"]) -> Float[Tensor, "b"]:
        """Return the score of each image; higher is more familiar."""
        rows = (features.float() - self.centre) @ self.whiten
        return -torch.cdist(rows, self.means).amin(dim=1).square()

    def tensors(self) -> dict[str, Tensor]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], width: int) -> "Familiarity":
        """Build from stored tensors. Raise ValueError if a name or shape does not match features of this width."""
        names = [field.name for field in fields(cls)]
        if set(tensors) != set(names):
            raise ValueError(f"expected the tensors {', '.join(names)}, got {', '.join(tensors) or 'none'}")
        shapes = [list(tensors[name].shape) for name in names]
        if shapes[:2] != [[width], [width, width]] or shapes[2][1:] != [width] or shapes[2] == [0, width]:
            expected = f"[{width}], [{width}, {width}] and [classes, {width}]"
            raise ValueError(f"the shapes of {', '.join(names)} must be {expected}, got {shapes}")
        return cls(*(tensors[name].clone() for name in names))

    def to(self, device: torch.device) -> "Familiarity":
        return Familiarity(*(tensor.to(device) for tensor in self.tensors().values()))
