"""Thread settings, the number of cores, and function calls in threads.

The command line imports this module before torch, so that the settings take effect.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import TypeVar

from rich.progress import track

from vitreous.common.text import SafeConsole

S = TypeVar("S")
T = TypeVar("T")

CHUNK = 4096  # items submitted at a time


def spin_briefly() -> None:
    """Make idle OpenMP threads sleep after spinning for microseconds instead of milliseconds.

    A spinning thread occupies a core that other programs or decoding workers need. With this setting, a ViT-Ti/16 step
    on two busy cores takes 0.55 to 1.1 s instead of 2.4 to 3.1 s.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(function: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """Call a function on each item in a thread pool, and yield the results in the order of the items.

    Image decoders and torch release the GIL, so threads are as fast as processes.
    """
    with thread_pool(threads) as pool:
        yield from pool.map(function, items)


@contextmanager
def thread_pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads in which torch does not start more threads, because they already use all cores."""
    import torch

    def prepare() -> None:
        torch.set_num_threads(1)
        torch.get_num_threads()  # applies the number, which the default would replace in the first operation otherwise
        started.wait()

    before, started = torch.get_num_threads(), Barrier(threads)
    pool = ThreadPoolExecutor(threads, initializer=prepare)
    try:
        list(pool.map(int, range(threads)))  # starts all threads, which wait for each other
        torch.set_num_threads(before)  # a call in any thread also changes the default for new threads
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def map_in_threads(function: Callable[[S], T], items: Sequence[S], title: str) -> Iterator[T]:
    """Call `in_threads` with one thread per core. On a terminal, show a progress bar called `title`."""
    console = SafeConsole(stderr=True)
    chunks = (items[start : start + CHUNK] for start in range(0, len(items), CHUNK))
    results = (result for chunk in chunks for result in in_threads(function, chunk, cores()))
    yield from track(results, title, len(items), console=console, disable=not console.is_terminal)
