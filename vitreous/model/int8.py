"""Linear layers in int8, and the scales that turn a float32 model into an int8 model.

i: inputs and o: outputs of a layer.
"""

import copy
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


class Int8Linear(nn.Module):
    """Linear layer with int8 weights (one scale per output) and uint8 inputs (one scale), or with float inputs.

    Args:
        smoothing: Factor of each input; the weights are multiplied by it.
        span: Smallest and largest input after division by `smoothing`. None: do not quantise the inputs.
    """

    factors: Tensor | None
    bias: Tensor | None

    def __init__(
        self, layer: nn.Linear, smoothing: Float[Tensor, "i"] | None = None, span: tuple[float, float] | None = None
    ):
        super().__init__()
        importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers torch.ops.quantized_decomposed
        weight = layer.weight.detach().float() * (1 if smoothing is None else smoothing)
        scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8).T.contiguous())  # [i, o]
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(len(scales), dtype=torch.int8))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float())
        self.register_buffer("factors", None if smoothing is None else 1 / smoothing)
        self.span = span

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        ops = torch.ops.quantized_decomposed
        x = x if self.factors is None else x * self.factors
        if self.span is not None:
            low, high = self.span
            scale = max(high - low, 1e-12) / 255
            options = (scale, min(max(round(-low / scale), 0), 255), 0, 255, torch.uint8)
            x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *options), *options)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 1, -128, 127, torch.int8)
        return x @ weight if self.bias is None else x @ weight + self.bias


def replace_layers(model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Replace the modules with the given names."""
    for name, layer in layers.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, layer)


@dataclass(frozen=True)
class Int8Scales:
    """Smoothing and span of the linear layers to compute in int8, by name; see `Int8Linear`."""

    layers: Mapping[str, tuple[Float[Tensor, "i"], tuple[float, float]]]

    @classmethod
    def of_model(cls, model: nn.Module) -> "Int8Scales":
        """Return the scales of a model with int8 layers."""
        found = {name: layer for name, layer in model.named_modules() if isinstance(layer, Int8Linear)}
        return cls(
            {
                name: (1 / layer.factors, layer.span)
                for name, layer in found.items()
                if layer.factors is not None and layer.span is not None
            }
        )

    def applied(self, model: M) -> M:
        """Return a copy of a model with int8 layers."""
        modules = {name: model.get_submodule(name) for name in self.layers}
        built = {
            name: Int8Linear(layer, *self.layers[name])
            for name, layer in modules.items()
            if isinstance(layer, nn.Linear)
        }
        memo = {id(modules[name]): layer for name, layer in built.items()}
        return copy.deepcopy(model, memo)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the file that stores the scales."""
        smoothing = {f"{name}.smoothing": factors for name, (factors, _) in self.layers.items()}
        return smoothing | {f"{name}.span": torch.tensor(span) for name, (_, span) in self.layers.items()}

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], model: nn.Module) -> "Int8Scales":
        """Build from stored tensors. Raise ValueError if a name or shape does not match the layers of a model."""
        linear = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        names = [name for name in linear if f"{name}.span" in tensors]
        shapes = {f"{name}.smoothing": [linear[name].in_features] for name in names}
        shapes |= {f"{name}.span": [2] for name in names}
        if {name: list(tensor.shape) for name, tensor in tensors.items()} != shapes:
            raise ValueError("expected the smoothing and span of linear layers of the model")
        spans = {name: tensors[f"{name}.span"].tolist() for name in names}
        return cls({name: (tensors[f"{name}.smoothing"].clone(), (low, high)) for name, (low, high) in spans.items()})
