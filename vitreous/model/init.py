"""How weights start out: Xavier for matrices and LeCun for the patches, as in the paper's code, and zero biases.

Every part initialises itself when it is built; these are the three ways they share.
"""

import math

from torch import Tensor, nn


def xavier_(linear: nn.Linear, parts: int = 1) -> nn.Linear:
    """Xavier-uniform. A matrix that packs several (a gate and what it lets through) starts as these would."""
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
    """Normal with deviation 0.02, as the paper's code has it for positions; here also for tokens and the last layer."""
    return nn.init.normal_(tensor, std=0.02)
