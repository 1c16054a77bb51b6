"""Inference in 8-bit floating point: scales from the first images, and a check that features stay the same.

b: batch; c: channels; h, w: height and width.
"""

import copy
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from vitreous.common.checks import BadValue
from vitreous.kernels.fp8 import LARGEST
from vitreous.model.block import Block
from vitreous.model.fp8_linear import Fp8Linear
from vitreous.model.protocol import Model

M = TypeVar("M", bound=Model)

CALIBRATION_IMAGES = 32  # that determine the scales
HEADROOM = 2.0  # inputs of other images may be larger by this factor. It costs no precision: e4m3 has 15 binary orders.
SIMILARITY = 0.99  # least mean cosine of features in 8 bits and the features of the model
MIN_CAPABILITY = (8, 9)  # Ada, the first GPUs that multiply in 8 bits


def check_fp8(model: Model, device: torch.device) -> None:
    """Raise an error if the model or the device does not support inference in 8 bits."""
    if not linear_layers(model):
        raise BadValue(
            f"precision 'fp8' needs Transformer blocks, but the model is a {model.config.summary}; use 'bf16'"
        )
    if device.type != "cuda" or torch.version.cuda is None:
        raise BadValue(f"precision 'fp8' needs an NVIDIA GPU, but the device is {device}; use 'bf16' or 'fp32'")
    if (found := torch.cuda.get_device_capability(device)) < MIN_CAPABILITY:
        needed, actual = (".".join(map(str, capability)) for capability in (MIN_CAPABILITY, found))
        raise BadValue(
            f"precision 'fp8' needs a GPU of compute capability {needed}, but {device} has {actual}; use 'bf16'"
        )


def linear_layers(model: Model) -> dict[str, nn.Linear]:
    """Return the linear layers of the blocks whose sizes suit matrix products in 8 bits."""
    return {
        f"{place}.{name}": layer
        for place, block in model.named_modules()
        if isinstance(block, Block) and not any(map(is_parametrized, block.modules()))
        for name, layer in block.named_modules()
        if type(layer) is nn.Linear and layer.in_features % 16 == 0 and layer.out_features % 16 == 0
    }


@torch.inference_mode()
def to_fp8(model: M, images: Float[Tensor, "b c h w"]) -> M:
    """Return a copy of the model that multiplies in 8 bits. Raise ValueError if its features of the images differ."""
    layers = linear_layers(model)
    tensors = [*model.parameters(), *model.buffers()]
    quantised = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})  # shares the tensors
    largest, expected = largest_inputs(quantised, images)  # other threads may use the model without its hooks
    for name, layer in layers.items():
        attention, part = name.rpartition(".")[::2]
        packed = [layers[f"{attention}.{other}"] for other in "qkv"] if part in ("q", "k", "v") else [layer]
        weight_scale = torch.stack([one.weight.abs().amax() for one in packed]).amax().float() / LARGEST
        scale = HEADROOM * largest[name] / LARGEST
        quantised.set_submodule(name, Fp8Linear(layer, *(x.clamp(min=1e-12) for x in (scale, weight_scale))))
    found = quantised.pooled(images).float()
    similarity = float(F.cosine_similarity(found, expected.float()).mean())
    if not similarity >= SIMILARITY:  # also if NaN
        raise BadValue(
            f"precision 'fp8' changes the features of this model too much: their cosine with the original features is "
            f"{similarity:.3f}, but must be at least {SIMILARITY}; use 'bf16'"
        )
    return quantised


def largest_inputs(model: Model, images: Float[Tensor, "b c h w"]) -> tuple[dict[str, Tensor], Tensor]:
    """Return the largest absolute input of each linear layer, and the features of the images."""
    largest: dict[str, Tensor] = {}
    hooks = []
    for name, layer in linear_layers(model).items():

        def record(_: nn.Module, inputs: tuple[Tensor, ...], name: str = name) -> None:
            largest[name] = inputs[0].abs().amax().float()

        hooks.append(layer.register_forward_pre_hook(record))
    try:
        return largest, model.pooled(images)
    finally:
        for hook in hooks:
            hook.remove()
