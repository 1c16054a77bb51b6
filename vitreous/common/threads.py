"""How many threads there may be, and how torch's wait for each other. It has to act before torch is loaded."""

import os


def spin_briefly() -> None:
    """Let waiting threads sleep after microseconds of spinning, not after milliseconds as OpenMP does by itself.

    Beside other busy programs, or workers that decode, a thread that spins holds the core that the one it waits for
    needs: on two busy cores a step of ViT-Ti/16 took 2.4 to 3.1 s, and 0.55 to 1.1 s with this.
    """
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
