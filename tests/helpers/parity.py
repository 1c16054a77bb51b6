"""Compares the outputs of a foreign model and ours, for random weights and images."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitreous.model.protocol import Model

TOLERANCE = 2e-5


@torch.no_grad()
def noisy(model: nn.Module) -> nn.Module:
    """Randomise all parameters, so that a forgotten or swapped tensor changes the outputs.

    The standard deviations roughly preserve the scale of the activations.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if name == "weight" and isinstance(module, nn.LayerNorm | nn.GroupNorm):
                nn.init.normal_(parameter, mean=0.5, std=0.4)
            elif name.endswith("weight") and parameter.ndim > 1:
                nn.init.normal_(parameter, std=1.5 * parameter[0].numel() ** -0.5)
            else:
                nn.init.normal_(parameter, std=0.4)
    return model.eval()


@torch.no_grad()
def difference(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], size: tuple[int, int], channels: int = 3
) -> float:
    """Return the largest difference between two models' outputs. The outputs must vary between images."""
    images = torch.randn(2, channels, *size) + 2 * torch.randn(2, channels, 1, 1)
    expected = theirs(images)
    spread = expected.std(0).mean().item()
    assert 0.02 < spread < 20, f"outputs vary by {spread} between images, which is too little or too much to compare"
    found = ours(images)
    assert found.shape == expected.shape
    return (found - expected).abs().max().item()


def check_close(
    ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], *sizes: tuple[int, int], channels: int = 3
) -> None:
    for size in sizes:
        assert difference(ours, theirs, size, channels) <= TOLERANCE


def check_identical(again: Model, model: Model) -> None:
    """Check that configs, tensor names, dtypes and values are identical."""
    assert again.config == model.config
    ours, theirs = model.state_dict(), again.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in ours.items():
        assert theirs[name].dtype == tensor.dtype
        assert torch.equal(theirs[name], tensor), name
