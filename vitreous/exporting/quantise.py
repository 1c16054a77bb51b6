"""Static int8 quantisation of the linear layers of a model, calibrated on images.

The quantised model is a PyTorch module, so every export target can write it: preprocessing, attention, norms and the
head stay in float32. Vision Transformers have a few tokens with very large activations, which one scale per layer
represents badly. Three steps keep the outputs close to those of the float32 model:

1. Input channels are divided by factors that the weights absorb (SmoothQuant, https://arxiv.org/abs/2211.10438). The
   exponent is chosen for each layer by the error of its outputs.
2. The error that each layer causes in the outputs of the model is estimated with one backward pass.
3. The layers that cause most of the error stay in float32, until the total is at most `max_error`.

b: batch; c: channels; h, w: height and width; i: inputs and o: outputs of a layer; r: rows (tokens).
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.ao.quantization.fx._decomposed  # registers torch.ops.quantized_decomposed
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.model.protocol import Model

EXPONENTS = (0.0, 0.3, 0.5, 0.65, 0.8)  # of the smoothing factors
ROWS = 1024  # tokens per layer that are kept to choose the exponent
BATCH = 8  # images per forward pass
MAX_ERROR = 0.015  # of the outputs, relative to their standard deviation


class Int8Linear(nn.Module):
    """Linear layer with int8 weights (one scale per output) and uint8 inputs (one scale and zero point)."""

    def __init__(self, layer: nn.Linear, smoothing: Float[Tensor, "i"], low: float, high: float):
        super().__init__()
        weight = layer.weight.detach().float() * smoothing
        scales = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
        self.register_buffer("weight", (weight / scales[:, None]).round().to(torch.int8).T.contiguous())  # [i, o]
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(len(scales), dtype=torch.int8))
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float())
        self.register_buffer("smoothing", None if (smoothing == 1).all() else 1 / smoothing)
        self.scale = max(high - low, 1e-12) / 255
        self.zero_point = min(max(round(-low / self.scale), 0), 255)

    def forward(self, x: Float[Tensor, "*b i"]) -> Float[Tensor, "*b o"]:
        ops, given = torch.ops.quantized_decomposed, (self.scale, self.zero_point, 0, 255, torch.uint8)
        x = x if self.smoothing is None else x * self.smoothing
        x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *given), *given)
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 1, -128, 127, torch.int8)
        return x @ weight if self.bias is None else x @ weight + self.bias


# ---- Calibration -----------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """Linear layers with the same input, e.g. queries, keys and values, and statistics of that input."""

    layers: dict[str, nn.Linear]
    high: Tensor = field(default_factory=lambda: torch.tensor(-torch.inf))  # [i], the largest value of each channel
    low: Tensor = field(default_factory=lambda: torch.tensor(torch.inf))
    rows: list[Tensor] = field(default_factory=list)

    @property
    def cost(self) -> int:
        return sum(layer.weight.numel() for layer in self.layers.values())

    def observe(self, x: Tensor, keep: int) -> None:
        x = x.detach().flatten(0, -2)
        self.high, self.low = torch.maximum(self.high, x.amax(0)), torch.minimum(self.low, x.amin(0))
        self.rows.append(x[torch.randperm(len(x))[:keep]])

    def quantised(self) -> dict[str, Int8Linear]:
        """Return int8 layers with the exponent of the smallest error on the kept rows."""
        x = torch.cat(self.rows)
        expected = [layer(x) for layer in self.layers.values()]
        largest = torch.maximum(self.high.abs(), self.low.abs()).clamp(min=1e-5)
        weights = torch.cat([layer.weight for layer in self.layers.values()]).abs().amax(dim=0).clamp(min=1e-5)
        best: tuple[float, dict[str, Int8Linear]] = (torch.inf, {})
        for exponent in EXPONENTS:
            smoothing = largest**exponent / weights ** (1 - exponent) if exponent else torch.ones_like(largest)
            low, high = (self.low / smoothing).min().clamp(max=0).item(), (self.high / smoothing).max().clamp(min=0).item()
            built = {name: Int8Linear(layer, smoothing, low, high) for name, layer in self.layers.items()}
            error = sum((layer(x) - y).square().sum().item() for layer, y in zip(built.values(), expected, strict=True))
            best = min(best, (error, built), key=lambda one: one[0])
        return best[1]


@torch.no_grad()
def groups_of(model: Model, images: Sequence[Tensor]) -> list[Group]:
    """Run batches of images, and return the linear layers that are applied to tokens, with their input statistics."""
    found: dict[str, Group] = {}
    last: tuple[Tensor | None, Group | None] = (None, None)

    def observe(name: str, layer: nn.Linear, x: Tensor) -> None:
        nonlocal last
        if x.ndim < 3:  # the head
            return
        if name not in found:
            shared = last[1] if last[0] is x and last[1] is not None else Group({})
            shared.layers[name] = layer
            found[name] = shared
        group = found[name]
        if next(iter(group.layers)) == name:
            group.observe(x, -(-ROWS // len(images)))
        last = (x, group)

    hooks = [
        layer.register_forward_pre_hook(lambda module, inputs, name=name: observe(name, module, inputs[0]))
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    try:
        for batch in images:
            _outputs(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return list({id(group): group for group in found.values()}.values())


def _outputs(model: Model, images: Tensor) -> Tensor:
    return model(images) if model.config.num_classes else model.pooled(images)


# ---- Choice of layers ------------------------------------------------------------------------------------------------


def output_errors(model: Model, quantised: Sequence[dict[str, Int8Linear]], images: Sequence[Tensor]) -> list[float]:
    """Estimate, for each group of int8 layers, the squared error that it causes in the outputs of the model.

    The errors of the layers' outputs are multiplied with the gradient of a random projection of the model's outputs.
    Errors are relative to the variance of the outputs.
    """
    places = {name: index for index, group in enumerate(quantised) for name in group}
    totals, variance = torch.zeros(len(quantised)), 0.0
    for batch in images:
        changes: list[tuple[int, Tensor, Tensor]] = []

        def change(name: str, x: Tensor, y: Tensor) -> Tensor:
            if not y.requires_grad:
                y = y.requires_grad_()
            with torch.no_grad():
                delta = quantised[places[name]][name](x) - y
            changes.append((places[name], y, delta))
            return y

        hooks = [
            model.get_submodule(name).register_forward_hook(lambda _, x, y, name=name: change(name, x[0], y))
            for name in places
        ]
        try:
            outputs = _outputs(model, batch)
        finally:
            for hook in hooks:
                hook.remove()
        variance += (outputs - outputs.mean(dim=1, keepdim=True)).square().sum().item()
        signs = torch.randint(0, 2, outputs.shape) * 2.0 - 1
        gradients = torch.autograd.grad((outputs * signs).sum(), [y for _, y, _ in changes])
        moved = torch.zeros(len(quantised), len(batch))
        for (place, _, delta), gradient in zip(changes, gradients, strict=True):
            moved[place] += (delta * gradient).flatten(1).sum(dim=1)
        totals += moved.square().sum(dim=1)
    return (totals / variance).tolist()


def quantise(model: Model, images: Sequence[Tensor], max_error: float = MAX_ERROR) -> Model:
    """Return a copy of a float32 model with int8 layers, calibrated on batches of preprocessed images."""
    model = copy.deepcopy(model).eval().requires_grad_(False)
    groups = groups_of(model, images)
    with torch.no_grad():
        quantised = [group.quantised() for group in groups]
    errors = output_errors(model, quantised, images[: max(1, 32 // BATCH)])
    order = sorted(range(len(groups)), key=lambda place: errors[place] / groups[place].cost)
    total = 0.0
    for place in order:
        total += errors[place]
        if total > max_error**2:
            break
        for name, layer in quantised[place].items():
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, layer)
    return model
