"""`vitreous.train`: open the data, complete the config, build the model and the optimizer, train, report.

One loop handles all tasks, all devices and any number of processes. A step depends only on the checkpoint and on (seed,
step), so a resumed run ends with the same weights as an uninterrupted one. The only exception is --progressive with
learned positions on a GPU, where their resampling is not deterministic.
"""

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from vitreous.common.distributed import World, world
from vitreous.common.text import SafeConsole
from vitreous.data.sources.base import DataSet
from vitreous.model.protocol import Model
from vitreous.tasks.base import Task, check_preset, open_init
from vitreous.tasks.config import TrainConfig, typed_overrides, with_fields
from vitreous.training import checkpoint, run_folder
from vitreous.training.checkpoint import Progress, Saver, read_progress
from vitreous.training.compiling import release_graphs
from vitreous.training.defaults import Chosen, choose, open_pretrained
from vitreous.training.optimizer_step import rate_fraction
from vitreous.training.progress import (
    NONFINITE_FP16_STEPS,
    NONFINITE_STEPS,
    Monitor,
    PhaseTimer,
    ProgressDisplay,
    append_row,
    drop_rows_after,
    read_rows,
)
from vitreous.training.run_folder import METRICS, SAVED, DataRecord, resume_data
from vitreous.training.run_results import summarise
from vitreous.training.setup import EVALUATION_COST, Job, batch_slices, set_up, task_class_of
from vitreous.weights.load import Checkpoint
from vitreous.weights.native import NativeCheckpoint, load_folder

NOTHING, SAVE = 0, 1  # actions after a step, in order of urgency; a larger number is a signal that stops the run
MAX_UNREADABLE = 0.05  # default of --max-unreadable


class Interrupted(Exception):
    """Raised when a signal stops a run, after a checkpoint has been saved."""

    def __init__(self, signal_number: int, place: str, folder: Path):
        super().__init__(signal_number, place, folder)  # pickling passes these arguments again
        self.signal_number = signal_number
        self.place = place  # such as "step 3 of 6 in runs/first/teacher"
        self.folder = folder  # to be resumed

    def __str__(self) -> str:
        command = f"vitreous train --out {shlex.quote(str(self.folder))} --resume"
        return f"saved and stopped after {self.place}; resume with `{command}`"


@dataclass(frozen=True)
class Run:
    """Result of `train`: the run folder, the final metrics and the best model."""

    folder: Path
    metrics: dict[str, Any]
    """Contents of metrics.json: top1, loss, ... of the best model, images_per_second, seconds."""

    @cached_property
    def model(self) -> Model:
        """Best model, loaded from the run folder."""
        return load_folder(self.folder / "best")


def train(
    config: TrainConfig | None = None,
    *,
    data: str | Path | None = None,
    init: str | Path | None = None,
    task: str | type[Task] | None = None,
    command: str | None = None,
    **fields: Any,
) -> Run:
    """Train a model, as `vitreous train` does.

    Keyword arguments override config fields, including nested fields: epochs=3, lr=1e-3, overrides={"registers": 4}.
    `task` can be a subclass of `vitreous.tasks.base.Task`. `command` is shown in the report.

    >>> run = train(data="digits", out="runs/first", epochs=5)  # doctest: +SKIP
    >>> run.metrics["top1"], run.folder, run.model.config.labels  # doctest: +SKIP
    """
    phases = PhaseTimer()
    custom = task if isinstance(task, type) else None
    given = {"data": data, "init": init, "task": None if custom else task}
    fields |= {name: value for name, value in given.items() if value is not None}
    arguments = ["config"] * (config is not None) + [f"{name}={value!r}" for name, value in fields.items()]
    command = command or f"vitreous.train({', '.join(arguments)})"
    config = _checked(with_fields(config or TrainConfig(), fields))
    task_class = task_class_of(config, custom)
    task_class.check(config)
    config = task_class.complete(config)

    with world(config.device) as here, ExitStack() as held:
        if len(set(here.gather(config.resume))) > 1:
            raise ValueError(f"{config.out} contains a run in some processes only; all machines must share that folder")
        console = SafeConsole(quiet=not here.first, soft_wrap=True, markup=False, emoji=False, highlight=False)
        check_preset(config)
        opened = open_init(config)
        resume = config.resume and run_folder.reopen(config, here, held)
        if config.resume and not resume:
            console.print(f"{config.out} has no checkpoint yet; starting from the beginning")

        config, dataset, opened, notes = _complete(config, task_class, opened, here, console)
        folder, earlier = run_folder.folder_of(config), task_class.earlier_run(config)
        batch_slices(config, dataset, here)  # raises before the earlier run starts
        if config.resume:
            run_folder.record_command(folder, command, here)
        else:
            if earlier is not None:
                run_folder.check_free(run_folder.folder_of(earlier))
            run_folder.create(config, command, here, held)  # now, so that a killed earlier run can be resumed
            held.enter_context(_removed_on_error(folder, here))
        if here.first and (config.allow_data_change or not (folder / run_folder.DATA).exists()):
            DataRecord.of(dataset, task_class.classes(dataset)).write(folder / run_folder.DATA)
        if earlier is not None and not resume:
            with phases("earlier runs"):
                _finish_earlier(earlier, folder, here, command)
        with phases("data"):
            dataset = task_class.complete_data(dataset, config, here, console.print)
        job = set_up(config, dataset, here, task_class, opened, phases)
        for note in job.notes:
            console.print(f"  auto: {note}")
        notes, config = notes + job.notes, job.config
        if here.first and not resume:
            run_folder.write_config(replace(config, resume=False, allow_data_change=False))
        before = _previous_progress(folder, job, console) if resume else Progress()
        with job.trackers.started(folder, resume) if here.first else nullcontext():
            _train_with_display(job, folder, before.step, resume)
            release_graphs(job.stepper)
            with phases("report"):
                metrics = summarise(job, folder, console, notes)
            job.trackers.log({"step": job.total_steps, **metrics}, prefix="final_")
        return Run(folder, metrics)


