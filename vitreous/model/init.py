"""Initialisation as in the paper's code: Xavier for matrices, LeCun for convolutions, zeros for biases."""

import math

from torch import Tensor, nn


def xavier_(linear: nn.Linear, parts: int = 1) -> nn.Linear:
    """Xavier-uniform, separately for each of `parts` packed matrices."""
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
    """Normal with std 0.02: for positions as in the paper's code, and for tokens and classifiers."""
    return nn.init.normal_(tensor, std=0.02)
