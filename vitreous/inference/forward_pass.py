"""Forward pass of a batch: normalised inputs, float32 outputs, mirror images, precision. Also used in training.

b: batch; c: channels; h, w: height and width.
"""

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitreous.model.inputs import normalise
from vitreous.model.options import MultiLabel, Numbers, OutputConfig, Preprocessing, SingleLabel

Scores = Float[Tensor, "b classes"]
ONE_CLASS = SingleLabel()


def model_input(
    pixels: UInt8[Tensor, "b c h w"], device: torch.device, preprocessing: Preprocessing
) -> Float[Tensor, "b c h w"]:
    """Move decoded images to the device, scale them to [0, 1] and normalise them."""
    return normalise(pixels.to(device, non_blocking=True).float().div_(255), preprocessing)


def class_scores(
    forward: Callable[[Tensor], Tensor],
    images: Float[Tensor, "b c h w"],
    flip: bool = False,
    output: OutputConfig = ONE_CLASS,
) -> Scores:
    """Return float32 outputs. With `flip`, average the predictions for the image and its mirror image."""
    scores = forward(images).float()
    return mean_scores(scores, forward(images.flip(-1)).float(), output) if flip else scores


def mean_scores(a: Scores, b: Scores, output: OutputConfig) -> Scores:
    """Return the outputs for the mean of two predictions: log probabilities, log odds or numbers."""
    match output:
        case SingleLabel():
            return torch.logaddexp(a.log_softmax(dim=-1), b.log_softmax(dim=-1)) - math.log(2)
        case MultiLabel():
            present, absent = (torch.logaddexp(F.logsigmoid(s * a), F.logsigmoid(s * b)) for s in (1, -1))
            return present - absent
        case Numbers():
            return (a + b) / 2


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Switch a module to evaluation mode and disable gradients. Restore both on exit."""
    before = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(before)


def mixed_precision(device: torch.device, precision: torch.dtype) -> torch.autocast:
    """Return an autocast context for `precision`. It does nothing for float32.

    Weights are cast in every use. CUDA graphs would not update cached copies.
    """
    mixed = precision != torch.float32
    return torch.autocast(device.type, precision if mixed else torch.bfloat16, enabled=mixed, cache_enabled=False)
