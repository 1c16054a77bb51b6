"""The training step, and its compilation with torch.compile.

--compile compiles the whole model, with CUDA graphs if possible, which gives the fastest steps but takes a minute. The
automatic choice compiles only the transformer blocks, if that makes the run shorter. They have the same code, so one of
them is compiled for all.
"""

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from vitreous.common.text import roughly, single_spaced
from vitreous.common.world import World
from vitreous.data.loader import Batch
from vitreous.inference.engine import mixed_precision
from vitreous.tasks.base import Choice, Task
from vitreous.tasks.config import TrainConfig
from vitreous.training.distributed import synchronise
from vitreous.training.optim import Optimizers
from vitreous.training.progress import StepResult

# Measured on an H200: blocks of a ViT-S take 9.5 s to compile, and make a step 1.33 times as fast.
COMPILE_SECONDS, SPEED_UP = 10.0, 1.3
WARM_UP, MEASURED = 3, 5  # steps
# The whole model must be compiled again for evaluations, which is not worth it unless there are many.
EVALUATED_IMAGES = 500_000


class Stepper:
    """Training step: forward and backward pass of `compiled`, gradient clipping, optimizer step.

    Without compilation, `compiled` and `evaluated`, the module for evaluations, are `module` itself.
    """

    def __init__(
        self,
        task: Task,
        module: nn.Module,
        optimizers: Optimizers,
        world: World,
        precision: torch.dtype,
        accumulate: int = 1,
        clip: float = 0.0,
    ):
        self.task, self.module = task, module
        self.compiled = self.evaluated = module
        self.optimizers, self.world = optimizers, world
        self.precision, self.accumulate, self.clip = precision, accumulate, clip
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=precision == torch.float16)
        self.weights = [weight for weight in module.parameters() if weight.requires_grad]

    def __call__(self, batch: Batch) -> StepResult:
        return StepResult(*self._backward(batch), self._optimizer_step())

    def rehearse(self, batch: Batch) -> None:
        """Compute gradients and discard them, to measure or compile a step."""
        self._backward(batch)
        self.optimizers.zero_grad()

    def _backward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Compute gradients; return the sums of the losses and of the metric, and the number of images."""
        inputs = self.task.prepare(batch)
        count = inputs[-1].sum()
        # Sum over all processes, so every image has the same weight. DDP averages gradients, hence world.size below.
        total = self.world.sum(count.clone()).clamp(min=1)
        loss_sum, metric_sum = torch.zeros_like(count), torch.zeros_like(count)
        chunks = list(zip(*(tensor.chunk(self.accumulate) for tensor in inputs), strict=True))
        for i, chunk in enumerate(chunks):
            with synchronise(self.module, i == len(chunks) - 1):
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
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP shards it
        skipped = (~norm.isfinite()).float()
        self.optimizers.step(skipped)
        self.optimizers.zero_grad()  # to None, because a CUDA graph's outputs must be freed before it runs again
        if self.scaler.is_enabled():
            self.scaler.update()
            return torch.zeros_like(skipped)  # occasional overflow is normal in fp16; the scaler adapts
        return skipped


# ---- Compilation -----------------------------------------------------------------------------------------------------


def compiled(module: nn.Module, config: TrainConfig, world: World, called_once: bool) -> nn.Module:
    """Compile a module, with CUDA graphs if its outputs are consumed before the next call."""
    graphs = world.device.type == "cuda" and not world.many and config.accumulate == 1 and called_once
    return torch.compile(module, mode="reduce-overhead" if graphs else None)  # type: ignore[return-value]


def compiled_evaluation(module: nn.Module) -> nn.Module:
    """Compile a module for evaluations, whose batches all have the same size."""
    return torch.compile(module, dynamic=False)  # type: ignore[return-value]


def compile_blocks(blocks: Sequence[nn.Module]) -> None:
    """Compile transformer blocks in place."""
    for block in blocks:
        block.compile(dynamic=False)


def choose_compile(
    rehearse: Callable[[], None], steps: int, blocks: Sequence[nn.Module], config: TrainConfig, world: World
) -> Choice:
    """Compile the blocks if that makes the run shorter. `rehearse` computes a step without changing the weights."""
    if not blocks or config.parallel == "fsdp":
        return Choice("compile", False, "not supported for this model or --parallel fsdp")
    seconds = max(world.gather(steps * seconds_per_step(rehearse, world.device)))  # the same choice in all processes
    if seconds * (1 - 1 / SPEED_UP) < COMPILE_SECONDS:
        return Choice("compile", False, f"all steps take only {roughly(seconds)}")
    compile_blocks(blocks)
    reason = ""
    try:
        rehearse()
    except Exception as error:  # torch.compile raises many kinds of errors, e.g. if there is no C compiler
        reason = single_spaced(str(error) or type(error).__name__, 80)
    if reason := next(filter(None, world.gather(reason)), ""):
        for block in blocks:
            block._compiled_call_impl = None
        return Choice("compile", False, f"torch.compile failed: {reason}")
    return Choice("compile", "blocks", f"all steps would take {roughly(seconds)}")


def seconds_per_step(rehearse: Callable[[], None], device: torch.device) -> float:
    """Measure steps after a warm-up."""
    repeat(rehearse, WARM_UP, device)
    started = time.perf_counter()
    repeat(rehearse, MEASURED, device)
    return (time.perf_counter() - started) / MEASURED


def repeat(rehearse: Callable[[], None], times: int, device: torch.device) -> None:
    """Compute several steps, and wait for the device."""
    for _ in range(times):
        rehearse()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
