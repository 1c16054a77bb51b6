"""Optimizers and their parameter groups: learning rate by layer, weight decay by kind of parameter."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.sgd import sgd

from vitreous.model.resnet import ResNet
from vitreous.model.vit import ViT
from vitreous.training.config import Optim
from vitreous.training.muon import Muon

# Weights that hold several matrices, one on the other: Muon takes each by itself.
PACKED = {".gate_and_up.": 2}


@dataclass
class Optimizers:
    """One optimizer, or two: Muon moves the matrices of the blocks and AdamW everything else."""

    parts: list[torch.optim.Optimizer]
    peaks: list[list[float]]  # the peak learning rate of every group of every part

    def set_rate(self, share: float) -> None:
        for part, peaks in zip(self.parts, self.peaks, strict=True):
            for group, peak in zip(part.param_groups, peaks, strict=True):
                group["lr"] = peak * share

    def step(self, skip: Tensor) -> None:
        """Move the weights, or leave everything as it is where `skip` is 1: the device decides, and nothing waits."""
        for part in self.parts:
            part.grad_scale, part.found_inf = None, skip  # type: ignore[attr-defined]
            part.step()

    def create_state(self) -> None:
        """Bring momenta into being, so that they can be filled: torch makes them at the first step. Nothing moves."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = 0.0
                for weight in group["params"]:
                    weight.grad = torch.zeros_like(weight)
        self.step(torch.zeros((), device=next(iter(self.parts[0].param_groups[0]["params"])).device))
        self.zero_grad()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def build_optimizers(module: nn.Module, config: Optim, encoder: ViT | ResNet) -> Optimizers:
    """Optimizers for every parameter of `module` that requires a gradient.

    `encoder` is the part of `module` whose layers `config.layer_decay` slows down.
    """
    if config.lr is None:
        raise ValueError("lr is None, but must be chosen before the optimizer is built")
    named = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
    rates = learning_rates(encoder, config.lr, config.layer_decay)
    if config.optimizer != "muon":
        groups = _groups(named, config, rates)
        return _with_peaks([_adamw(groups, config) if config.optimizer == "adamw" else _sgd(groups, config)])
    inside = [(name, weight) for name, weight in named if ".blocks." in f".{name}" and weight.ndim == 2]
    outside = [(name, weight) for name, weight in named if not (".blocks." in f".{name}" and weight.ndim == 2)]
    muon = Muon(_groups(inside, config, rates), config.lr, config.momentum)
    return _with_peaks([muon, _adamw(_groups(outside, config, rates), config)])


def learning_rates(encoder: ViT | ResNet, lr: float, layer_decay: float) -> dict[nn.Parameter, float]:
    """Peak learning rate of every encoder parameter that lies in or below the blocks.

    As in BEiT and MAE: block i of L is slowed by layer_decay ** (L - i), everything below the blocks by
    layer_decay ** (L + 1). Every other parameter (final norm, head, decoder) gets the full rate. Parameters are found
    by identity, so that neither their names nor blocks beside the encoder matter.
    """
    blocks = list(encoder.encoder.blocks) if isinstance(encoder, ViT) else []
    below = [getattr(encoder, name) for name in ("stem", "patches", "prefix", "position") if hasattr(encoder, name)]
    rates = {weight: lr * layer_decay ** (len(blocks) + 1) for part in below for weight in part.parameters()}
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
    """torch's fused SGD, applied to the local shards of FSDP parameters, for which torch has no fused kernel.

    The update is elementwise, so every process can do its own part.
    """

    found_inf: Tensor  # 1 where the step is to be skipped

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
    # torch leaves the buffers uninitialised where the very first step is skipped; from zeros that step is the same.
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _with_peaks(parts: list[torch.optim.Optimizer]) -> Optimizers:
    return Optimizers(parts, [[group["lr"] for group in part.param_groups] for part in parts])