def _complete(
    config: TrainConfig, task: type[Task], init: Checkpoint | None, here: World, console: SafeConsole
) -> tuple[TrainConfig, DataSet, Checkpoint | None, list[str]]:
    """Open the data, choose and print the settings that were omitted, and return them with the reasons for them."""
    dataset = _open_data(config, task, init, here, console)
    classes = task.classes(dataset)
    pretrained: list[str] = []
    if config.init == "auto":
        config, init, pretrained = open_pretrained(config, dataset, here)
    # The config of a run to resume is complete; fields that an earlier version did not have keep its behaviour.
    device, processes = here.device.type, here.size
    chosen = Chosen(config, []) if config.resume else choose(config, dataset, device, processes, task, init)
    chosen = here.gather(chosen)[0]  # the same in all processes
    if not config.resume:
        run_folder.check_free(run_folder.folder_of(chosen.config))
    notes = pretrained + chosen.notes
    outputs = f"{len(classes)} {task.outputs[len(classes) != 1]}; " if classes else ""
    console.print(f"{dataset.name}: {outputs}{dataset.note}")
    for note in notes:
        console.print(f"  auto: {note}")
    if chosen.advice and not pretrained:
        console.print(f"  {chosen.advice}")
    return chosen.config, dataset, init, notes


@contextmanager
def _removed_on_error(folder: Path, here: World) -> Iterator[None]:
    """Remove the folder of a new run if an error occurs before the first checkpoint."""
    try:
        yield
    except BaseException:
        if here.first:
            run_folder.release(folder)
        raise


def _finish_earlier(config: TrainConfig, folder: Path, here: World, command: str) -> None:
    """Train or resume a run that the run in `folder` needs. If it has already finished, do nothing."""
    earlier = run_folder.folder_of(config)
    if here.first_only((earlier / "metrics.json").exists):
        return
    started = here.first_only((earlier / run_folder.CONFIG).exists)
    change = config.allow_data_change and started
    config = replace(config, resume=started, auto_resume=False, allow_data_change=change)
    if here.first:
        print(f"\n{earlier}:", flush=True)
    try:
        train(config, command=command)
    except Interrupted as stop:
        raise Interrupted(stop.signal_number, stop.place, folder) from None
    if here.first:
        print(f"\n{folder}:", flush=True)


def evaluation_time(job: Job) -> float:
    """Return the expected time of all evaluations as a fraction of the time of all steps."""
    images = job.evaluated_images + len(job.data.val if job.data.test is None else job.data.test)
    return EVALUATION_COST * images / (job.total_steps * job.place.batch_size * job.task.step_images(job.config))


def _checked(config: TrainConfig) -> TrainConfig:
    """Validate a config and convert its overrides. If it resumes a run, return the config of that run."""
    config = replace(config, overrides=typed_overrides(config.overrides))
    config.check()
    if config.auto_resume:
        if (run_folder.folder_of(config) / run_folder.CONFIG).exists():
            config = replace(config, resume=True, auto_resume=False)
        else:
            replace(config, auto_resume=False).check()  # what a run to resume would have
    return run_folder.resumed_config(config) if config.resume else config


