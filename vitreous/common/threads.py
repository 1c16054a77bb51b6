"""Thread settings to apply before importing torch, and the number of cores."""

import os


def spin_briefly() -> None:
    """Let OpenMP threads sleep after microseconds of spinning instead of milliseconds.

    A spinning thread occupies a core that other programs or decoding workers need. With this setting, a ViT-Ti/16 step
    on two busy cores takes 0.55 to 1.1 s instead of 2.4 to 3.1 s.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
