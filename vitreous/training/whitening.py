"""Initialises the patch embedding as a whitening of the patches of training images, followed by a random projection.

The filters of airbench (arXiv 2404.00498) are the eigenvectors and their negatives, and they are frozen. Here, they are
rotated at random and trained.

n: patches; p: pixels of a patch, over all channels.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import BadValue
from vitreous.data.loader import Batch
from vitreous.model.init import whiten_
from vitreous.model.inputs import normalise
from vitreous.model.protocol import Model, UnsupportedModel

IMAGES = 5_000  # the covariance of the patches hardly changes with more images
LEAST_VARIANCE = 1e-6  # of normalised pixels; that of a black image with one white pixel in a million is larger


def whiten_patches(model: Model, batches: Iterable[Batch]) -> None:
    """Initialise the patch embedding from images at the model's input size."""
    embedding, how = model.patch_embedding, model.config.preprocessing
    if embedding is None:
        raise UnsupportedModel(f"the model does not project patches of the image: it is a {model.config.summary}")
    images = (batch.images[batch.labels >= 0].float() / 255 for batch in batches)
    mean, covariance = moments(embedding.pixels(normalise(some, how)).flatten(0, 1) for some in images)
    if covariance.diagonal().mean() < LEAST_VARIANCE:
        raise BadValue("--whiten needs images whose patches differ, but all sampled training images are constant")
    whiten_(embedding.projection, mean, covariance)


def moments(parts: Iterable[Float[Tensor, "n p"]]) -> tuple[Float[Tensor, "p"], Float[Tensor, "p p"]]:
    """Return the mean and the covariance of the rows of all parts."""
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for part in parts:
        rows = part.detach().double()
        count, total, products = count + len(rows), total + rows.sum(0), products + rows.T @ rows
    if not count:
        raise BadValue("--whiten needs images, but none of the sampled training images can be read")
    mean = total / count
    return mean, products / count - torch.outer(mean, mean)
