"""The training loop: every task, every device and any number of processes go through here.

Whatever a step depends on is either in the checkpoint or follows from (seed, step), so that a run that was killed and
resumed ends with the same weights as one that was not.
"""

import math
import os
import shlex
import shutil
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from vitreous.common.atomic_files import atomic_folder, foreign_files
from vitreous.data.sources.base import Source
from vitreous.tasks.base import Measured
from vitreous.training import checkpoint
from vitreous.training.metrics_log import append_row, drop_rows_after
from vitreous.training.monitor import Interrupted, Monitor, stop_signals
from vitreous.training.progress_display import Progress as Display
from vitreous.training.run_folder import METRICS, SAVED, STEP
from vitreous.training.schedule import share_of_peak
from vitreous.training.setup import Job
from vitreous.training.tensorboard import log_to_tensorboard
from vitreous.weights.native import FILES, write_files

NOTHING, SAVE, STOP = range(3)  # what is to be done after a step, the most urgent last


MAX_UNREADABLE = 0.05  # of the training pictures, where nothing else is said


def run(job: Job, folder: Path, display: Display, resume: bool) -> dict[str, Any]:
    """Train to the end, or until a signal asks to stop; returns the metrics of the last evaluation."""
    config, world, state = job.config, job.world, job.state
    progress = checkpoint.Progress()
    if resume:
        progress = checkpoint.load(folder / "last", state, world)
    if world.first_only(lambda: drop_rows_after(folder / METRICS, progress.step)):
        display.say(f"{folder / METRICS}: dropped its last line, which was cut off")
    if resume and world.first:
        _keep(folder, progress.step, config.keep)  # in case that the run was killed between a save and its copy
    counted = job.task.counted
    monitor, clock, figures = Monitor(world, job.data.train, counted), _Clock(progress.seconds), {}
    with stop_signals() as asked:
        for step, batch in enumerate(job.loader.batches(progress.step, job.total_steps), progress.step):
            torch.manual_seed(_step_seed(config.seed, step, world.rank))  # dropout and stochastic depth
            share = share_of_peak(step, job.total_steps, config.optim)
            state.optimizers.set_rate(share)
            monitor.add(job.stepper(batch), batch)
            if state.ema is not None:
                state.ema.update(step)
            progress.step, progress.seconds = step + 1, clock.seconds()
            rate = share * (config.optim.lr or 0.0)
            if world.first and clock.tick():
                glance = monitor.glance()
                right = {counted: glance[counted]} if counted is not None else {}
                display.step(step + 1, glance["loss"], rate, glance["images_per_second"], right)
            number = asked()
            # Saving is the work of all processes, whose clocks differ: they agree on what is to be done.
            wish = world.most(STOP if number else SAVE if clock.due(config.save_minutes) else NOTHING)
            if wish == STOP:
                _save(job, folder, progress)
                again = f"`vitreous train --out {shlex.quote(str(folder))} --resume` goes on"
                raise Interrupted(number, f"stopped after step {step + 1} of {job.total_steps}, saved; {again}")
            if (step + 1) % job.steps_per_epoch == 0 or step + 1 == job.total_steps:
                figures = _finish_epoch(job, folder, display, monitor, progress, clock, rate)
                if config.patience is not None and progress.since_best >= config.patience:
                    display.say(f"no better for {progress.since_best} evaluations: stopping early")
                    break
            elif wish == SAVE:
                _save(job, folder, progress)
                clock.saved_now()
    return figures


