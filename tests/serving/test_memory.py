"""What is free goes back to the system, and not at every turn."""

import subprocess
import sys

import pytest

from vitreous.serving.memory import Tidy

if Tidy().trim is None:
    pytest.skip("this system's allocator is not glibc's", allow_module_level=True)

SCATTERED = """
import re
from pathlib import Path
from vitreous.serving.memory import Tidy

def memory():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1e3

pieces = [bytearray(64_000) for _ in range(3000)]
full = memory()
kept = pieces[::10]  # so that what is free lies between what is not
pieces.clear()
free = memory()
Tidy(every=0)()
print(full - free, free - memory(), len(kept))
"""


def test_what_is_free_between_what_is_not_is_given_back() -> None:
    """In a process of its own, whose memory nobody else has used."""
    said = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True, check=True).stdout
    by_itself, by_us, _ = map(float, said.split())
    assert by_itself < 100
    assert by_us > 100  # MB, of 192


def test_it_waits_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("vitreous.serving.memory.time.monotonic", lambda: now[0])
    tidy, calls = Tidy(every=10), []
    tidy.trim = calls.append
    for moment in (105, 109, 110, 119, 121, 122):
        now[0] = moment
        tidy()
    assert len(calls) == 2  # at 110 and at 121
