"""Training metrics, their log (metrics.jsonl), and the progress display in the terminal."""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TextColumn, track
from rich.progress import Progress as RichProgress
from rich.text import Text
from torch import Tensor

from vitreous.common.atomic_files import atomic_file
from vitreous.common.distributed import World
from vitreous.common.text import SafeConsole, duration, roughly
from vitreous.common.untrusted_files import parse_json
from vitreous.data.loader import Batch
from vitreous.data.sources.base import Source
from vitreous.report.html import label, value

T = TypeVar("T")

# ---- Time ------------------------------------------------------------------------------------------------------------

PHASES = ("set-up", "earlier runs", "compile", "data", "steps", "evaluation", "checkpoints", "report")
OPTIONAL = "earlier runs"  # a phase that most runs do not have


class PhaseTimer:
    """Measures the duration of each phase of a run, starting with the set-up. A nested phase pauses the outer phase."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self.clock, self.phase, self.since = clock, PHASES[0], clock()
        self._seconds = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        before = self.phase
        self._switch(phase)
        try:
            yield
        finally:
            self._switch(before)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add the seconds that each phase took in earlier sessions of this run."""
        for phase in PHASES:
            self._seconds[phase] += seconds.get(phase, 0.0)

    def seconds(self) -> dict[str, float]:
        self._switch(self.phase)
        return {phase: seconds for phase, seconds in self._seconds.items() if seconds or phase != OPTIONAL}

    def waiting(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Iterate over batches. The time spent waiting for a batch counts as the data phase."""
        iterator = iter(batches)
        while True:
            with self("data"):
                batch = next(iterator, None)
            if batch is None:
                return
            yield batch

    def _switch(self, phase: str) -> None:
        now = self.clock()
        self._seconds[self.phase] += now - self.since
        self.phase, self.since = phase, now


def phase_summary(seconds: Mapping[str, float]) -> str:
    """List the phases that took at least 1% of the time, e.g. "steps 40 s, evaluation 3.1 s"."""
    total = sum(seconds.values())
    return ", ".join(f"{phase} {duration(number)}" for phase, number in seconds.items() if number >= total / 100)


# ---- Metrics ---------------------------------------------------------------------------------------------------------

NONFINITE_STEPS = 3  # a run fails after this many consecutive steps with a non-finite gradient
NONFINITE_FP16_STEPS = 20  # the same in fp16, where each such step halves the loss scale, which starts high


@dataclass(frozen=True)
class StepResult:
    """Sums over the images of a step in this process. They are on the device, and reading them waits for the device."""

    loss: Tensor
    metric: Tensor
    count: Tensor
    skipped: Tensor  # 1 if the gradient was not finite and the weights were not updated


class Monitor:
    """Accumulates metrics between reports, without waiting for the device at every step."""

    def __init__(self, world: World, source: Source, train_metric: str | None = "top1", limit: int = NONFINITE_STEPS):
        self.world, self.source, self.train_metric = world, source, train_metric
        self.unreadable: tuple[dict[str, None], ...] = ({}, {})  # ordered sets: labelled and unlabelled images
        self._reported: set[str] = set()  # unreadable images that were reported in earlier rows
        self.skipped = 0
        self._nonfinite: deque[Tensor] = deque(maxlen=limit)  # image indices of each non-finite step
        self._pending: tuple[_AsyncNumber, Batch] | None = None
        self.reset()

    def reset(self) -> None:
        self._sums = torch.zeros(3, device=self.world.device)
        self._started, self._images = time.perf_counter(), 0

    def add(self, result: StepResult, batch: Batch) -> None:
        self._sums += torch.where(result.skipped > 0, 0, torch.stack([result.loss, result.metric, result.count]))
        for part, unreadable in zip((batch, batch.unlabelled), self.unreadable, strict=True):
            if part is not None:
                self._images += len(part.labels) * self.world.size
                unreadable.update(dict.fromkeys(part.problems))
        self.check()
        self._pending = (_AsyncNumber(result.skipped), batch)

    def check(self) -> None:
        """Raise ValueError after several non-finite gradients.

        The previous step is checked while the device computes the current step.
        """
        if self._pending is None:
            return
        (skipped, batch), self._pending = self._pending, None
        if not skipped.value():
            self._nonfinite.clear()
            return
        self.skipped += 1
        self._nonfinite.append(batch.indices)
        if len(self._nonfinite) == self._nonfinite.maxlen:
            names = [self.source.name(int(i)) for i in torch.cat(list(self._nonfinite))[:6]]
            raise ValueError(
                f"the gradient was not finite in {len(self._nonfinite)} consecutive steps; lower --lr, "
                f"use --precision fp32, or check images such as {', '.join(names)}"
            )

    def metrics(self) -> dict[str, Any]:
        """Return mean metrics and newly found unreadable images since the last report. All processes must call this."""
        means = {f"train_{name}": value for name, value in self.means(self.world.sum(self._sums.clone())).items()}
        names = dict.fromkeys(name for part in self.all_unreadable() for name in part)
        new = [name for name in names if name not in self._reported]
        self._reported.update(new)
        return {**means, "train_unreadable": len(self._reported), "unreadable": new}

    def means(self, sums: Tensor | None = None) -> dict[str, float]:
        """Return the speed, and the mean loss and metric from `sums` (by default the sums of this process)."""
        loss, metric, count = (self._sums if sums is None else sums).tolist()
        seconds = max(time.perf_counter() - self._started, 1e-9)
        return {
            "loss": loss / count if count else math.nan,
            **({self.train_metric: metric / max(count, 1)} if self.train_metric is not None else {}),
            "images_per_second": self._images / seconds,
        }

    def all_unreadable(self) -> list[list[str]]:
        """Return the unreadable labelled and unlabelled images of all processes. All processes must call this."""
        gathered = self.world.gather(self.unreadable)
        return [list(dict.fromkeys(name for names in parts for name in names)) for parts in zip(*gathered, strict=True)]


class _AsyncNumber:
    """Asynchronous copy of a number from the device."""

    def __init__(self, number: Tensor):
        on_gpu = number.device.type == "cuda"
        self.number = torch.empty(number.shape, pin_memory=on_gpu).copy_(number, non_blocking=on_gpu)
        self.arrived = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        if self.arrived is not None:
            self.arrived.record()

    def value(self) -> float:
        if self.arrived is not None:
            self.arrived.synchronize()
        return self.number.item()


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a row as a line of JSON and sync the file to disk. If writing fails, remove the incomplete line."""
    with open(path, "ab", buffering=0) as file:
        size = file.tell()
        try:
            line = memoryview((json.dumps(row) + "\n").encode())
            while line:
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                file.truncate(size)
            raise OSError(f"could not write {path}: {error.strerror or error}; its earlier lines are intact") from error


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows of metrics.jsonl. Skip an incomplete last line. Raise ValueError if another line is invalid."""
    rows: list[dict[str, Any]] = []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            row = parse_json(line, where)
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise ValueError(f"{where}: 'step' must be an integer")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{error}; delete that line to resume without it") from error
        rows.append(row)
    return rows


def drop_rows_after(path: Path, step: int) -> bool:
    """Drop rows after `step`, and the last line if it is incomplete. Return True if that line was incomplete."""
    if not path.exists():
        return False
    content = path.read_bytes()
    rows = read_rows(path)
    kept = [line for row, line in zip(rows, content.splitlines(), strict=False) if row["step"] <= step]
    whole = b"".join(line + b"\n" for line in kept)
    if whole != content:
        with atomic_file(path) as aside:
            aside.write_bytes(whole)
    return len(content.splitlines()) > len(rows)


# ---- Terminal --------------------------------------------------------------------------------------------------------

PAUSE = 60.0  # seconds between lines within an epoch if there are no progress bars
BRIEF = 10.0  # minimum seconds between printed epochs, unless an epoch is evaluated
SETTLED = 3.0  # seconds of training after which the time estimate is reliable
SOON = 1.0  # the estimate is printed anyway if the first epoch ends within this many seconds


class ProgressDisplay:
    """Progress display in the terminal. Steps and epochs are counted from 1.

    `evaluation` is the expected time of all evaluations as a fraction of the time of all steps. It is used for time
    estimates until the first evaluation.
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: int,
        epochs: float,
        start_step: int = 0,
        evaluation: float = 0.0,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total_steps, self.steps_per_epoch, self.epochs = total_steps, max(steps_per_epoch, 1), math.ceil(epochs)
        self.start_step = self.done = start_step
        self.evaluation, self.evaluated = evaluation, False
        self.quiet, self.clock = quiet, clock
        # Do not write escape codes to a pipe, even if the environment forces colours.
        self.console = console or SafeConsole(force_terminal=None if sys.stdout.isatty() else False)
        self.estimated = False
        self.began = self.printed = clock()
        self.printed_epoch = -math.inf  # time when the last epoch was printed
        self.first: tuple[int, float] | None = None  # first step and its time, to exclude start-up from the estimate
        live = self.console.is_terminal and not self.console.is_dumb_terminal and not quiet
        self.bars = _Bars(self.console, self) if live else None

    def __enter__(self) -> "ProgressDisplay":
        self.began = self.printed = self.clock()
        if self.bars is not None:
            self.bars.live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.bars is not None:
            self.bars.live.stop()

    def step(
        self, step: int, loss: float, lr: float, images_per_second: float, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Show the metrics after a step. This is cheap enough to be called after every step."""
        if self.quiet:
            return
        self.done, now = step, self.clock()
        if self.first is None:
            self.first = (step, now)
        at, size = self.place()
        if now - self.first[1] >= SETTLED or (size - at) * self._pace() < SOON:
            self._estimate()
        if self.bars is None and now - self.printed < PAUSE:
            return
        shown = {"loss": loss, **(metrics or {})}
        words = [f"{label(key)} {value(key, number)}" for key, number in shown.items()]
        words += [f"lr {lr:.1e}", f"{images_per_second:,.0f} images/s", *gpu_memory()]
        if self.bars is not None:
            self.bars.show(words)
        else:
            count = f"step {at:,}/{size:,}"
            self.print("  ".join([f"epoch {self.epoch_now()}/{self.epochs}", count, *words, *self.left()]))

    def epoch(self, epoch: int, metrics: Mapping[str, float | str]) -> None:
        """Print the metrics of an epoch. An unevaluated epoch is skipped if another epoch was printed recently."""
        if self.quiet:
            return
        self.done = max(self.done, min(epoch * self.steps_per_epoch, self.total_steps))
        self.evaluated |= any(key.startswith("val_") for key in metrics)
        self._estimate()
        evaluated = any(key.startswith("val_") for key in metrics) or self.done == self.total_steps
        if not evaluated and self.clock() - self.printed_epoch < BRIEF:
            return
        self.printed_epoch = self.clock()
        words = [f"{_short(label(key))} {value(key, number)}" for key, number in metrics.items()]
        self.print("  ".join([f"epoch {epoch}/{self.epochs}", *words, *self.left()]))

    def evaluating(self, batches: Iterable[T], count: int) -> Iterator[T]:
        """Iterate over the batches of an evaluation and show the number of the current batch."""
        for number, batch in enumerate(batches, 1):
            if self.bars is not None:
                self.bars.show([f"evaluating {number:,}/{count:,}"])
            yield batch

    def print(self, text: str) -> None:
        """Print a line above the progress bars."""
        if self.quiet:
            return
        text, encoding = "".join(char if char.isprintable() else " " for char in text), self.console.encoding
        # Replace characters that the terminal cannot encode. Lines are wrapped at spaces, unless written to a pipe.
        text = text.encode(encoding, "replace").decode(encoding)
        self.console.print(Text(text), soft_wrap=not self.console.is_terminal)
        self.printed = self.clock()

    def epoch_now(self) -> int:
        """Return the epoch of the last step, counted from 1."""
        return max(-(-self.done // self.steps_per_epoch), 1)

    def place(self) -> tuple[int, int]:
        """Return the number of finished steps and the total number of steps in this epoch."""
        before = (self.epoch_now() - 1) * self.steps_per_epoch
        return self.done - before, max(min(self.steps_per_epoch, self.total_steps - before), 0)

    def left(self) -> list[str]:
        """Return a list with the remaining time as text. The list is empty if the time cannot be estimated yet."""
        rest = self.total_steps - self.done
        return [f"{duration(rest * self._pace())} left"] if rest > 0 and self.done > self.start_step else []

    def _pace(self) -> float:
        """Return the seconds per step, including evaluations. Their time is estimated until the first evaluation."""
        now, expected = self.clock(), 1.0 if self.evaluated else 1 + self.evaluation
        if self.first is not None and self.done > self.first[0]:
            return expected * (now - self.first[1]) / (self.done - self.first[0])
        return expected * (now - self.began) / max(self.done - self.start_step, 1)

    def _estimate(self) -> None:
        """Print an estimate of the run's duration, but only once."""
        if self.estimated or self.done >= self.total_steps:
            return
        self.estimated = True
        steps = self.total_steps - self.start_step
        epochs = steps / self.steps_per_epoch
        whole = "the remaining " if self.start_step else ""
        length = f"{whole}{epochs:.3g} epoch{'s' * (epochs != 1)}" if epochs >= 1 else f"{whole}{steps} steps"
        whose = "its" if length.endswith(" epoch") else "their"
        self.print(f"about {roughly(steps * self._pace())} for {length} and {whose} evaluation")


def _short(name: str) -> str:
    """Shorten the name of a metric, so that the line for an epoch fits into 80 columns."""
    return name.removeprefix("training ").replace("validation ", "val ")


def counted(items: Iterable[T], total: int, description: str) -> Iterable[T]:
    """Iterate over items and show a progress bar on a terminal."""
    console = SafeConsole(force_terminal=None if sys.stdout.isatty() else False)
    return track(items, description, total, console=console, transient=True, disable=not console.is_terminal)


class _Bars:
    """Progress bars for the epoch and the run, with a line of metrics below."""

    def __init__(self, console: Console, run: ProgressDisplay):
        self.run = run
        width = max(min(console.width - 42, 48), 8)
        self.bars = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(width, style="bright_black", complete_style="cyan", finished_style="cyan"),
            TextColumn("{task.fields[count]}", justify="right"),
            TextColumn("{task.fields[left]}"),
            console=console,
        )
        self.epoch_bar = self.bars.add_task("", total=run.steps_per_epoch, count="", left="")
        self.run_bar = self.bars.add_task("", total=run.total_steps, count="", left="")
        self.metrics = Text(no_wrap=True, overflow="ellipsis", style="bright_black")
        self.live = Live(Group(self.bars, self.metrics), console=console, refresh_per_second=4, transient=True)
        self.show(["waiting for the first step"])

    def show(self, words: list[str]) -> None:
        run, (at, size) = self.run, self.run.place()
        name = f"epoch {run.epoch_now()}/{run.epochs}"
        self.bars.update(self.epoch_bar, description=name, completed=at, total=size, count=f"{at:,}/{size:,}")
        percent = f"{run.done / max(run.total_steps, 1):.0%}"
        left = " ".join(run.left())
        self.bars.update(self.run_bar, description="run", completed=run.done, count=percent, left=left)
        self.metrics.plain = " · ".join(words)


def gpu_memory() -> list[str]:
    """Return a list with the peak GPU memory use of this process as text. The list is empty if no GPU is used."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return [f"GPU {torch.cuda.max_memory_reserved() / 2**30:.1f} of {total / 2**30:.0f} GiB"]
