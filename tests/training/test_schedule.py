import math
from itertools import pairwise

import pytest

from vitreous.training import Optim
from vitreous.training.optimizer_step import rate_fraction


def shares(total: int, **optim: object) -> list[float]:
    return [rate_fraction(step, total, Optim(**optim)) for step in range(total)]  # type: ignore[arg-type]


def test_warm_up_rises_to_the_peak() -> None:
    values = shares(100, warmup=0.1)
    assert values[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert max(values) == 1
    assert all(a >= b for a, b in pairwise(values[9:]))


def test_cosine_and_linear_end_at_final_lr() -> None:
    assert rate_fraction(1000, 1000, Optim(schedule="cosine", warmup=0, final_lr=0.1)) == pytest.approx(0.1)
    assert rate_fraction(500, 1000, Optim(schedule="cosine", warmup=0)) == pytest.approx(0.5)
    assert rate_fraction(250, 1000, Optim(schedule="cosine", warmup=0)) == pytest.approx(
        (1 + math.cos(math.pi / 4)) / 2
    )
    assert rate_fraction(250, 1000, Optim(schedule="linear", warmup=0, final_lr=0.2)) == pytest.approx(0.8)


def test_rsqrt_decays_and_cools_down_to_zero() -> None:
    optim = Optim(schedule="rsqrt", warmup=0.1, cooldown=0.2)
    share = [rate_fraction(step, 1000, optim) for step in range(1000)]
    assert share[400] == pytest.approx(0.5)  # four times the warm-up: half
    assert share[99] == pytest.approx(1, abs=0.01)
    assert share[799] == pytest.approx(share[800], rel=0.01)  # no jump where the cool-down begins
    assert share[999] < 0.005
    assert all(abs(a - b) < 0.02 for a, b in pairwise(share))


def test_constant_and_no_warm_up() -> None:
    assert shares(5, schedule="constant", warmup=0) == [1.0] * 5
    assert rate_fraction(0, 1, Optim(warmup=0.05)) == 1.0  # a run of one step learns
