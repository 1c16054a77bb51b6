"""Muon (kellerjordan.github.io/posts/muon): momentum whose singular values are made equal.

The arithmetic is that of torch.optim.Muon, which updates one matrix after another and lets the host decide whether to
skip a step. Here all matrices of one shape are updated together and the device decides: for a ViT-S this takes a
twentieth of the kernels, and the host does not wait.

m: matrices; r, c: rows, columns.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the iteration's polynomial: steep at 0, so that five iterations suffice
ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """Muon optimizer. `parts` of a group is the number of matrices stacked in each weight, such as SwiGLU's two."""

    found_inf: Tensor  # 1 to skip the step, as in torch's fused optimizers

    def __init__(self, groups: Iterable[dict[str, Any]], lr: float, momentum: float):
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "parts": 1})
        self.found_inf = torch.zeros(())

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        skip = self.found_inf.to(weights[0].device) > 0
        rate = torch.where(skip, 0.0, group["lr"])
        momenta = [self._momentum(weight) for weight in weights]
        gradients = [_where(skip, old, w.grad) for w, old in zip(weights, momenta, strict=True) if w.grad is not None]
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        torch._foreach_lerp_(
            gradients, momenta, group["momentum"]
        )  # Nesterov momentum, in place of the copied gradients
        torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
        for shape in {weight.shape: None for weight in weights}:
            alike = [i for i, weight in enumerate(weights) if weight.shape == shape]
            matrices = torch.cat([_unsharded(gradients[i]).reshape(group["parts"], -1, shape[1]) for i in alike])
            # Scaled to the usual length of AdamW's steps (arXiv 2502.16982), so that both use one learning rate.
            length = 0.2 * math.sqrt(max(matrices.shape[1:]))
            steps = (orthogonalise(matrices).to(weights[0].dtype) * (rate * length)).chunk(len(alike))
            moved = [weights[i] for i in alike]
            torch._foreach_sub_(moved, [_like(step.flatten(0, 1), w) for step, w in zip(steps, moved, strict=True)])

    def _momentum(self, weight: Tensor) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        return state["momentum_buffer"]


def orthogonalise(matrices: Float[Tensor, "m r c"]) -> Float[Tensor, "m r c"]:
    """Approximate U V^T of each matrix U S V^T by the Newton-Schulz iteration in bfloat16."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # no singular value above 1
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _where(skip: Tensor, kept: Tensor, new: Tensor) -> Tensor:
    """torch.where for tensors that FSDP may shard."""
    if isinstance(new, DTensor):
        assert isinstance(kept, DTensor)
        local = torch.where(skip, kept.to_local(), new.to_local())
        return DTensor.from_local(local, new.device_mesh, new.placements, shape=new.shape, stride=new.stride())
    return torch.where(skip, kept, new)


def _unsharded(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _like(tensor: Tensor, weight: Tensor) -> Tensor:
    """Shard a tensor like a weight."""
    return distribute_tensor(tensor, weight.device_mesh, weight.placements) if isinstance(weight, DTensor) else tensor
