"""Metrics of a run while it trains: sums over steps, metrics.jsonl with one line per epoch, and TensorBoard."""

import functools
import json
import math
import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.common.atomic_files import atomic_file
from vitreous.common.untrusted_files import parse_json
from vitreous.data.loader import Batch
from vitreous.data.sources.base import Source
from vitreous.training.distributed import World

NONFINITE_STEPS = 3  # in a row that end a run


@dataclass(frozen=True)
class StepResult:
    """Sums over the images of this process, on the device: reading them waits for it."""

    loss: Tensor
    metric: Tensor
    count: Tensor
    skipped: Tensor  # 1 if the gradient was not finite and the weights were not updated


class Monitor:
    """Sums since the last report. Only `metrics` waits for the device, and `check`, which is one step late."""

    def __init__(self, world: World, source: Source, train_metric: str | None = "top1"):
        self.world, self.source, self.train_metric = world, source, train_metric
        self.unreadable: dict[str, None] = {}  # an ordered set
        self._reported: set[str] = set()  # those of them in earlier rows
        self.skipped = 0
        self._nonfinite: deque[Tensor] = deque(maxlen=NONFINITE_STEPS)  # indices of their images
        self._pending: tuple[_AsyncNumber, Batch] | None = None
        self.reset()

    def reset(self) -> None:
        self._sums = torch.zeros(3, device=self.world.device)
        self._started, self._images = time.perf_counter(), 0

    def add(self, result: StepResult, batch: Batch) -> None:
        self._sums += torch.where(result.skipped > 0, 0, torch.stack([result.loss, result.metric, result.count]))
        self._images += len(batch.labels) * self.world.size
        self.unreadable |= dict.fromkeys(batch.problems)
        self.check()
        self._pending = (_AsyncNumber(result.skipped), batch)

    def check(self) -> None:
        """Wait for the step before the last, while the device computes the last one."""
        if self._pending is None:
            return
        (skipped, batch), self._pending = self._pending, None
        if not skipped.value():
            self._nonfinite.clear()
            return
        self.skipped += 1
        self._nonfinite.append(batch.indices)
        if len(self._nonfinite) == NONFINITE_STEPS:
            names = [self.source.name(int(i)) for i in torch.cat(list(self._nonfinite))[:6]]
            raise ValueError(
                f"the gradient was not finite in {NONFINITE_STEPS} steps in a row, which were skipped: lower --lr, "
                f"use --precision fp32, or check the images {', '.join(names)}, ..."
            )

    def metrics(self) -> dict[str, Any]:
        """Means since the last report and new unreadable images, over all processes. Every process calls this.

        The names go to metrics.jsonl, so that a resumed run still knows them.
        """
        means = {f"train_{name}": value for name, value in self._means(self.world.sum(self._sums.clone())).items()}
        new = [name for name in self.all_unreadable() if name not in self._reported]
        self._reported.update(new)
        return {**means, "train_unreadable": len(self._reported), "unreadable": new}

    def local_metrics(self) -> dict[str, float]:
        """Means of this process alone, for the display."""
        return self._means(self._sums)

    def _means(self, sums: Tensor) -> dict[str, float]:
        loss, metric, count = sums.tolist()
        seconds = max(time.perf_counter() - self._started, 1e-9)
        return {
            "loss": loss / count if count else math.nan,
            **({self.train_metric: metric / max(count, 1)} if self.train_metric is not None else {}),
            "images_per_second": self._images / seconds,
        }

    def all_unreadable(self) -> list[str]:
        """Unreadable images of all processes. Every process calls this."""
        everyone: dict[str, None] = {}
        for names in self.world.gather(list(self.unreadable)):
            everyone |= dict.fromkeys(names)
        return list(everyone)


class _AsyncNumber:
    """A number that is copied from the device without waiting for later work of the device."""

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
    """Append a line and sync it to the disk. A line that a full disk cut off is removed."""
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
    """Read all rows. An incomplete last line, left by a crash, is skipped; any other invalid line is an error."""
    rows: list[dict[str, Any]] = []
    lines = path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        try:
            row = parse_json(line, where)
            if not isinstance(row, dict) or type(row.get("step")) is not int:
                raise ValueError(f"{where} has no step")
        except ValueError as error:
            if number == len(lines):
                break
            raise ValueError(f"{error}: delete that line to resume without it") from error
        rows.append(row)
    return rows


def drop_rows_after(path: Path, step: int) -> bool:
    """Drop rows of later steps, which will be written again, and an incomplete last line; True if there was one."""
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


def check_tensorboard() -> None:
    """Raise if TensorBoard is not installed: before the run, not after its first epoch."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise ValueError("--tensorboard needs a package that is not installed: pip install vitreous[track]") from None


def log_to_tensorboard(folder: Path, row: Mapping[str, Any]) -> None:
    """Write a row of metrics.jsonl as scalars."""
    writer = _writer(folder / "tensorboard")
    for name, value in row.items():
        if isinstance(value, int | float):
            writer.add_scalar(name, value, row["step"])
    writer.flush()


@functools.cache  # every writer starts a new file
def _writer(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))
