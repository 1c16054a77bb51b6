import math
import os
import signal

import numpy as np
import pytest
import torch

from vitreous.common.distributed import World
from vitreous.data.loader import Batch
from vitreous.data.sources.base import ArraySource
from vitreous.training.progress import Monitor, StepResult
from vitreous.training.run import stop_signals

SOURCE = ArraySource(np.zeros((40, 2, 2, 3), np.uint8), np.zeros(40), ("a",), "set")


def monitor() -> Monitor:
    return Monitor(World(0, 1, torch.device("cpu")), SOURCE)


def batch(*indices: int, problems: tuple[str, ...] = ()) -> Batch:
    where = torch.tensor(indices)
    return Batch(
        torch.zeros(len(where), 3, 2, 2, dtype=torch.uint8), torch.zeros_like(where), where, where, 0, list(problems)
    )


def result(loss: float = 1.0, right: float = 1.0, count: float = 2.0, skipped: bool = False) -> StepResult:
    return StepResult(*(torch.tensor(number) for number in (loss, right, count, float(skipped))))


def test_means_are_over_images_of_steps_not_skipped() -> None:
    ours = monitor()
    ours.add(result(loss=6.0, right=1.0, count=2.0), batch(0, 1))
    ours.add(result(loss=math.nan, right=0.0, count=2.0, skipped=True), batch(2, 3))
    ours.add(result(loss=4.0, right=3.0, count=3.0), batch(4, 5, 6))
    figures = ours.metrics()
    assert figures["train_loss"] == pytest.approx(2.0)
    assert figures["train_top1"] == pytest.approx(4 / 5)
    assert figures["train_images_per_second"] > 0
    ours.reset()
    assert math.isnan(ours.metrics()["train_loss"])  # nothing to average


def test_three_nonfinite_steps_in_a_row_stop_the_run_and_name_the_images() -> None:
    ours = monitor()
    for skipped in (True, True, False, True, True, True):  # what follows the break in the row is not enough by itself
        ours.add(result(skipped=skipped), batch(7, 8))
    assert ours.skipped == 4
    with pytest.raises(ValueError, match=r"not finite in 3 consecutive steps.*--lr.*set\[7\], set\[8\]"):
        ours.check()  # a step is read when the next one is under way


def test_unreadable_images_are_reported_once() -> None:
    ours = monitor()
    ours.add(result(), batch(0, 1, problems=("a.jpg: the file is empty",)))
    ours.add(result(), batch(2, 3, problems=("b.jpg: truncated", "a.jpg: the file is empty")))
    first = ours.metrics()
    assert first["unreadable"] == ["a.jpg: the file is empty", "b.jpg: truncated"]
    assert first["train_unreadable"] == 2
    ours.reset()
    ours.add(result(), batch(0, 1, problems=("c.jpg: truncated", "a.jpg: the file is empty")))
    second = ours.metrics()
    assert second["unreadable"] == ["c.jpg: truncated"]
    assert second["train_unreadable"] == len(ours.all_unreadable()[0]) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_recorded_and_handlers_restored(number: int) -> None:
    before = signal.getsignal(number)
    with stop_signals() as asked:
        assert asked() == 0
        os.kill(os.getpid(), number)
        assert asked() == number
    assert signal.getsignal(number) is before


def test_a_second_interrupt_stops_immediately() -> None:
    with stop_signals():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
