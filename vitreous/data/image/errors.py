"""Images that cannot be read, and the limits that keep one image from using up a machine's memory."""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from PIL import Image, UnidentifiedImageError

from vitreous.common.checks import Size

# Larger pictures are rejected by their header: a small file can ask for all of a machine's memory. Pillow's limit.
MAX_PIXELS = 178_956_970
# Memory to decode, estimated from headers: of one picture, and of all large ones that a process decodes together.
MAX_BYTES = 1 << 30
LARGE_BYTES = 1 << 27


class UnreadableImage(ValueError):
    """A picture that cannot be read, and why. The caller knows its name."""


class _Memory:
    """Lets threads decode large pictures at the same time as long as they need at most MAX_BYTES together."""

    def __init__(self) -> None:
        self._queue = threading.Lock()  # in order of arrival, or smaller pictures would keep the largest waiting
        self._change = threading.Condition()
        self._used = 0

    @contextmanager
    def reserved(self, needed: int) -> Iterator[None]:
        with self._queue, self._change:
            self._change.wait_for(lambda: not self._used or self._used + needed <= MAX_BYTES)
            self._used += needed
        try:
            yield
        finally:
            with self._change:
                self._used -= needed
                self._change.notify_all()


_memory = _Memory()


def _after_fork() -> None:
    """Begin anew in a forked worker: other threads of the parent may have held locks and memory."""
    global _memory
    _memory = _Memory()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_memory(size: Size, needed: int) -> None:
    """Reject a picture of this size, before it is decoded, if it has too many pixels or needs too much memory."""
    shown = f"{size[0]} x {size[1]} pixels"
    if math.prod(size) > MAX_PIXELS:
        raise UnreadableImage(f"{shown} are more than {MAX_PIXELS:,}: too large to be decoded safely")
    if needed > MAX_BYTES:
        limit = f"more than the limit of {MAX_BYTES >> 20:,} MiB"
        raise UnreadableImage(f"{shown} need {needed >> 20:,} MiB to decode, {limit}: too large to be decoded safely")


def reserve_memory(needed: int) -> AbstractContextManager[None]:
    """Let a large picture wait for the memory that others use. Small ones never wait."""
    return _memory.reserved(needed) if needed > LARGE_BYTES else nullcontext()


@contextmanager
def explained() -> Iterator[None]:
    """Decoders meet broken files with exceptions of all kinds; ours says why, in one line."""
    try:
        yield
    except (UnreadableImage, MemoryError):
        raise
    except UnidentifiedImageError:
        raise UnreadableImage("not a picture in a format that can be read") from None
    except Image.DecompressionBombError:
        raise UnreadableImage(f"more than {MAX_PIXELS:,} pixels: too large to be decoded safely") from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableImage(f"cannot be decoded: {reason}") from error
