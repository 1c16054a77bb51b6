"""What happens while a run goes on: sums of losses, broken gradients, unreadable pictures, signals, the clock."""

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from vitreous.data.loader import Batch
from vitreous.data.sources.base import Source
from vitreous.training.distributed import World
from vitreous.training.step import StepResult

BROKEN_IN_A_ROW = 3


class Monitor:
    """Sums since the last report. Nothing here waits for the device but `figures`, and `check`, one step late."""

    def __init__(self, world: World, source: Source, counted: str | None = "top1"):
        self.world, self.source, self.counted = world, source, counted
        self.unreadable: dict[str, None] = {}  # in the order they were met, each once
        self._told: set[str] = set()  # those of them that a report has named
        self.skipped = 0
        self._in_a_row: deque[Tensor] = deque(maxlen=BROKEN_IN_A_ROW)  # indices of the broken batches
        self._pending: tuple[_Later, Batch] | None = None
        self.reset()

    def reset(self) -> None:
        self._sums = torch.zeros(3, device=self.world.device)
        self._started, self._images = time.perf_counter(), 0

    def add(self, result: StepResult, batch: Batch) -> None:
        self._sums += torch.where(result.skipped > 0, 0, torch.stack([result.loss, result.right, result.count]))
        self._images += len(batch.labels) * self.world.size
        self.unreadable |= dict.fromkeys(batch.problems)
        self.check()
        self._pending = (_Later(result.skipped), batch)

    def check(self) -> None:
        """Wait for the step before the last; meanwhile the device has the last one to work on."""
        if self._pending is None:
            return
        (skipped, batch), self._pending = self._pending, None
        if not skipped.value():
            self._in_a_row.clear()
            return
        self.skipped += 1
        self._in_a_row.append(batch.indices)
        if len(self._in_a_row) == BROKEN_IN_A_ROW:
            names = [self.source.name(int(i)) for i in torch.cat(list(self._in_a_row))[:6]]
            raise ValueError(
                f"the gradient was not finite in {BROKEN_IN_A_ROW} steps in a row, which moved nothing. Lower --lr, "
                f"use --precision fp32, or look at the pictures: {', '.join(names)}, ..."
            )

    def figures(self) -> dict[str, Any]:
        """Means since the last report, and what was newly found unreadable, over all processes; all of them must ask.

        In metrics.jsonl the names outlive the process: a resumed run still knows what was met before.
        """
        means = {f"train_{name}": value for name, value in self._means(self.world.sum(self._sums.clone())).items()}
        new = [name for name in self.all_unreadable() if name not in self._told]
        self._told.update(new)
        return {**means, "train_unreadable": len(self._told), "unreadable": new}

    def glance(self) -> dict[str, float]:
        """The same of this process alone, to be shown."""
        return self._means(self._sums)

    def _means(self, sums: Tensor) -> dict[str, float]:
        loss, right, count = sums.tolist()
        seconds = max(time.perf_counter() - self._started, 1e-9)
        return {
            "loss": loss / count if count else math.nan,
            **({self.counted: right / max(count, 1)} if self.counted is not None else {}),
            "images_per_second": self._images / seconds,
        }

    def all_unreadable(self) -> list[str]:
        """Over all processes."""
        everyone: dict[str, None] = {}
        for names in self.world.gather(list(self.unreadable)):
            everyone |= dict.fromkeys(names)
        return list(everyone)


class _Later:
    """A number on its way from the device. Asking the device itself would wait for all that it was given since."""

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


class Interrupted(Exception):
    """A run was asked to stop, and has saved where it was."""

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


@contextmanager
def stop_signals() -> Iterator[Callable[[], int]]:
    """Ctrl-C and SIGTERM set a number that the loop asks for after every step; a second Ctrl-C stops at once."""
    caught = 0

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal caught
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught = number

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, remember) for number in numbers]
    try:
        yield lambda: caught
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
