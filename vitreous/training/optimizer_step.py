"""The training step: gradients, optimizers, learning-rate schedule, moving average of the weights, and LoRA."""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import parametrize
from torch.optim.sgd import sgd

from vitreous.common.distributed import World
from vitreous.data.loader import Batch
from vitreous.inference.forward_pass import mixed_precision
from vitreous.model.protocol import Model
from vitreous.tasks.base import Task
from vitreous.tasks.config import Optim
from vitreous.training.ddp_fsdp import synchronise
from vitreous.training.progress import StepResult

# ---- Optimizers ------------------------------------------------------------------------------------------------------


@dataclass
class Optimizers:
    """Either a single optimizer, or Muon for the matrices of the blocks and AdamW for all other weights."""

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
        """Update the weights unless `skip` is 1. The device checks `skip`, so the host does not wait."""
        for part in self.parts:
            part.grad_scale, part.found_inf = None, skip  # type: ignore[attr-defined]
            part.step()

    def create_state(self) -> None:
        """Create the optimizer state before the first step, so that a checkpoint can be loaded into it."""
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
    """Build optimizers for all trainable parameters; `layer_decay` applies to the layers of `backbone`."""
    if config.lr is None:
        raise ValueError("lr must be a number, got None")
    named = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
    rates = learning_rates(backbone, config.lr, config.layer_decay or 1.0)
    if config.optimizer != "muon":
        groups = _groups(named, config, rates)
        return Optimizers([_sgd(groups, config) if config.optimizer == "sgd" else _adamw(groups, config)])
    inside = [(name, weight) for name, weight in named if ".blocks." in f".{name}" and _is_matrix(name, weight)]
    outside = [(name, weight) for name, weight in named if not (".blocks." in f".{name}" and _is_matrix(name, weight))]
    muon = Muon(_groups(inside, config, rates), config.lr, config.momentum)
    return Optimizers([muon, _adamw(_groups(outside, config, rates), config)])


def learning_rates(backbone: Model, lr: float, layer_decay: float) -> dict[nn.Parameter, float]:
    """Return the peak learning rates of the backbone: lr * layer_decay ** (L - i) in block i of L, as in MAE."""
    groups, rates = backbone.lr_groups, dict[nn.Parameter, float]()
    for number, modules in enumerate(groups):
        weights = [weight for module in modules for weight in module.parameters()]
        rates |= dict.fromkeys(weights, lr * layer_decay ** (len(groups) - number))
    return rates


def _is_matrix(name: str, weight: Tensor) -> bool:
    """Return True for the matrices of attention and MLP layers, but not for those that compute positions."""
    return weight.ndim == 2 and ".position." not in name


def decays(name: str, weight: Tensor) -> bool:
    """Return True if weight decay applies: to matrices and filters, but not to biases, scales, tokens or positions."""
    special = ("prefix.", "position.", ".query", "decoder.classes")
    return weight.ndim >= 2 and not any(part in f".{name}" for part in special)


def _groups(
    named: Iterable[tuple[str, nn.Parameter]], config: Optim, rates: dict[nn.Parameter, float]
) -> list[dict[str, object]]:
    groups: dict[tuple[float, bool, int], dict[str, object]] = {}
    for name, weight in named:
        lr, decayed = rates.get(weight, config.lr or 0.0), decays(name, weight)
        parts = 2 if ".gate_and_up." in name and config.optimizer == "muon" else 1  # stacked matrices
        group = {"params": [], "lr": lr, "weight_decay": config.weight_decay if decayed else 0.0, "parts": parts}
        groups.setdefault((lr, decayed, parts), group)["params"].append(weight)  # type: ignore[attr-defined]
    return list(groups.values())


def _adamw(groups: list[dict[str, object]], config: Optim) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=config.lr or 0.0, betas=config.betas, fused=True)


SGD_OPTIONS = ("lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize")


class ShardSGD(torch.optim.SGD):
    """Fused SGD that also supports FSDP parameters, by updating their local shards."""

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
                **{name: group[name] for name in SGD_OPTIONS},
            )