def _open_data(
    config: TrainConfig, task: type[Task], init: Checkpoint | None, here: World, console: SafeConsole
) -> DataSet:
    """Open the data. A resumed run must use the same data as before."""
    data = task.open_data(config, init)
    if not config.resume:
        return data
    record = run_folder.folder_of(config) / run_folder.DATA
    if here.first_only(record.exists):
        return resume_data(data, DataRecord.read(record), task.classes(data), config.allow_data_change)
    console.print(f"{record} is missing; changes to the data since the start of the run will not be detected")
    return data


def _previous_progress(folder: Path, job: Job, console: SafeConsole) -> Progress:
    before = read_progress(folder / "last")
    job.task.check_resumable(NativeCheckpoint(folder / "last").provenance)
    if before.step > job.total_steps:
        path = folder / "last" / "progress.json"
        raise ValueError(f"{path}: step must be at most the last step ({job.total_steps}), got {before.step}")
    if before.step == job.total_steps:
        console.print("the run is already finished; evaluating it again")
    return before


# ---- The loop --------------------------------------------------------------------------------------------------------


def _train_with_display(job: Job, folder: Path, start: int, resume: bool) -> None:
    """Train with a progress display."""
    length = job.total_steps, job.steps_per_epoch, job.total_steps / job.steps_per_epoch
    bars = ProgressDisplay(*length, start, evaluation_time(job), quiet=not job.world.first)
    with bars as display, job.phases("steps"):
        if job.task.closed_form and not resume:
            solve(job, folder, display)
        else:
            train_steps(job, folder, display, resume)


def train_steps(job: Job, folder: Path, display: ProgressDisplay, resume: bool) -> None:
    """Train until the last step, until `patience` runs out, or until a signal arrives."""
    config, world, state = job.config, job.world, job.state
    progress = checkpoint.load(folder / "last", state, world) if resume else Progress()
    if world.first_only(lambda: drop_rows_after(folder / METRICS, progress.step)):
        display.print(f"{folder / METRICS}: dropped the last line, which was incomplete")
    if resume and world.first:
        checkpoint.keep_copy(folder, progress.step, config.keep)  # the run may have been killed before copying
        job.phases.add(_earlier_seconds(folder / METRICS, progress))
    saver = Saver(folder, state, world, config.keep, config.save_minutes)
    limit = NONFINITE_FP16_STEPS if state.scaler.is_enabled() else NONFINITE_STEPS
    monitor, clock = Monitor(world, job.data.train, job.task.train_metric, limit), _Clock(progress.seconds)
    batches = job.phases.waiting(job.loader.batches(progress.step, job.total_steps))
    start = progress.step
    with stop_signals() as received:
        for step, batch in enumerate(batches, start):
            if resume and world.many and step == start:
                job.stepper.rehearse(batch)  # DDP orders its buckets in the first backward pass, which affects rounding
            # Seed dropout and stochastic depth.
            torch.manual_seed((config.seed * 1_000_003 + step * 1_009 + world.rank) % 2**63)
            fraction = rate_fraction(step, job.total_steps, config.optim)
            state.optimizers.set_rate(fraction)
            job.task.start_step(step, job.total_steps)
            monitor.add(job.stepper(batch), batch)
            if state.ema is not None:
                state.ema.update(step)
            progress.step, progress.seconds = step + 1, clock.seconds()
            lr = fraction * (config.optim.lr or 0.0)
            if world.first and clock.tick():
                metrics = monitor.means()
                display.step(step + 1, metrics.pop("loss"), lr, metrics.pop("images_per_second"), metrics)
            # All processes must save together, but their clocks differ, and a signal may reach only some processes.
            # All of them therefore take the most urgent action of any process.
            action = world.max(received() or (SAVE if saver.due() else NOTHING))
            if action > SAVE:
                _save(job, saver, progress)
                raise Interrupted(action, f"step {step + 1} of {job.total_steps} in {folder}", folder)
            if (step + 1) % job.steps_per_epoch == 0 or step + 1 == job.total_steps:
                _finish_epoch(job, saver, display, monitor, progress, lr)
                if _out_of_patience(config, progress):
                    display.print(f"stopping early: no improvement in {progress.since_best} evaluations")
                    break
            elif action == SAVE:
                _save(job, saver, progress)


