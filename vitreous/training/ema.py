"""A running average of the weights, which is usually better than the last ones and is what gets evaluated and saved."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Ema:
    """The average decays slowly, but not at the start, where the weights it would remember are random.

    It is kept as tensors beside the weights, in whatever pieces these are held, and put in their place to be used.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = dict(model.named_parameters())
        self.averages: dict[str, Tensor] = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """`step` counts from 0."""
        decay = min(self.decay, (step + 1) / (step + 10))
        torch._foreach_lerp_(list(self.averages.values()), list(self.weights.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the average for its weights inside the `with`, and its own again afterwards."""
        own = [weight.detach().clone() for weight in self.weights.values()]
        self._put(list(self.averages.values()))
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def _put(self, values: list[Tensor]) -> None:
        for weight, value in zip(self.weights.values(), values, strict=True):
            weight.copy_(value)
