"""Reports the progress of long computations to a callback."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
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
