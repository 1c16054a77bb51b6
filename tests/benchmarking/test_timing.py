"""Contenders alternate within a time limit, and errors of one do not affect the others. The clock is simulated."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from vitreous.benchmarking.timing import MOST_STEPS, ROUND_SECONDS, TIME_LIMIT, Contender, Skip, alternate


@dataclass
class Simulation:
    """A clock that advances by the seconds of set-ups and steps, and a log of what ran."""

    now: float = 0.0
    log: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def contender(self, name: str, set_up: float, step: float, fails_in_round: int | None = None) -> Contender:
        def prepare(this: Contender) -> Callable[[int], None]:
            self.now += set_up
            return run

        def run(count: int) -> None:
            self.now += count * step
            self.log.append(name)
            if fails_in_round is not None and self.log.count(name) == fails_in_round + 1:  # the first call is a warm-up
                raise MemoryError("too large")

        return Contender(name, "eager", prepare)

    def run(self, contenders: list[Contender], rounds: int, seconds: float) -> int:
        return alternate(contenders, rounds, seconds, self.log.append, self.clock)


def test_order_alternates_and_times_are_exact() -> None:
    simulation = Simulation()
    contenders = [simulation.contender("a", 1, 0.5), simulation.contender("b", 2, 0.001)]
    assert simulation.run(contenders, 3, 100) == 3
    order = [line for line in simulation.log if line in ("a", "b")]
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b"]
    a, b = contenders
    assert a.times == pytest.approx([0.5] * 3)
    assert b.times == pytest.approx([0.001] * 3)
    assert (a.steps, b.steps) == (1, MOST_STEPS)
    assert a.set_up_seconds == pytest.approx(1.5)
    assert b.steps * 0.001 <= ROUND_SECONDS


def test_late_set_ups_are_skipped_and_one_round_always_runs() -> None:
    simulation = Simulation()
    contenders = [simulation.contender(name, 40, 30) for name in "abc"]
    assert simulation.run(contenders, 5, 100) == 1
    assert [one.error for one in contenders] == ["", TIME_LIMIT, TIME_LIMIT]
    assert contenders[0].times == [30]
    assert not contenders[1].times
    assert any("1 of 5 rounds" in line for line in simulation.log)


@pytest.mark.parametrize(("seconds", "rounds"), [(23, 1), (33, 3), (1000, 4)])
def test_rounds_end_before_the_limit(seconds: float, rounds: int) -> None:
    simulation = Simulation()
    assert simulation.run([simulation.contender("a", 10, 5)], 4, seconds) == rounds
    assert simulation.now <= seconds or rounds == 1


def test_failing_contenders_have_no_times() -> None:
    simulation = Simulation()

    def refuse(this: Contender) -> Callable[[int], None]:
        raise Skip("not supported")

    contenders = [
        simulation.contender("a", 1, 1, fails_in_round=2),
        Contender("b", "eager", refuse),
        simulation.contender("c", 1, 1),
    ]
    assert simulation.run(contenders, 3, 100) == 3
    assert [len(one.times) for one in contenders] == [0, 0, 3]
    assert [one.error for one in contenders] == ["MemoryError: too large", "skipped: not supported", ""]
