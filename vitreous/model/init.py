"""Initialisation as in the paper's code: Xavier for linear layers, LeCun for convolutions, zeros for biases.

n: patches; p: pixels of a patch, over all channels.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

WHITENED = 0.01  # added to the variances before whitening, as a fraction of their mean, to limit noise


def xavier_(linear: nn.Linear, parts: int = 1) -> nn.Linear:
    """Initialise each of the `parts` packed matrices from a Xavier uniform distribution, and the bias with zeros."""
    for matrix in linear.weight.chunk(parts):
        nn.init.xavier_uniform_(matrix)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
    return linear


def lecun_normal_(conv: nn.Conv2d) -> nn.Conv2d:
    fan_in = conv.weight[0].numel()
    nn.init.normal_(conv.weight, std=1 / math.sqrt(fan_in))
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    return conv


@torch.no_grad()
def whiten_(conv: nn.Conv2d, mean: Float[Tensor, "p"], covariance: Float[Tensor, "p p"]) -> nn.Conv2d:
    """Initialise a projection of patches to whiten them, then project them at random.

    `mean` and `covariance` are those of the patches. Their largest principal components, at most one per output, are
    scaled to the same variance, then multiplied by a random matrix with orthonormal columns, so that each output
    depends on all of them. The outputs have mean 0 and a mean variance of 1. They are uncorrelated if there are at most
    as many outputs as pixels.
    """
    width, rank = conv.weight.shape[0], min(conv.weight.shape[0], len(mean))
    variances, directions = torch.linalg.eigh(covariance.double().cpu())  # in ascending order
    variances, directions = variances[-rank:], directions[:, -rank:]
    scaled = directions / (variances + WHITENED * variances.mean()).sqrt()
    rotation = nn.init.orthogonal_(torch.empty(width, rank, dtype=torch.float64)) * math.sqrt(width / rank)
    weight = rotation @ scaled.T
    conv.weight.copy_(weight.view_as(conv.weight))
    if conv.bias is not None:
        conv.bias.copy_(-weight @ mean.double().cpu())
    return conv


def small_(tensor: Tensor) -> Tensor:
    """Initialise a position embedding, token or classifier from a normal distribution with std 0.02."""
    return nn.init.normal_(tensor, std=0.02)