def _finish_epoch(
    job: Job,
    folder: Path,
    display: Display,
    monitor: Monitor,
    progress: checkpoint.Progress,
    clock: "_Clock",
    rate: float,
) -> dict[str, Any]:
    """Report, evaluate where it is time to, keep what is best, save."""
    config, world = job.config, job.world
    epoch = -(-progress.step // job.steps_per_epoch)
    last = progress.step == job.total_steps
    row: dict[str, Any] = {"step": progress.step, "epoch": epoch, "lr": rate, **monitor.figures()}
    _refuse_too_many_unreadable(job, monitor.all_unreadable())
    if evaluated := epoch % (config.evaluate_every or 1) == 0 or last:
        figures = evaluate(job, job.data.val).metrics()
        row |= {f"val_{name}": value for name, value in figures.items()}
        score = row[f"val_{job.task.best}"] * (1 if job.task.larger_is_better else -1)
        loss = min(1e300, row.get("val_loss", math.inf))  # of NaN too: progress must be finite
        progress.since_best += 1
        if score > progress.best or (score == progress.best and loss < progress.best_loss):
            progress.best, progress.best_loss = score, loss
            progress.best_step, progress.since_best = progress.step, 0
            _save_best(job, folder, row)
    row |= {"seconds": progress.seconds, "skipped_steps": monitor.skipped}
    if world.first:
        append_row(folder / METRICS, row)
        if config.tensorboard:
            log_to_tensorboard(folder, row)
    if world.most(evaluated or clock.due(config.save_minutes)):
        _save(job, folder, progress)
        clock.saved_now()
    shown = dict.fromkeys(("train_loss", "val_loss", f"val_{job.task.best}", "train_images_per_second"))
    display.epoch(epoch, {name: row[name] for name in shown if name in row})
    monitor.reset()
    return row


def evaluate(job: Job, source: Source) -> Measured:
    """The model, averaged where it is, on a part of the data; every process does a share and knows the whole."""
    with job.state.ema.applied() if job.state.ema is not None else nullcontext():
        module, batches = job.stepper.module, job.evaluator(source)
        mine = job.task.measure(module, batches, job.world.device, job.stepper.precision)
    return type(mine).join(job.world.gather(mine))


def _save(job: Job, folder: Path, progress: checkpoint.Progress) -> None:
    checkpoint.save(folder / "last", job.state, progress, job.world, {"run": folder.name, "step": progress.step})
    if job.world.first:
        (folder / SAVED).touch()
        _keep(folder, progress.step, job.config.keep)


def _save_best(job: Job, folder: Path, row: dict[str, Any]) -> None:
    model, weights = job.state.export()
    if job.world.first:
        with atomic_folder(folder / "best", ours=FILES) as aside:
            figures = {name.removeprefix("val_"): value for name, value in row.items() if name.startswith("val_")}
            split = {"seed": job.config.seed, "val_fraction": job.config.val_fraction}
            provenance = {"run": folder.name, "step": row["step"], "metrics": figures, "data": job.data.name} | split
            write_files(model, aside, provenance, folder.name, weights)


def _keep(folder: Path, step: int, count: int) -> None:
    """Keep `last` under its step as well, by hard links, and remove the oldest of our copies beyond `count`."""
    if not count:
        return
    last, copy = folder / "last", folder / f"step-{step:08d}"
    names = set(foreign_files(last, ())) - set(foreign_files(last, checkpoint.OURS))
    if not names <= set(foreign_files(copy, ())):
        with atomic_folder(copy, ours=checkpoint.OURS) as aside:
            for name in names:
                (aside / name).parent.mkdir(exist_ok=True)
                os.link(last / name, aside / name)
    copies = [path for path in folder.iterdir() if STEP.fullmatch(path.name) and not path.is_symlink()]
    ours = [
        path for path in copies if (path / checkpoint.PROGRESS).is_file() and not foreign_files(path, checkpoint.OURS)
    ]
    for old in sorted(ours, key=lambda path: int(path.name.removeprefix("step-")))[:-count]:
        shutil.rmtree(old)


def _refuse_too_many_unreadable(job: Job, names: list[str]) -> None:
    share, said = len(names) / len(job.data.train), job.config.max_unreadable
    allowed = MAX_UNREADABLE if said is None else said
    if share > allowed:
        raise ValueError(
            f"{len(names)} of {len(job.data.train)} training pictures ({share:.1%}) cannot be read, more than "
            f"--max-unreadable {allowed:g} allows, such as {names[0]}"
        )


def _step_seed(seed: int, step: int, rank: int) -> int:
    return (seed * 1_000_003 + step * 1_009 + rank) % 2**63


class _Clock:
    """Seconds of training, over all the times a run was resumed, and when it last saved."""

    def __init__(self, before: float):
        self.before, self.started = before, time.monotonic()
        self.saved, self.looked = self.started, self.started

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def tick(self) -> bool:
        """Whether it is time to look: reading figures waits for the device, so not at every step."""
        if time.monotonic() - self.looked < 0.5:
            return False
        self.looked = time.monotonic()
        return True

    def due(self, minutes: float) -> bool:
        return time.monotonic() - self.saved >= 60 * minutes

    def saved_now(self) -> None:
        self.saved = time.monotonic()
