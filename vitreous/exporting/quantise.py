"""Static int8 quantisation of the linear layers of a model, calibrated on images.

The quantised model is a PyTorch module, so that the exporters can write it like any other. Preprocessing, attention
weights, norms and the head stay in float32. A few tokens of Vision Transformers have very large activations, which one
scale per layer represents badly. Three steps keep the outputs close to those of the float32 model:

1. Input channels are divided by factors that the weights absorb (SmoothQuant, https://arxiv.org/abs/2211.10438). For
   each layer, the exponent with the smallest error is used.
2. One backward pass estimates the error that each layer causes in the outputs of the model.
3. Layers are quantised in order of their error per multiplication, as long as the expected agreement with the float32
   labels, given the margins of the calibration images, is at least `MIN_EXPECTED`. The other layers stay in float32.

n: images; b: batch; c: channels; h, w: height and width; i: inputs and o: outputs of a layer.
"""

import copy
import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitreous.inference.forward_pass import model_input
from vitreous.model.int8 import Int8Linear, replace_layers
from vitreous.model.options import SingleLabel
from vitreous.model.protocol import Model

EXPONENTS = (0.0, 0.3, 0.5, 0.65, 0.8)  # of the smoothing factors
ROWS = 1024  # inputs per layer that are kept to choose the exponent
BATCH = 8  # images per forward pass
BACKWARD_IMAGES = 32  # for the error of each layer
MIN_EXPECTED = 0.99  # agreement of the labels
MAX_ERROR = 0.05  # of other outputs, e.g. features, relative to their standard deviation


def quantise(model: Model, images: UInt8[Tensor, "n c h w"]) -> Model:
    """Return a copy of a float32 model with int8 layers, calibrated on images of the model's size."""
    model = copy.deepcopy(model).eval()
    device, batches = next(model.parameters()).device, torch.split(images, BATCH)
    inputs = functools.partial(model_input, device=device, preprocessing=model.config.preprocessing)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        groups, outputs = _calibrate(model, [inputs(batch) for batch in batches])
        quantised = [group.quantised() for group in groups]
        errors = output_errors(
            model, quantised, [inputs(batch) for batch in torch.split(images[:BACKWARD_IMAGES], BATCH)]
        )
    total = 0.0
    for place in sorted(range(len(groups)), key=lambda place: errors[place] / groups[place].cost):
        total += errors[place]
        if not _acceptable(model, outputs, total**0.5):
            break
        replace_layers(model, quantised[place])
    return model


def quantise_weights(model: Model) -> Model:
    """Return a copy of a float32 model whose linear layers have int8 weights and float inputs."""
    model = copy.deepcopy(model).eval()
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    replace_layers(model, {name: Int8Linear(layer) for name, layer in layers.items()})
    return model


def _acceptable(model: Model, outputs: Float[Tensor, "n k *rest"], error: float) -> bool:
    """Return True if an error of the outputs, relative to their standard deviation, is small enough."""
    if model.config.num_classes < 2 or not isinstance(model.config.output, SingleLabel):
        return error <= MAX_ERROR
    noise = error * outputs.std(dim=1, correction=0).square().mean().sqrt()
    best, second = outputs.topk(2, dim=1).values.unbind(dim=1)
    changed = torch.special.ndtr((second - best) / (noise * 2**0.5).clamp(min=1e-12))
    return 1 - changed.mean().item() >= MIN_EXPECTED


