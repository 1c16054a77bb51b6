"""Runs studies one after another on a CPU, or in parallel processes that share a GPU, until a time limit.

Results are stored after every run, so the command can be repeated until all runs are finished. A run does not start if
it would probably not finish in time. A run that is still training at the limit saves a checkpoint and is resumed later.
"""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median

import torch

from recipes.finished_run import finished
from recipes.studies.flops import stage_flops
from recipes.studies.records import Record, digest, fingerprint, missing, origin_of, settings, stage_keys
from recipes.studies.study import Run, Scale, Study, Trained, machine, write_images
from vitreous.common.device import choose_device
from vitreous.common.threads import cores
from vitreous.training.run import Interrupted

MOST_FAILURES = 3  # in a row; the session then stops


@dataclass(frozen=True)
class Planned:
    """A run of a study that has no result yet."""

    study: Study
    scale: Scale
    run: Run
    fingerprint: str
    keys: tuple[str, ...]  # of its stages
    flops: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.study.name}: {self.run.curve}, {self.run.x}, seed {self.run.seed}"

    def seconds(self, trained: Callable[[str], bool]) -> float:
        """Estimate the duration, without stages that are already trained."""
        scale = self.scale
        todo = [flops for key, flops in zip(self.keys, self.flops, strict=True) if not trained(key)]
        return sum(flops / scale.rate + scale.overhead for flops in todo) + 0.1


@dataclass(frozen=True)
class Place:
    """Where runs are trained."""

    work: Path
    data_root: Path | None
    device: str
    jobs: int

    def folder(self, key: str) -> Path:
        return self.work / "stages" / key

    def trained(self, key: str) -> bool:
        return (self.folder(key) / "metrics.json").exists()


def plan(studies: Sequence[Study], scale: Scale, results: Path) -> list[Planned]:
    """Return the runs without a current result: all runs of the first seed, then of the next."""
    todo = [(study, run) for study in studies for run in missing(study, scale, results)]
    todo.sort(key=lambda pair: pair[1].seed)  # stable
    return [
        Planned(
            study, scale, run, fingerprint(study, run, scale), stage_keys(run, scale), tuple(stage_flops(run.stages))
        )
        for study, run in todo
    ]


# ---- One run, in a worker process ------------------------------------------------------------------------------------


def measure_run(place: Place, planned: Planned, seconds: float | None) -> Record | None:
    """Train the stages of a run and measure the last one. Return None if it was interrupted or ran out of time."""
    run, scale = planned.run, planned.scale
    log = place.work / "logs" / f"{planned.keys[-1]}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    device = str(choose_device(place.device))
    try:
        with time_limit(seconds), open(log, "a") as file, contextlib.redirect_stdout(file):
            metrics, init, data = [], None, Path()
            for stage, key in zip(run.stages, planned.keys, strict=True):
                data = images_of(scale, place, stage.images, run.seed)
                config = dataclasses.replace(stage.config, data=data, device=device, out=place.folder(key), init=init)
                metrics.append(finished(config))
                init = place.folder(key) / "best"
            last = Trained(scale, run, place.folder(planned.keys[-1]), metrics[-1], data, device)
            points = planned.study.measure(last)
    except (Interrupted, KeyboardInterrupt):
        return None
    return Record(
        curve=run.curve,
        x=run.x,
        seed=run.seed,
        points=points,
        fingerprint=planned.fingerprint,
        seconds=round(sum(stage["seconds"] for stage in metrics), 2),
        jobs=place.jobs,
        tflops=round(sum(planned.flops) / 1e12, 3),
        machine=machine(device),
        torch=torch.__version__,
        stages=[settings(stage, first=i == 0) for i, stage in enumerate(run.stages)],
    )


def images_of(scale: Scale, place: Place, count: int, seed: int) -> Path:
    """Return the file with the training images of a run. Each seed has its own images, unless all are used."""
    seed = 0 if count == scale.train else seed
    path = place.work / "data" / f"{scale.data}-{count}-{seed}-{digest(origin_of(scale))}.npz"
    if not path.exists():
        write_images(scale, place.data_root, count, seed, path)
    return path


@contextlib.contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Send SIGINT to this process after `seconds`. Training then saves a checkpoint and stops."""
    if seconds is None or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# ---- A session -------------------------------------------------------------------------------------------------------


class InThisProcess(Executor):
    """Executes every call immediately."""

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        future: Future[Record | None] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


def workers(jobs: int) -> Executor:
    """Return an executor with `jobs` processes, which import torch only once. With one job, use this process."""
    if jobs == 1:
        return InThisProcess()
    threads = max(cores() // jobs, 1)
    return ProcessPoolExecutor(jobs, get_context("spawn"), initializer=torch.set_num_threads, initargs=(threads,))


Execute = Callable[[Planned, float | None], Record | None]


@dataclass
class Session:
    """Starts runs while they fit into the time limit. `execute` measures a run, `store` keeps its result."""

    execute: Execute
    store: Callable[[Planned, Record], None]
    trained: Callable[[str], bool]
    executor: Executor
    jobs: int = 1
    limit: float | None = None  # seconds
    clock: Callable[[], float] = time.monotonic
    report: Callable[[str], None] = print

    def run(self, todo: Sequence[Planned]) -> list[Planned]:
        """Measure runs. Return those without a result."""
        start, waiting = self.clock(), list(todo)
        active: dict[Future[Record | None], tuple[Planned, float, float]] = {}  # with start time and estimate
        factors: list[float] = []  # measured durations divided by their estimates
        left: list[Planned] = []
        failures, stopped = 0, False
        while True:
            factor = median(factors) if factors else float(self.jobs)  # runs share the device
            for planned in list(waiting):
                now = self.clock()
                if stopped or len(active) == self.jobs:
                    break
                estimate = planned.seconds(self.trained)
                remaining = None if self.limit is None else start + self.limit - now
                busy = {key for other, *_ in active.values() for key in other.keys if not self.trained(key)}
                if busy & set(planned.keys) or (remaining is not None and estimate * factor > remaining):
                    continue
                waiting.remove(planned)
                future = self.executor.submit(self.execute, planned, remaining)
                active[future] = planned, now, estimate
                if future.done():  # executed in this process: update the factor
                    break
            if not active:
                return left + waiting
            for future in wait(active, return_when=FIRST_COMPLETED).done:
                planned, began, estimate = active.pop(future)
                seconds = self.clock() - began
                if error := future.exception():
                    self.report(f"{planned.name}: failed: {error}")
                    left.append(planned)
                    failures += 1
                    stopped |= failures == MOST_FAILURES
                elif (record := future.result()) is None:
                    self.report(f"{planned.name}: interrupted")
                    left.append(planned)
                    stopped = True
                else:
                    self.store(planned, record)
                    factors.append(seconds / estimate)
                    failures = 0
                    values = ", ".join(f"{point.value:.4g}" for point in record.points[:4])
                    self.report(f"{planned.name}: {values} ({seconds:.0f} s)")
