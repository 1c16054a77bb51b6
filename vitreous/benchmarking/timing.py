"""Times several systems alternately within a time limit, so that noise of the machine affects all of them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vitreous.common.text import single_spaced

SETUP_FRACTION = 0.6  # of the time limit; systems that are not set up by then are skipped
ROUND_SECONDS, MOST_STEPS = 0.3, 50  # of a system in a round
TIME_LIMIT = "skipped: time limit"

Clock = Callable[[], float]
Steps = Callable[[int], object]  # runs a number of steps and waits for the device


class Skip(Exception):
    """Raised by `Contender.prepare` if there is a reason not to measure a system."""


@dataclass
class Contender:
    """A system in one setting, and its measurements."""

    system: str
    setting: str
    prepare: Callable[["Contender"], Steps]  # builds, compiles and warms up; may set `difference` and `memory_bytes`
    difference: float | None = None
    memory_bytes: int | None = None
    steps: int = 0  # per round
    set_up_seconds: float = 0.0
    times: list[float] = field(default_factory=list)  # seconds per step, one for each round
    error: str = ""
    run: Steps | None = None  # None before the set-up and after an error

    @property
    def name(self) -> str:
        return f"{self.system}, {self.setting}"

    def set_up(self, clock: Clock) -> None:
        """Prepare, and choose the number of steps per round."""
        start = clock()
        self.run = self.prepare(self)
        began = clock()
        self.run(1)
        self.steps = min(max(int(ROUND_SECONDS / max(clock() - began, 1e-9)), 1), MOST_STEPS)
        self.set_up_seconds = clock() - start

    def measure(self, clock: Clock) -> None:
        if self.run is not None:
            start = clock()
            self.run(self.steps)
            self.times.append((clock() - start) / self.steps)

    def fail(self, error: Exception) -> None:
        reason = f"skipped: {error}" if isinstance(error, Skip) else f"{type(error).__name__}: {error}"
        self.run, self.error = None, single_spaced(reason, 300)
        self.times.clear()


def alternate(
    contenders: Sequence[Contender],
    rounds: int,
    seconds: float,
    report: Callable[[str], None],
    clock: Clock = time.perf_counter,
) -> int:
    """Set up all contenders, then measure them in up to `rounds` rounds in alternating order. Return the rounds run.

    When time is short, the last contenders are skipped first, then rounds; one round always runs. An error of one
    contender does not affect the others.
    """
    started = clock()
    for contender in contenders:
        if clock() - started > SETUP_FRACTION * seconds:
            contender.error = TIME_LIMIT
        else:
            _guarded(contender, contender.set_up, clock)
        after = "" if contender.error else f"ready after {contender.set_up_seconds:.1f} s"
        report(f"{contender.name}: {contender.error or after}")
    done, longest = 0, 0.0
    while done < rounds and (not done or clock() - started + longest <= seconds):
        began = clock()
        for contender in contenders[:: -1 if done % 2 else 1]:
            if _guarded(contender, contender.measure, clock):
                report(f"{contender.name}: {contender.error}")
        done, longest = done + 1, max(longest, clock() - began)
    if done < rounds:
        report(f"{done} of {rounds} rounds: time limit")
    return done


def _guarded(contender: Contender, work: Callable[[Clock], None], clock: Clock) -> bool:
    """Do some work for a contender. If it fails, record the error and return True."""
    try:
        work(clock)
    except Exception as error:  # out of memory, a compiler that fails, another version of a library
        contender.fail(error)
        return True
    return False
