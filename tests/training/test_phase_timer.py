"""The seconds of a run are divided into phases."""

import pytest
import torch

from vitreous.data.loader import Batch
from vitreous.training.progress import PhaseTimer, phase_summary


class Clock:
    """Clock that is advanced by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_inner_phases_pause_outer_phases() -> None:
    clock = Clock()
    phases = PhaseTimer(clock)
    clock.now += 1
    with phases("steps"):
        clock.now += 2
        with phases("evaluation"):
            clock.now += 4
        clock.now += 8
    clock.now += 16
    seconds = phases.seconds()
    assert {name: number for name, number in seconds.items() if number} == {"set-up": 17, "steps": 10, "evaluation": 4}
    phases.add({"steps": 5, "report": 1})
    assert phases.seconds()["steps"] == 15
    assert phases.seconds()["report"] == 1


def test_waiting_for_batches_counts_as_data_time() -> None:
    clock = Clock()
    phases = PhaseTimer(clock)
    zero = torch.zeros(1, dtype=torch.long)
    batch = Batch(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), zero, zero, zero, 0, [])

    def slow():  # type: ignore[no-untyped-def]
        for _ in range(3):
            clock.now += 10
            yield batch

    with phases("steps"):
        for _ in phases.waiting(slow()):
            clock.now += 1
    assert phases.seconds()["data"] == 30
    assert phases.seconds()["steps"] == 3


def test_an_error_ends_its_phase() -> None:
    phases = PhaseTimer()
    with pytest.raises(ValueError, match="broken"), phases("steps"):
        raise ValueError("broken")
    assert phases.phase == "set-up"


def test_summary_omits_short_phases() -> None:
    assert phase_summary({"set-up": 0.1, "steps": 90.0, "evaluation": 9.9}) == "steps 1 min 30 s, evaluation 9.9 s"