def _sgd(groups: list[dict[str, object]], config: Optim) -> torch.optim.Optimizer:
    optimizer = ShardSGD(groups, lr=config.lr or 0.0, momentum=config.momentum, fused=True)
    # torch leaves these buffers uninitialised if the first step is skipped. Zeros give the same first step.
    for group in optimizer.param_groups:
        for weight in group["params"]:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return optimizer


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# ---- Learning rate and moving average --------------------------------------------------------------------------------


def rate_fraction(step: int, total: int, optim: Optim) -> float:
    """Return the learning rate at `step` (counted from 0) as a fraction of its peak."""
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
    """Exponential moving average of the weights, sharded like the weights. The decay is smaller in the first steps."""

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
        self._assign(list(self.averages.values()))
        try:
            yield
        finally:
            self._assign(own)

    @torch.no_grad()
    def _assign(self, values: list[Tensor]) -> None:
        for weight, value in zip(self.weights.values(), values, strict=True):
            weight.copy_(value)


# ---- Muon ------------------------------------------------------------------------------------------------------------

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the polynomial is steep at 0, so five iterations are enough
ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """Muon optimizer. A group's `parts` is the number of matrices stacked in each weight (two in SwiGLU)."""

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
        torch._foreach_lerp_(gradients, momenta, group["momentum"])  # Nesterov momentum; `gradients` are copies
        torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
        for shape in {weight.shape: None for weight in weights}:
            alike = [i for i, weight in enumerate(weights) if weight.shape == shape]
            matrices = torch.cat([unsharded(gradients[i]).reshape(group["parts"], -1, shape[1]) for i in alike])
            # Scale updates to the usual size of AdamW updates (arXiv 2502.16982), so both can share a learning rate.
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
    """Approximate U V^T for each matrix U S V^T by Newton-Schulz iteration in bfloat16."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16()
    if tall := x.shape[1] > x.shape[2]:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)  # all singular values are now at most 1
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _where(skip: Tensor, kept: Tensor, new: Tensor) -> Tensor:
    """Apply torch.where to tensors that FSDP may have sharded."""
    if isinstance(new, DTensor):
        assert isinstance(kept, DTensor)
        local = torch.where(skip, kept.to_local(), new.to_local())
        return DTensor.from_local(local, new.device_mesh, new.placements, shape=new.shape, stride=new.stride())
    return torch.where(skip, kept, new)


def unsharded(tensor: Tensor) -> Tensor:
    """Return the full tensor of an FSDP shard. Other tensors are unchanged. All processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _like(tensor: Tensor, weight: Tensor) -> Tensor:
    return distribute_tensor(tensor, weight.device_mesh, weight.placements) if isinstance(weight, DTensor) else tensor


# ---- LoRA ------------------------------------------------------------------------------------------------------------


