"""Threads that decode images. Decoders and torch release Python's lock, so threads are as fast as processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from rich.progress import track

from vitreous.common.text import SafeConsole
from vitreous.common.threads import cores

S = TypeVar("S")
T = TypeVar("T")

CHUNK = 4096  # items submitted at a time


def in_threads(function: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """Call a function for each item in threads, and yield the results in order."""
    before = torch.get_num_threads()
    # These threads already use all cores, so torch must not start more threads inside each of them.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # a call in any thread also changes the default for new threads


def map_in_threads(function: Callable[[S], T], items: Sequence[S], title: str) -> Iterator[T]:
    """Apply a function to all items in threads, with a progress bar, and yield the results in order."""
    console = SafeConsole(stderr=True)
    chunks = (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
    results = (result for chunk in chunks for result in in_threads(function, chunk, cores()))
    yield from track(results, title, len(items), console=console, disable=not console.is_terminal)
