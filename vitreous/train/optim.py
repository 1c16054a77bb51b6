"""Which weights are moved, by which optimizer, how fast: groups by layer and by kind."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.train.config import Optim
from vitreous.train.muon import Muon

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


def build_optimizers(model: nn.Module, config: Optim, depth: int) -> Optimizers:
    """Optimizers for every weight of `model` that requires a gradient."""
    lr = config.lr
    if lr is None:
        raise ValueError("lr is None, but must be chosen before the optimizer is built")
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    if config.optimizer != "muon":
        groups = _groups(named, config, depth, lr)
        return _with_peaks([_adamw(groups, config) if config.optimizer == "adamw" else _sgd(groups, config)])
    inside = [(name, weight) for name, weight in named if ".blocks." in f".{name}" and weight.ndim == 2]
    outside = [(name, weight) for name, weight in named if not (".blocks." in f".{name}" and weight.ndim == 2)]
    muon = Muon(_groups(inside, config, depth, lr), lr, config.momentum)
    return _with_peaks([muon, _adamw(_groups(outside, config, depth, lr), config)])


def layer_of(name: str, depth: int) -> int:
    """How far up a weight sits: 0 below the blocks, 1 to depth in them, depth + 1 above.

    >>> [layer_of(name, 12) for name in ("patches.projection.bias", "encoder.blocks.3.mlp.up.bias", "head.bias")]
    [0, 4, 13]
    """
    if name.startswith("decoder."):  # a segmenter's, with blocks of its own
        return depth + 1
    if found := re.search(r"(?:^|\.)blocks\.(\d+)\.", name):
        return int(found[1]) + 1
    below = ("stem.", "patches.", "prefix.", "position.")
    return 0 if name.removeprefix("student.").removeprefix("encoder.").startswith(below) else depth + 1


def decays(name: str, weight: Tensor) -> bool:
    """Matrices and filters are decayed; biases, norms, scales, tokens and positions are not."""
    special = ("prefix.", "position.", ".query", "decoder.classes")
    return weight.ndim >= 2 and not any(part in f".{name}" for part in special)


def _groups(named: Iterable[tuple[str, nn.Parameter]], config: Optim, depth: int, lr: float) -> list[dict[str, object]]:
    groups: dict[tuple[int, bool, int], dict[str, object]] = {}
    for name, weight in named:
        layer, decayed = layer_of(name, depth) if config.layer_decay != 1 else depth + 1, decays(name, weight)
        parts = next((count for part, count in PACKED.items() if part in name), 1) if config.optimizer == "muon" else 1
        group = groups.setdefault(
            (layer, decayed, parts),
            {
                "params": [],
                "lr": lr * config.layer_decay ** (depth + 1 - layer),
                "weight_decay": config.weight_decay if decayed else 0.0,
                "parts": parts,
            },
        )
        group["params"].append(weight)  # type: ignore[attr-defined]
    return list(groups.values())


def _adamw(groups: list[dict[str, object]], config: Optim) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=config.lr or 0.0, betas=config.betas, fused=True)


def _sgd(groups: list[dict[str, object]], config: Optim) -> torch.optim.Optimizer:
    sgd = torch.optim.SGD(groups, lr=config.lr or 0.0, momentum=config.momentum, fused=True)
    # torch leaves the buffers uninitialised where the very first step is skipped; from zeros that step is the same.
    for group in sgd.param_groups:
        for weight in group["params"]:
            sgd.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return sgd


def _with_peaks(parts: list[torch.optim.Optimizer]) -> Optimizers:
    return Optimizers(parts, [[group["lr"] for group in part.param_groups] for part in parts])
