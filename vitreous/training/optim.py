"""Optimizers with their parameter groups, the learning-rate schedule and the moving average of the weights."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.sgd import sgd

from vitreous.model.protocol import Model
from vitreous.training.config import Optim
from vitreous.training.muon import Muon

# Weights that contain several stacked matrices, which Muon updates separately.
PACKED = {".gate_and_up.": 2}


@dataclass
class Optimizers:
    """One optimizer, or two: Muon for the matrices of the blocks and AdamW for all other weights."""

    parts: list[torch.optim.Optimizer]

    def __post_init__(self) -> None:
        for group in self.groups:
            group["peak"] = group["lr"]

    @property
    def groups(self) -> list[dict[str, Any]]:
        return [group for part in self.parts for group in part.param_groups]

    def set_rate(self, fraction: float) -> None:
        """Set every learning rate to a fraction of its peak."""
        for group in self.groups:
            group["lr"] = group["peak"] * fraction

    def step(self, skip: Tensor) -> None:
        """Update the weights, or nothing if `skip` is 1; the device decides, so that the host does not wait for it."""
        for part in self.parts:
            part.grad_scale, part.found_inf = None, skip  # type: ignore[attr-defined]
            part.step()

    def create_state(self) -> None:
        """Create the optimizers' state, which torch creates at the first step, so that a checkpoint can fill it."""
        for group in self.groups:
            group["lr"] = 0.0
            for weight in group["params"]:
                weight.grad = torch.zeros_like(weight)
        self.step(torch.zeros((), device=self.groups[0]["params"][0].device))
        self.zero_grad()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def build_optimizers(module: nn.Module, config: Optim, backbone: Model) -> Optimizers:
    """Optimizers for every parameter of `module` that requires a gradient.

    `config.layer_decay` applies to the layers of `backbone`, a submodule of `module`.
    """
    if config.lr is None:
        raise ValueError("lr is None, but must be a number")
    named = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
    rates = learning_rates(backbone, config.lr, config.layer_decay)
    if config.optimizer != "muon":
        groups = _groups(named, config, rates)
        return Optimizers([_adamw(groups, config) if config.optimizer == "adamw" else _sgd(groups, config)])
    inside = [(name, weight) for name, weight in named if ".blocks." in f".{name}" and weight.ndim == 2]
    outside = [(name, weight) for name, weight in named if not (".blocks." in f".{name}" and weight.ndim == 2)]
    muon = Muon(_groups(inside, config, rates), config.lr, config.momentum)
    return Optimizers([muon, _adamw(_groups(outside, config, rates), config)])


def learning_rates(backbone: Model, lr: float, layer_decay: float) -> dict[nn.Parameter, float]:
    """Peak learning rate of every backbone parameter in or below the blocks.

    As in BEiT and MAE: the factor is layer_decay ** (L - i) for block i of L and layer_decay ** (L + 1) below the
    blocks. All other parameters (final norm, head, decoder) have the full rate.
    """
    blocks = backbone.blocks
    below = [weight for module in backbone.embedding for weight in module.parameters()]
    rates = dict.fromkeys(below, lr * layer_decay ** (len(blocks) + 1))
    for number, block in enumerate(blocks):
        rates |= dict.fromkeys(block.parameters(), lr * layer_decay ** (len(blocks) - number))
    return rates


def decays(name: str, weight: Tensor) -> bool:
    """True for matrices and filters; biases, norms, scales, tokens and positions are not decayed."""
    special = ("prefix.", "position.", ".query", "decoder.classes")
    return weight.ndim >= 2 and not any(part in f".{name}" for part in special)


def _groups(
    named: Iterable[tuple[str, nn.Parameter]], config: Optim, rates: dict[nn.Parameter, float]
) -> list[dict[str, object]]:
    groups: dict[tuple[float, bool, int], dict[str, object]] = {}
    for name, weight in named:
        lr, decayed = rates.get(weight, config.lr or 0.0), decays(name, weight)
        parts = next((count for part, count in PACKED.items() if part in name), 1) if config.optimizer == "muon" else 1
        weight_decay = config.weight_decay if decayed else 0.0
        group = {"params": [], "lr": lr, "weight_decay": weight_decay, "parts": parts}
        groups.setdefault((lr, decayed, parts), group)["params"].append(weight)  # type: ignore[attr-defined]
    return list(groups.values())


def _adamw(groups: list[dict[str, object]], config: Optim) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=config.lr or 0.0, betas=config.betas, fused=True)


class ShardSGD(torch.optim.SGD):
    """torch's fused SGD on the local shards of FSDP parameters, for which torch has no fused kernel.

    The update is elementwise, so every process can update its own shards.
    """

    found_inf: Tensor  # 1 to skip the step

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None and _local(weight).numel()]
            sgd(
                [_local(weight) for weight in weights],
                [_local(weight.grad) for weight in weights],
                [_local(self.state[weight]["momentum_buffer"]) for weight in weights],
                fused=True,
                found_inf=self.found_inf,
                **{
                    name: group[name]
                    for name in ("lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize")
                },
            )


def _sgd(groups: list[dict[str, object]], config: Optim) -> torch.optim.Optimizer:
    optimizer = ShardSGD(groups, lr=config.lr or 0.0, momentum=config.momentum, fused=True)
    # torch leaves the buffers uninitialised if the first step is skipped; zeros give the same first step.
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rate_fraction(step: int, total: int, optim: Optim) -> float:
    """Learning rate at a step, counted from 0, as a fraction of its peak: linear warm-up, then the schedule.

    It depends on nothing else, so that a resumed run needs no state for it.

    >>> [round(rate_fraction(step, 10, Optim(warmup=0.2)), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.04]
    """
    rising, final = round(optim.warmup * total), optim.final_lr
    if step < rising:
        return (step + 1) / rising
    left = total - rising
    done = (step - rising) / max(left, 1)
    match optim.schedule:
        case "constant":
            return 1.0
        case "linear":
            return final + (1 - final) * (1 - done)
        case "cosine":
            return final + (1 - final) * (1 + math.cos(math.pi * done)) / 2
        case "rsqrt":
            # 1 / sqrt(step), continuous at the end of the warm-up (Scaling Vision Transformers), then linear to zero.
            falling = round(optim.cooldown * total)
            start = max(rising, 1)
            ending = (total - step) / falling if falling and step >= total - falling else 1.0
            return math.sqrt(start / (step + start - rising)) * ending


class Ema:
    """Exponential moving average of the weights. Its decay is smaller at the start, where weights are still random.

    The averages are sharded like the weights.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay = decay
        self.weights = dict(model.named_parameters())
        self.averages: dict[str, Tensor] = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (step + 1) / (step + 10))
        torch._foreach_lerp_(list(self.averages.values()), list(self.weights.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averages as the model's weights inside the `with` block."""
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
