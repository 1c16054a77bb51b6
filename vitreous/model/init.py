"""Initialisation as in the paper's code: Xavier for linear layers, LeCun for convolutions, zeros for biases."""

import math

from torch import Tensor, nn


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


def small_(tensor: Tensor) -> Tensor:
    """Initialise a position embedding, token or classifier from a normal distribution with std 0.02."""
    return nn.init.normal_(tensor, std=0.02)
