"""Threads that decode images. Decoders and torch release Python's lock, so threads are as fast as processes."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


def in_threads(function: Callable[[S], T], items: Iterable[S], threads: int) -> Iterator[T]:
    """Call a function for each item in threads, and yield the results in order."""
    before = torch.get_num_threads()
    # The threads share the cores already; if each used more of them inside torch, they would wait for each other.
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    try:
        yield from pool.map(function, items)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(before)  # the setting of a thread also becomes the default of new ones
