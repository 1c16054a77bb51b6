"""Reports the progress of long computations to a callback."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
SECONDS = 20.0  # between the lines of `ProgressLines`
Report = Callable[[str, int, int], None]  # stage, number of finished items, total number of items


def silent(stage: str, done: int, total: int) -> None:
    """Ignore a progress report."""


def tracked(items: Iterable[T], stage: str, total: int, report: Report) -> Iterator[T]:
    """Yield the items, and report each item as finished when the next one is requested.

    >>> for item in tracked("ab", "letters", 2, print):
    ...     print(item)
    letters 0 2
    a
    letters 1 2
    b
    letters 2 2
    """
    report(stage, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        report(stage, done, total)


class ProgressLines:
    """Logs the progress of a stage every SECONDS seconds. Short stages log nothing."""

    def __init__(self, log: Callable[[str], None]):
        self.log, self.stage = log, ""
        self.started = self.logged = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done == 0 or stage != self.stage:
            self.stage, self.started, self.logged = stage, now, now
        elif now - self.logged > SECONDS:
            self.logged = now
            self.log(f"  {stage}: {done:,} of {total:,}, {done / (now - self.started):,.0f} images/s")
