"""Randomly damaged files, which a reader must either read or reject with BadCheckpoint."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from vitreous.weights.io.errors import BadCheckpoint


@st.composite
def damaged(draw: st.DrawFn, samples: list[bytes]) -> bytes:
    """Change up to four bytes of a sample and possibly truncate it."""
    data = bytearray(draw(st.sampled_from(samples)))
    for place, byte in draw(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4)):
        data[int(place * len(data))] = byte
    end = draw(st.none() | st.floats(0, 1))
    return bytes(data if end is None else data[: int(end * len(data))])


def check_read_or_rejected(read: Callable[[Path], Any], file: Path, data: bytes) -> None:
    """Read a damaged file. Only a one-line BadCheckpoint that starts with the path may be raised."""
    file.write_bytes(data)
    message = str(file)
    try:
        repr(read(file))  # reads every number
    except BadCheckpoint as error:
        message = str(error)
    assert message.startswith(str(file))
    assert "\n" not in message