class Delta(nn.Module):
    """LoRA parametrisation W + B A. B is initialised to zero, so the model is unchanged at first."""

    def __init__(self, weight: Tensor, rank: int):
        super().__init__()
        outputs, inputs = weight.shape
        self.a = nn.Parameter(torch.randn(rank, inputs, device=weight.device) / inputs**0.5)
        self.b = nn.Parameter(torch.zeros(outputs, rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def add_lora(model: Model, rank: int) -> None:
    """Freeze the linear layers of all blocks and add trainable low-rank matrices to them.

    torch makes a class for every parametrised layer, for which torch.compile would compile every block again. The
    classes are equal, so the layers share one.
    """
    classes: dict[type[nn.Linear], type[nn.Linear]] = {}
    for block in model.blocks:
        for linear in [part for part in block.modules() if isinstance(part, nn.Linear)]:
            plain = type(linear)
            linear.requires_grad_(False)
            parametrize.register_parametrization(linear, "weight", Delta(linear.weight, rank))
            linear.__class__ = classes.setdefault(plain, type(linear))


# ---- Training step ---------------------------------------------------------------------------------------------------


class Stepper:
    """Training step: forward and backward pass of `compiled`, gradient clipping, optimizer step.

    `compiled` is used for training steps and `evaluated` for evaluations; both are `module` if nothing is compiled.
    """

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        optimizers: Optimizers,
        world: World,
        precision: torch.dtype,
        scaler: torch.amp.GradScaler,
        accumulate: int = 1,
        clip: float = 0.0,
    ):
        self.task, self.module = task, module
        self.compiled = self.evaluated = module
        self.optimizers, self.world = optimizers, world
        self.precision, self.accumulate, self.clip = precision, accumulate, clip
        self.scaler = scaler
        self.weights = [weight for weight in module.parameters() if weight.requires_grad]

    def __call__(self, batch: Batch) -> StepResult:
        return StepResult(*self._backward(batch), self._optimizer_step())

    def rehearse(self, batch: Batch) -> None:
        """Compute and discard gradients, in order to measure or compile a step."""
        self._backward(batch)
        self.optimizers.zero_grad()

    def _backward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the gradients of a batch. Return the summed loss, the summed metric and the number of images."""
        inputs = self.task.prepare(batch) if batch.inputs is None else batch.inputs
        count = inputs[-1].sum()
        # Sum over all processes, so that every image has the same weight. DDP averages gradients, hence world.size.
        total = self.world.sum(count.clone()).clamp(min=1)
        loss_sum, metric_sum = torch.zeros_like(count), torch.zeros_like(count)
        chunks = list(zip(*(tensor.chunk(self.accumulate) for tensor in inputs), strict=True))
        for i, chunk in enumerate(chunks):
            last = i == len(chunks) - 1
            with synchronise(self.module, last) if self.world.many else nullcontext():
                with mixed_precision(self.world.device, self.precision):
                    loss, metric = self.task.loss(self.compiled, chunk)
                torch.autograd.backward(self.scaler.scale(loss * self.world.size / total))
            loss_sum += loss.detach()
            metric_sum += metric.detach()
        return loss_sum, metric_sum, count

    def _optimizer_step(self) -> Tensor:
        """Update the weights. Return 1 if the step was skipped because the gradient was not finite."""
        for optimizer in self.optimizers.parts:
            self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.clip or float("inf"))
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # sharded by FSDP
        skipped = (~norm.isfinite()).float()
        self.optimizers.step(skipped)
        self.optimizers.zero_grad()  # to None, because the outputs of a CUDA graph must be freed before the next run
        if self.scaler.is_enabled():
            self.scaler.update()
        return skipped


class TurnStepper(Stepper):
    """Training step that updates several learners in turn, each with a loss that may depend on the updates before it.

    `turns` are the steppers of the learners. `module` contains all of them.
    """

    def __init__(self, module: nn.Module, turns: list[Stepper]):
        first = turns[0]
        optimizers = Optimizers([part for turn in turns for part in turn.optimizers.parts])
        super().__init__(first.task, module, optimizers, first.world, first.precision, first.scaler)
        self.turns = turns

    def __call__(self, batch: Batch) -> StepResult:
        return self._take_turns(batch, update=True)

    def rehearse(self, batch: Batch) -> None:
        self._take_turns(batch, update=False)
        self.optimizers.zero_grad()

    def _take_turns(self, batch: Batch, update: bool) -> StepResult:
        inputs = self.task.prepare(batch)
        count = inputs[-1].sum()
        total = self.world.sum(count.clone()).clamp(min=1)
        losses = self.task.turn_losses([turn.compiled for turn in self.turns], inputs, self.world)
        reported: list[Tensor] = []
        skipped = torch.zeros_like(count)
        for turn in self.turns:
            with mixed_precision(self.world.device, self.precision):
                result = next(losses, None)
            if result is None:
                break
            torch.autograd.backward(self.scaler.scale(result[0] * self.world.size / total))
            reported += [value.detach() for value in result]
            if update:
                skipped = torch.maximum(skipped, turn._optimizer_step())
        loss, metric, *_ = reported  # of the first learner
        return StepResult(loss, metric, count, skipped)
