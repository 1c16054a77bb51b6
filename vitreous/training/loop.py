"""The training loop, for every task, every device and any number of processes.

Everything that a step depends on is in the checkpoint or follows from (seed, step), so that a run that was killed and
resumed ends with the same weights as one that was not.
"""

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.data.loader import Batch, BatchSlice, EvalLoader, Reader, TrainLoader, can_reside
from vitreous.data.sources.base import DataSet, Source
from vitreous.inference.engine import mixed_precision
from vitreous.tasks.base import Results, Task
from vitreous.tasks.config import TrainConfig
from vitreous.training import checkpoint
from vitreous.training.distributed import World, synchronise
from vitreous.training.optim import Optimizers, rate_fraction
from vitreous.training.progress import (
    Monitor,
    ProgressDisplay,
    StepResult,
    append_row,
    drop_rows_after,
    log_to_tensorboard,
)
from vitreous.training.run_folder import METRICS, SAVED

NOTHING, SAVE, STOP = range(3)  # actions after a step, the most urgent last
MAX_UNREADABLE = 0.05  # default of --max-unreadable


class Interrupted(Exception):
    """A run was stopped by a signal after saving a checkpoint."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


class Stepper:
    """One step: forward and backward passes of `compiled`, clipping, optimizer. Evaluation uses `module` itself."""

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
        inputs = self.task.prepare(batch)
        count = inputs[-1].sum()
        # Over all processes, so that every image has the same weight; DDP averages gradients, hence the factor below.
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
        return StepResult(loss_sum, metric_sum, count, self._optimizer_step())

    def _optimizer_step(self) -> Tensor:
        """Update the weights; returns 1 if the step was skipped because the gradient was not finite."""
        for optimizer in self.optimizers.parts:
            self.scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.weights, self.clip or float("inf"))
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP shards it
        skipped = (~norm.isfinite()).float()
        self.optimizers.step(skipped)
        self.optimizers.zero_grad()  # to None: outputs of a CUDA graph must not be kept until it runs again
        if self.scaler.is_enabled():
            self.scaler.update()
            return torch.zeros_like(skipped)  # fp16 overflows now and then by design: its scale is reduced
        return skipped


@dataclass(frozen=True)
class Job:
    """A run that is ready to start (see setup.py)."""

    config: TrainConfig
    data: DataSet
    world: World
    task: Task
    state: checkpoint.State
    stepper: Stepper
    loader: TrainLoader
    place: BatchSlice
    steps_per_epoch: int
    total_steps: int

    def evaluator(self, source: Source) -> EvalLoader:
        """Batches of a split, to evaluate on."""
        config = self.state.model.config
        reader = Reader(source, config.image_size, config.channels, config.preprocessing, masks=self.task.masks)
        resident = self.world.device if can_reside(source, config.image_size, config.channels) else None
        return EvalLoader(reader, self.place, self.config.workers or 0, resident)


def run(job: Job, folder: Path, display: ProgressDisplay, resume: bool) -> None:
    """Train until the last step, until `patience` is exhausted, or until a signal."""
    config, world, state = job.config, job.world, job.state
    progress = checkpoint.load(folder / "last", state, world) if resume else checkpoint.Progress()
    if world.first_only(lambda: drop_rows_after(folder / METRICS, progress.step)):
        display.print(f"{folder / METRICS}: dropped its last line, which was incomplete")
    if resume and world.first:
        checkpoint.keep_copy(folder, progress.step, config.keep)  # if the run was killed between saving and copying
    monitor, clock = Monitor(world, job.data.train, job.task.train_metric), _Clock(progress.seconds)
    with stop_signals() as received:
        for step, batch in enumerate(job.loader.batches(progress.step, job.total_steps), progress.step):
            # Seeds dropout and stochastic depth.
            torch.manual_seed((config.seed * 1_000_003 + step * 1_009 + world.rank) % 2**63)
            fraction = rate_fraction(step, job.total_steps, config.optim)
            state.optimizers.set_rate(fraction)
            monitor.add(job.stepper(batch), batch)
            if state.ema is not None:
                state.ema.update(step)
            progress.step, progress.seconds = step + 1, clock.seconds()
            lr = fraction * (config.optim.lr or 0.0)
            if world.first and clock.tick():
                metrics = monitor.local_metrics()
                display.step(step + 1, metrics.pop("loss"), lr, metrics.pop("images_per_second"), metrics)
            number = received()
            # All processes save together, but their clocks differ: they agree on the most urgent action.
            action = world.most(STOP if number else SAVE if clock.due(config.save_minutes) else NOTHING)
            if action == STOP:
                _save(job, folder, progress)
                command = f"vitreous train --out {shlex.quote(str(folder))} --resume"
                message = f"stopped after step {step + 1} of {job.total_steps} and saved; resume with `{command}`"
                raise Interrupted(number, message)
            if (step + 1) % job.steps_per_epoch == 0 or step + 1 == job.total_steps:
                _finish_epoch(job, folder, display, monitor, progress, clock, lr)
                if config.patience is not None and progress.since_best >= config.patience:
                    display.print(f"no improvement in {progress.since_best} evaluations: stopping early")
                    break
            elif action == SAVE:
                _save(job, folder, progress)
                clock.saved_now()


def _finish_epoch(
    job: Job,
    folder: Path,
    display: ProgressDisplay,
    monitor: Monitor,
    progress: checkpoint.Progress,
    clock: "_Clock",
    lr: float,
) -> None:
    """Evaluate if it is time to, save the best model and a checkpoint, and log the metrics."""
    config, world, task = job.config, job.world, job.task
    epoch = -(-progress.step // job.steps_per_epoch)
    row: dict[str, Any] = {"step": progress.step, "epoch": epoch, "lr": lr, **monitor.metrics()}
    _check_unreadable(job, monitor.all_unreadable())
    if evaluated := epoch % (config.evaluate_every or 1) == 0 or progress.step == job.total_steps:
        metrics = evaluate(job, job.data.val).metrics()
        row |= {f"val_{name}": value for name, value in metrics.items()}
        score = row[f"val_{task.metric}"] * (1 if task.larger_is_better else -1)
        loss = min(1e300, row.get("val_loss", math.inf))  # of NaN too: progress must be finite
        progress.since_best += 1
        if score > progress.best or (score == progress.best and loss < progress.best_loss):
            progress.best, progress.best_loss = score, loss
            progress.best_step, progress.since_best = progress.step, 0
            provenance = {"run": folder.name, "step": progress.step, "metrics": metrics, "data": job.data.name}
            provenance |= {"seed": config.seed, "val_fraction": config.val_fraction}
            checkpoint.save_best(folder / "best", job.state, world, provenance)
    row |= {"seconds": progress.seconds, "skipped_steps": monitor.skipped}
    if world.first:
        append_row(folder / METRICS, row)
        if config.tensorboard:
            log_to_tensorboard(folder, row)
    if world.most(evaluated or clock.due(config.save_minutes)):
        _save(job, folder, progress)
        clock.saved_now()
    shown = dict.fromkeys(("train_loss", "val_loss", f"val_{task.metric}", "train_images_per_second"))
    display.epoch(epoch, {name: row[name] for name in shown if name in row})
    monitor.reset()


def evaluate(job: Job, source: Source) -> Results:
    """Evaluate the current weights, or their average, on a split. Every process takes a share and gets all results."""
    with job.state.ema.applied() if job.state.ema is not None else nullcontext():
        mine = job.task.evaluate(job.stepper.module, job.evaluator(source), job.stepper.precision)
    return type(mine).join(job.world.gather(mine))


def _save(job: Job, folder: Path, progress: checkpoint.Progress) -> None:
    checkpoint.save(folder / "last", job.state, progress, job.world, {"run": folder.name, "step": progress.step})
    if job.world.first:
        (folder / SAVED).touch()
        checkpoint.keep_copy(folder, progress.step, job.config.keep)


def _check_unreadable(job: Job, names: list[str]) -> None:
    """Raise if too many training images are unreadable."""
    fraction, given = len(names) / len(job.data.train), job.config.max_unreadable
    allowed = MAX_UNREADABLE if given is None else given
    if fraction > allowed:
        raise ValueError(
            f"{len(names)} of {len(job.data.train)} training images ({fraction:.1%}) cannot be read, more than "
            f"--max-unreadable {allowed:g} allows, such as {names[0]}"
        )


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Record Ctrl-C and SIGTERM, for the loop to check after every step; a second Ctrl-C stops at once."""
    received = 0

    def record(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received = number

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, record) for number in numbers]
    try:
        yield lambda: received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class _Clock:
    """Seconds of training over all resumptions, and the times of the last save and the last display."""

    def __init__(self, before: float):
        self.before, self.started = before, time.monotonic()
        self.saved = self.displayed = self.started

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def tick(self) -> bool:
        """True twice a second: reading metrics waits for the device, so not at every step."""
        if time.monotonic() - self.displayed < 0.5:
            return False
        self.displayed = time.monotonic()
        return True

    def due(self, minutes: float) -> bool:
        return time.monotonic() - self.saved >= 60 * minutes

    def saved_now(self) -> None:
        self.saved = time.monotonic()
