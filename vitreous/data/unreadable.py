"""Images that cannot be read, and the limits that keep one image from using up a machine's memory."""

import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, UnidentifiedImageError

from vitreous.model.checks import Size

# Larger pictures are rejected by their header: a small file can ask for all of a machine's memory. Pillow's limit.
MAX_PIXELS = 178_956_970
MAX_BYTES = 1 << 30  # of memory to decode one picture, estimated from its header
LARGE_BYTES = 1 << 27  # pictures that need more are decoded one at a time in a process


class UnreadableImage(ValueError):
    """A picture that cannot be read, and why. The caller knows its name."""


_large = threading.Lock()


def _new_lock() -> None:
    """Replace the lock in a forked worker: another thread of the parent may have held it."""
    global _large
    _large = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def check_memory(size: Size, needed: int) -> None:
    """Reject a picture of this size, before it is decoded, if it has too many pixels or needs too much memory."""
    shown = f"{size[0]} x {size[1]} pixels"
    if math.prod(size) > MAX_PIXELS:
        raise UnreadableImage(f"{shown} are more than {MAX_PIXELS:,}: too large to be decoded safely")
    if needed > MAX_BYTES:
        limit = f"more than the limit of {MAX_BYTES >> 20:,} MiB"
        raise UnreadableImage(f"{shown} need {needed >> 20:,} MiB to decode, {limit}: too large to be decoded safely")


@contextmanager
def take_turn(needed: int) -> Iterator[None]:
    """Let large pictures wait for each other, so that many of them at once cannot use up the memory."""
    if needed > LARGE_BYTES:
        with _large:
            yield
    else:
        yield


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
