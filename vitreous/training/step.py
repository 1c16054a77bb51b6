"""One step: forward and backward over the process's share of the batch, clip, move the weights."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitreous.data.loader import Batch
from vitreous.tasks.base import Task
from vitreous.training.distributed import World, synchronise
from vitreous.training.optim import Optimizers


@dataclass(frozen=True)
class StepResult:
    """Sums over this process's pictures, on the device: reading them waits for it, so nobody does at once."""

    loss: Tensor
    right: Tensor
    count: Tensor
    skipped: Tensor  # 1 where the gradient was not finite and nothing was moved


class Stepper:
    """What stays the same from step to step.

    `compiled` is what computes: the module, compiled where that is asked for. Everything but a step uses `module`, for
    which nothing is compiled again because a batch is smaller or gradients are not asked for.
    """

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        compiled: nn.Module,
        optimizers: Optimizers,
        world: World,
        precision: torch.dtype,
        accumulate: int = 1,
        clip: float = 0.0,
    ):
        self.task, self.module, self.compiled = task, module, compiled
        self.optimizers, self.world = optimizers, world
        self.precision, self.accumulate, self.clip = precision, accumulate, clip
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)
        self.weights = [weight for weight in module.parameters() if weight.requires_grad]

    def __call__(self, batch: Batch) -> StepResult:
        parts = self.task.prepare(batch)
        count = parts[-1].sum()
        # Over all processes, so that a picture weighs the same wherever it is read; DDP then takes a mean, hence size.
        total = self.world.sum(count.clone()).clamp(min=1)
        loss_sum, right_sum = torch.zeros_like(count), torch.zeros_like(count)
        chunks = list(zip(*(part.chunk(self.accumulate) for part in parts), strict=True))
        for i, chunk in enumerate(chunks):
            with synchronise(self.module, i == len(chunks) - 1):
                with self._autocast():
                    loss, right = self.task.loss(self.compiled, chunk)
                torch.autograd.backward(self.scaler.scale(loss * self.world.size / total))
            loss_sum += loss.detach()
            right_sum += right.detach()
        skipped = self._move()
        return StepResult(loss_sum, right_sum, count, skipped)

    def _move(self) -> Tensor:
        for part in self.optimizers.parts:
            self.scaler.unscale_(part)
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.clip or float("inf"))
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP holds it in pieces
        skipped = (~norm.isfinite()).float()
        self.optimizers.step(skipped)
        self.optimizers.zero_grad()  # to None: what a replayed graph puts out must not be kept until its next run
        if self.scaler.is_enabled():
            self.scaler.update()
            return torch.zeros_like(skipped)  # fp16 overflows now and then, by design: its scale goes down
        return skipped

    def _autocast(self) -> torch.autocast:
        mixed = self.precision != torch.float32
        return torch.autocast(self.world.device.type, self.precision if mixed else torch.bfloat16, enabled=mixed)