# ---- Calibration -----------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """Linear layers with the same input, e.g. queries, keys and values, and statistics of that input."""

    layers: dict[str, nn.Linear] = field(default_factory=dict)
    low: Tensor = field(default_factory=lambda: torch.tensor(torch.inf))  # [i], the smallest value of each input
    high: Tensor = field(default_factory=lambda: torch.tensor(-torch.inf))
    rows: list[Tensor] = field(default_factory=list)  # random samples of the inputs, [r, i]

    @property
    def cost(self) -> int:
        return sum(layer.weight.numel() for layer in self.layers.values())

    def observe(self, x: Tensor, keep: int) -> None:
        x = x.flatten(0, -2)
        self.low, self.high = torch.minimum(self.low, x.amin(dim=0)), torch.maximum(self.high, x.amax(dim=0))
        self.rows.append(x[torch.randperm(len(x))[:keep]])

    @torch.no_grad()
    def quantised(self) -> dict[str, Int8Linear]:
        """Return int8 layers, smoothed with the exponent that has the smallest error on the sampled inputs."""
        x, layers = torch.cat(self.rows), self.layers.values()
        expected = [layer(x) for layer in layers]
        largest = torch.maximum(self.high.abs(), self.low.abs()).clamp(min=1e-5)
        weights = torch.cat([layer.weight for layer in layers]).abs().amax(dim=0).clamp(min=1e-5)
        best: tuple[float, dict[str, Int8Linear]] = (torch.inf, {})
        for exponent in EXPONENTS:
            smoothing = largest**exponent / weights ** (1 - exponent) if exponent else torch.ones_like(largest)
            span = (min((self.low / smoothing).min().item(), 0.0), max((self.high / smoothing).max().item(), 0.0))
            built = {name: Int8Linear(layer, smoothing, span) for name, layer in self.layers.items()}
            error = sum((layer(x) - y).square().sum().item() for layer, y in zip(built.values(), expected, strict=True))
            best = min(best, (error, built), key=lambda one: one[0])
        return best[1]


@torch.no_grad()
def _calibrate(model: Model, batches: Sequence[Tensor]) -> tuple[list[Group], Tensor]:
    """Return the linear layers that are applied to tokens, with their input statistics, and the model's outputs."""
    groups: dict[str, Group] = {}
    latest: dict[str, Any] = {"input": None}

    def observe(name: str, layer: nn.Module, x: Tensor) -> None:
        assert isinstance(layer, nn.Linear)
        if name not in groups:
            groups[name] = latest["group"] if latest["input"] is x else Group()
            groups[name].layers[name] = layer
        if latest["input"] is not x:
            groups[name].observe(x, -(-ROWS // len(batches)))
        latest.update(input=x, group=groups[name])

    layers = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    with _hooks(model, layers, lambda name, layer, x, _: observe(name, layer, x) if x.ndim > 2 else None):
        outputs = torch.cat([_outputs(model, batch) for batch in batches])
    return list({id(group): group for group in groups.values()}.values()), outputs


def output_errors(model: Model, quantised: Sequence[dict[str, Int8Linear]], batches: Sequence[Tensor]) -> list[float]:
    """Estimate, for each group of int8 layers, the squared error that it causes in the outputs of the model.

    The error in the output of a layer is multiplied with the gradient of a random projection of the model's outputs.
    The result is relative to the variance of the outputs.
    """
    places = {name: place for place, group in enumerate(quantised) for name in group}
    totals, variance = torch.zeros(len(quantised)), 0.0
    layers: list[tuple[int, Tensor, Tensor]] = []  # group, output and its error

    def compare(name: str, _: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            error = quantised[places[name]][name](x) - y
        layers.append((places[name], y.requires_grad_(), error))

    for batch in batches:
        layers.clear()
        with torch.enable_grad(), _hooks(model, list(places), compare):
            outputs = _outputs(model, batch)
            signs = torch.randint(0, 2, outputs.shape).to(outputs) * 2 - 1
            gradients = torch.autograd.grad((outputs * signs).sum(), [y for _, y, _ in layers])
        changes = torch.zeros(len(quantised), len(batch))
        for (place, _, error), gradient in zip(layers, gradients, strict=True):
            changes[place] += (error * gradient).reshape(len(batch), -1).sum(dim=1)
        totals += changes.square().sum(dim=1)
        variance += outputs.detach().var(dim=1, correction=0, keepdim=True).expand_as(outputs).sum().item()
    return (totals / max(variance, 1e-12)).tolist()


@contextmanager
def _hooks(model: nn.Module, names: Sequence[str], call: Any) -> Iterator[None]:
    """Call `call(name, layer, input, output)` whenever one of the named layers runs."""
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda layer, x, y, name=name: call(name, layer, x[0], y))
        for name in names
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _outputs(model: Model, images: Tensor) -> Tensor:
    return model(images) if model.config.num_classes else model.pooled(images)
