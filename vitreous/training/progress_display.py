"""What the user sees while a model trains: two bars on a terminal, quiet plain lines anywhere else."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from vitreous.common.text import SafeConsole
from vitreous.report.metric_text import duration, label, roughly, value

PAUSE = 60.0  # seconds between plain lines within an epoch
BRIEF = 10.0  # seconds within which an epoch that was not evaluated gets no line: of few pictures there may be hundreds
SETTLED = 3.0  # seconds of steps after which an estimate is worth saying
SOON = 1.0  # seconds before the end of the first epoch at which it is said anyway


class Progress:
    """A run in the eyes of the user.

    `quiet` shows nothing, as in every process but the first. Steps and epochs are counted when they are done: the first
    step is `start_step + 1`, the last `total_steps`, and `epoch(1, ...)` ends the first epoch. Steps may be left out.

    >>> with Progress(total_steps=4, steps_per_epoch=2, epochs=2, quiet=True) as progress:
    ...     progress.step(1, loss=2.3, lr=1e-3, images_per_second=640.0, metrics={"top1": 0.1})
    ...     progress.epoch(1, {"loss": 2.1, "val_top1": 0.4})
    """

    def __init__(
        self,
        total_steps: int,
        steps_per_epoch: int,
        epochs: float,
        start_step: int = 0,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.total_steps, self.steps_per_epoch, self.epochs = total_steps, max(steps_per_epoch, 1), math.ceil(epochs)
        self.start_step = self.done = start_step
        self.quiet, self.clock = quiet, clock
        # A pipe gets no escape codes, whatever the environment says about colours.
        self.console = console or SafeConsole(force_terminal=None if sys.stdout.isatty() else False)
        self.estimated = False
        self.began = self.spoke = clock()
        self.told = -math.inf  # when an epoch last had its line
        self.first: tuple[int, float] | None = None  # the first step and when it was done: warm-up lies before it
        live = self.console.is_terminal and not self.console.is_dumb_terminal and not quiet
        self.bars = _Bars(self.console, self) if live else None

    def __enter__(self) -> "Progress":
        self.began = self.spoke = self.clock()
        if self.bars is not None:
            self.bars.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.live.stop()

    def step(
        self, step: int, loss: float, lr: float, images_per_second: float, metrics: Mapping[str, float] | None = None
    ) -> None:
        """A step is done. Cheap enough to call after each one."""
        if self.quiet:
            return
        self.done, now = step, self.clock()
        if self.first is None:
            self.first = (step, now)
        at, size = self.place()
        if now - self.first[1] >= SETTLED or (size - at) * self._pace() < SOON:
            self._estimate()
        if self.bars is None and now - self.spoke < PAUSE:
            return
        figures = {"loss": loss, **(metrics or {})}
        words = [f"{label(key)} {value(key, number)}" for key, number in figures.items()]
        words += [f"lr {lr:.1e}", f"{images_per_second:,.0f} images/s", *gpu_memory()]
        if self.bars is not None:
            self.bars.show(words)
        else:
            count = f"step {at:,}/{size:,}"
            self.say("  ".join([f"epoch {self.epoch_now()}/{self.epochs}", count, *words, *self.left()]))

    def epoch(self, epoch: int, figures: Mapping[str, float | str]) -> None:
        """An epoch is done: one line that stays, unless there was one just now and nothing was evaluated since."""
        if self.quiet:
            return
        self.done = max(self.done, min(epoch * self.steps_per_epoch, self.total_steps))
        self._estimate()
        evaluated = any(key.startswith("val_") for key in figures) or self.done == self.total_steps
        if not evaluated and self.clock() - self.told < BRIEF:
            return
        self.told = self.clock()
        words = [f"{label(key)} {value(key, number)}" for key, number in figures.items()]
        self.say("  ".join([f"epoch {epoch}/{self.epochs}", *words, *self.left()]))

    def say(self, text: str) -> None:
        """One line that stays, above the bars where there are bars."""
        if self.quiet:
            return
        text = "".join(char if char.isprintable() else " " for char in text)
        encoding = self.console.encoding
        text = text.encode(encoding, "replace").decode(encoding)  # a terminal that cannot show a name shall not stop us
        self.console.print(Text(text), soft_wrap=True)
        self.spoke = self.clock()

    def epoch_now(self) -> int:
        """The number of the epoch that the last step belongs to, from 1."""
        return max(-(-self.done // self.steps_per_epoch), 1)

    def place(self) -> tuple[int, int]:
        """Steps done in this epoch, and how many it has; the last may be cut short."""
        before = (self.epoch_now() - 1) * self.steps_per_epoch
        return self.done - before, max(min(self.steps_per_epoch, self.total_steps - before), 0)

    def left(self) -> list[str]:
        """How long it will go on, if there is something to go by."""
        rest = self.total_steps - self.done
        return [f"{duration(rest * self._pace())} left"] if rest > 0 and self.done > self.start_step else []

    def _pace(self) -> float:
        """Seconds a step, evaluation between epochs included."""
        now = self.clock()
        if self.first is not None and self.done > self.first[0]:
            return (now - self.first[1]) / (self.done - self.first[0])
        return (now - self.began) / max(self.done - self.start_step, 1)

    def _estimate(self) -> None:
        """Say once how long the whole will take, unless it is over."""
        if self.estimated or self.done >= self.total_steps:
            return
        self.estimated = True
        steps = self.total_steps - self.start_step
        epochs = steps / self.steps_per_epoch
        whole = "the remaining " if self.start_step else ""
        what = f"{whole}{epochs:.3g} epoch{'s' * (epochs != 1)}" if epochs >= 1 else f"{whole}{steps} steps"
        self.say(f"about {roughly(steps * self._pace())} for {what}, evaluation not counted")


class _Bars:
    """Two bars, the epoch's and the run's, and a line of figures below them."""

    def __init__(self, console: Console, run: Progress):
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
        self.figures = Text(no_wrap=True, overflow="ellipsis", style="bright_black")
        self.live = Live(Group(self.bars, self.figures), console=console, refresh_per_second=4, transient=True)
        self.show(["waiting for the first step"])

    def show(self, words: list[str]) -> None:
        run, (at, size) = self.run, self.run.place()
        name = f"epoch {run.epoch_now()}/{run.epochs}"
        self.bars.update(self.epoch_bar, description=name, completed=at, total=size, count=f"{at:,}/{size:,}")
        share = f"{run.done / max(run.total_steps, 1):.0%}"
        left = " ".join(run.left())
        self.bars.update(self.run_bar, description="run", completed=run.done, count=share, left=left)
        self.figures.plain = " · ".join(words)


def gpu_memory() -> list[str]:
    """The most memory this process has held on its GPU so far, where it uses one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return [f"GPU {torch.cuda.max_memory_reserved() / 2**30:.1f} of {total / 2**30:.0f} GiB"]