def _finish_epoch(
    job: Job, saver: Saver, display: ProgressDisplay, monitor: Monitor, progress: Progress, lr: float
) -> None:
    """Evaluate if due, save the best model and a checkpoint, and log the metrics."""
    config, world, task, folder = job.config, job.world, job.task, saver.folder
    epoch = -(-progress.step // job.steps_per_epoch)
    row: dict[str, Any] = {"step": progress.step, "epoch": epoch, "lr": lr, **monitor.metrics()}
    _check_unreadable(job, *monitor.all_unreadable())
    if evaluated := epoch % (config.evaluate_every or 1) == 0 or progress.step == job.total_steps:
        with job.phases("evaluation"):
            metrics = job.evaluate(job.data.val, display).metrics()
        row |= {f"val_{name}": value for name, value in metrics.items()}
        score = row[f"val_{task.metric}"] * (1 if task.larger_is_better else -1)
        loss = min(1e300, row.get("val_loss", math.inf))  # also replaces NaN, because progress must be finite
        rank, best = (score, -loss), (progress.best, -progress.best_loss)
        progress.since_best = 0 if rank > best else progress.since_best + 1
        if rank >= best:  # on a tie, prefer the later weights, which were trained for longer
            progress.best, progress.best_loss, progress.best_step = score, loss, progress.step
            with job.phases("checkpoints"):
                saver.keep_best(_provenance(job, folder, progress, metrics))
    seconds = {"seconds": progress.seconds, "seconds_by_phase": job.phases.seconds()}
    row |= seconds | {"skipped_steps": monitor.skipped}
    if world.first:
        append_row(folder / METRICS, row)
        job.trackers.log(row)
    last = progress.step == job.total_steps or _out_of_patience(config, progress)
    if world.max(last or saver.due(evaluated)):
        _save(job, saver, progress)
    shown = dict.fromkeys(("train_loss", "val_loss", f"val_{task.metric}"))
    display.epoch(epoch, {name: row[name] for name in shown if name in row})
    monitor.reset()


def _earlier_seconds(path: Path, progress: Progress) -> dict[str, float]:
    """Return the seconds that each phase took in earlier sessions. Time after the last metrics row counts as steps."""
    rows = read_rows(path) if path.exists() else []
    phases: dict[str, float] = dict(rows[-1].get("seconds_by_phase", {})) if rows else {}
    known = rows[-1]["seconds"] if phases else 0.0
    return phases | {"steps": phases.get("steps", 0.0) + progress.seconds - known}


def _out_of_patience(config: TrainConfig, progress: Progress) -> bool:
    return config.patience is not None and progress.since_best >= config.patience


def solve(job: Job, folder: Path, display: ProgressDisplay) -> None:
    """Compute the weights in closed form. Log and save the result as if it were a run of a single step."""
    clock = _Clock(0.0)
    solution = job.task.solve(job.data.train, job.world, job.stepper.precision, display.print)
    _check_unreadable(job, solution.problems)
    progress = Progress(step=job.total_steps, best_step=job.total_steps, seconds=clock.seconds())
    saver = Saver(folder, job.state, job.world, job.config.keep, job.config.save_minutes)
    saver.keep_best(_provenance(job, folder, progress, solution.metrics))
    if job.world.first:
        row = {"step": job.total_steps, "epoch": 1, **solution.row, "seconds": progress.seconds}
        append_row(folder / METRICS, row)
        job.trackers.log(row)
    job.state.optimizers.create_state()  # part of a complete checkpoint
    _save(job, saver, progress)


def _check_unreadable(job: Job, labelled: list[str], unlabelled: Sequence[str] = ()) -> None:
    """Raise ValueError if too many labelled or too many unlabelled training images are unreadable."""
    allowed = MAX_UNREADABLE if job.config.max_unreadable is None else job.config.max_unreadable
    parts = ("training", job.data.train, labelled), ("unlabelled", job.data.unlabelled, unlabelled)
    for kind, source, names in parts:
        if source is not None and len(names) / len(source) > allowed:
            raise ValueError(
                f"{len(names)} of {len(source)} {kind} images ({len(names) / len(source):.1%}) cannot be read, which "
                f"is more than --max-unreadable {allowed:g} allows; the first is {names[0]}"
            )


def _provenance(job: Job, folder: Path, progress: Progress, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the provenance of the best model: its run, step, metrics, data and split."""
    run = {"run": folder.name, "step": progress.step, "metrics": metrics, "data": job.data.name}
    return run | {"seed": job.config.seed, "val_fraction": job.config.val_fraction}


def _save(job: Job, saver: Saver, progress: Progress) -> None:
    with job.phases("checkpoints"):
        saver.save(progress)
        if job.world.first:
            (saver.folder / SAVED).touch()


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Record SIGINT and SIGTERM. Yield a function that returns the last signal. A second Ctrl-C stops immediately."""
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
    """Total training time of a run, including earlier sessions, and a timer for the display."""

    def __init__(self, before: float):
        self.before = before
        self.started = self.displayed = time.monotonic()

    def seconds(self) -> float:
        return self.before + time.monotonic() - self.started

    def tick(self) -> bool:
        """Return True at most twice a second, because reading metrics waits for the device."""
        if time.monotonic() - self.displayed < 0.5:
            return False
        self.displayed = time.monotonic()
        return True
