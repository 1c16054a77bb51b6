"""Initialises the patch embedding from training images, so that its outputs are uncorrelated (airbench, 2404.00498).

n: patches; p: pixels of a patch, over all channels.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.data.loader import Batch
from vitreous.model.init import whiten_
from vitreous.model.inputs import normalise
from vitreous.model.protocol import Model, UnsupportedModel

IMAGES = 5_000  # the covariance of the patches hardly changes with more images


def whiten_patches(model: Model, batches: Iterable[Batch]) -> None:
    """Initialise the patch embedding from images at the model's input size."""
    embedding, how = model.patch_embedding, model.config.preprocessing
    if embedding is None:
        raise UnsupportedModel(f"the model does not project patches of the image: it is a {model.config.summary}")
    images = (batch.images[batch.labels >= 0].float() / 255 for batch in batches)
    whiten_(embedding.projection, *moments(embedding.pixels(normalise(some, how)).flatten(0, 1) for some in images))


def moments(parts: Iterable[Float[Tensor, "n p"]]) -> tuple[Float[Tensor, "p"], Float[Tensor, "p p"]]:
    """Return the mean and the covariance of the rows of all parts."""
    count, total, products = 0, torch.zeros(()), torch.zeros(())
    for part in parts:
        rows = part.detach().double()
        count, total, products = count + len(rows), total + rows.sum(0), products + rows.T @ rows
    mean = total / count
    return mean, products / count - torch.outer(mean, mean)
