"""Memory that nobody uses, given back to the system."""

import ctypes
import sys
import time

EVERY = 10.0  # seconds


class Tidy:
    """Now and then, while there is work.

    Batches differ in size, and so do the buffers that the model needs for them. glibc keeps those that are free, for
    each thread its own, and after a while has kept some of every size. It can be asked to let go of all of them, which
    takes milliseconds; other systems' allocators do so by themselves.
    """

    def __init__(self, every: float = EVERY):
        self.every, self.last = every, time.monotonic()
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

    def __call__(self) -> None:
        if self.trim is not None and time.monotonic() - self.last >= self.every:
            self.trim(0)
            self.last = time.monotonic()
