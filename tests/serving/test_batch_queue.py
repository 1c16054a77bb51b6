"""Batches, priorities, cancellation, limits and shutdown of the scheduler."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from vitreous.serving import batch_queue
from vitreous.serving.batch_queue import BATCH_WORKERS, MemoryTrimmer, Priority, Scheduler, Step
from vitreous.serving.errors import ApiError
from vitreous.serving.metrics import Metrics

BAD = 1300  # an image that cannot be decoded


def new_scheduler(**changes: Any) -> Scheduler:
    options: dict[str, Any] = {"max_batch": 4, "max_wait": 0.02, "room": 100, "metrics": Metrics(), **changes}
    return Scheduler(**options)


def with_scheduler(use: Callable[[Scheduler], Awaitable[Any]], **changes: Any) -> Any:
    """Run `use` with a scheduler, which is stopped afterwards; no thread may remain."""

    async def run() -> Any:
        scheduler = new_scheduler(**changes)
        try:
            return await asyncio.wait_for(use(scheduler), 30)
        finally:
            await scheduler.stop()

    before = set(threading.enumerate())
    result = asyncio.run(run())
    assert not [one for one in threading.enumerate() if one not in before and one.name.startswith("vitreous")]
    return result


def image(number: int) -> bytes:
    return str(number).encode()


class Recorder:
    """Computes each image's number, records the batches, and may be held until `resume` is set."""

    def __init__(self, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.resume = threading.Event()
        if not held:
            self.resume.set()

    @property
    def seen(self) -> list[int]:
        return [number for batch in self.batches for number in batch]

    def __call__(self, images: Sequence[bytes]) -> list[Any]:
        self.batches.append([int(one) for one in images])
        self.resume.wait(20)
        return [ApiError(422, "unreadable_image", "bad") if int(one) == BAD else int(one) for one in images]


async def until(condition: Callable[[], Any]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


# ---- Batches ----


def test_each_image_gets_its_own_result_and_batches_are_shared() -> None:
    record = Recorder()

    async def use(scheduler: Scheduler) -> list[int]:
        return await asyncio.gather(*(scheduler.batch("a", image(number), record) for number in range(12)))

    assert with_scheduler(use) == list(range(12))
    assert sorted(record.seen) == list(range(12))
    assert all(len(batch) <= 4 for batch in record.batches)
    assert len(record.batches) < 12


def test_groups_are_not_mixed() -> None:
    even, odd = Recorder(), Recorder()

    async def use(scheduler: Scheduler) -> list[int]:
        jobs = [scheduler.batch(number % 2, image(number), odd if number % 2 else even) for number in range(20)]
        return await asyncio.gather(*jobs)

    assert with_scheduler(use) == list(range(20))
    assert {number % 2 for number in even.seen} == {0}
    assert {number % 2 for number in odd.seen} == {1}


def test_an_invalid_image_does_not_affect_its_batch() -> None:
    record = Recorder()

    async def use(scheduler: Scheduler) -> list[Any]:
        jobs = (scheduler.batch("a", image(number), record) for number in (12, BAD, 14))
        return await asyncio.gather(*jobs, return_exceptions=True)

    before, bad, after = with_scheduler(use, max_wait=0.2)
    assert (before, after) == (12, 14)
    assert isinstance(bad, ApiError)
    assert record.batches == [[12, BAD, 14]]


def test_a_failed_batch_is_logged_and_the_threads_continue(caplog: pytest.LogCaptureFixture) -> None:
    def fail(images: Sequence[bytes]) -> list[Any]:
        raise RuntimeError("out of memory")

    async def use(scheduler: Scheduler) -> int:
        for _ in range(2 * BATCH_WORKERS):
            with pytest.raises(ApiError, match="raised an error"):
                await scheduler.batch("bad", b"0", fail)
        return int(await scheduler.batch("good", b"7", Recorder()))

    assert with_scheduler(use) == 7
    assert "out of memory" in caplog.text


def test_a_full_queue_gives_429() -> None:
    record = Recorder(held=True)

    async def use(scheduler: Scheduler) -> list[Any]:
        running = [asyncio.create_task(scheduler.batch("a", image(number), record)) for number in range(BATCH_WORKERS)]
        await until(lambda: len(record.batches) == BATCH_WORKERS)
        waiting = [asyncio.create_task(scheduler.batch("a", image(10 + number), record)) for number in range(5)]
        answers = await asyncio.gather(*waiting[3:], return_exceptions=True)
        assert scheduler.full
        record.resume.set()
        assert await asyncio.gather(*running, *waiting[:3]) == [*range(BATCH_WORKERS), 10, 11, 12]
        return answers

    rejected = with_scheduler(use, max_batch=1, max_wait=0, room=3)
    assert [(one.status_code, one.code, one.headers) for one in rejected] == [(429, "busy", {"Retry-After": "1"})] * 2


def test_a_cancelled_image_is_not_computed() -> None:
    record = Recorder(held=True)

    async def use(scheduler: Scheduler) -> None:
        running = [asyncio.create_task(scheduler.batch("a", image(number), record)) for number in range(BATCH_WORKERS)]
        await until(lambda: len(record.batches) == BATCH_WORKERS)
        cancelled = asyncio.create_task(scheduler.batch("a", image(50), record))
        stays = asyncio.create_task(scheduler.batch("a", image(51), record))
        await until(lambda: scheduler.waiting == 2)
        cancelled.cancel()
        await until(lambda: scheduler.waiting == 1)
        record.resume.set()
        assert await stays == 51
        await asyncio.gather(*running)

    with_scheduler(use, max_batch=1, max_wait=0)
    assert 50 not in record.seen


def test_large_images_are_computed_one_at_a_time_while_small_ones_pass() -> None:
    """Large ones are held until all small ones have a result, which is impossible if they take both threads."""
    large, small = Recorder(held=True), Recorder()

    async def use(scheduler: Scheduler) -> list[int]:
        slow = [asyncio.create_task(scheduler.batch("a", image(n), large, large=True)) for n in range(16)]
        await asyncio.sleep(0.05)
        quick = [asyncio.create_task(scheduler.batch("a", image(n), small)) for n in range(100, 140)]
        assert await asyncio.wait_for(asyncio.gather(*quick), 10) == list(range(100, 140))
        assert large.batches == [[0]]
        large.resume.set()
        return await asyncio.gather(*slow)

    assert with_scheduler(use) == list(range(16))
    assert large.batches == [[number] for number in range(16)]


def test_large_images_may_fill_only_a_fraction_of_the_queue() -> None:
    record = Recorder(held=True)

    async def use(scheduler: Scheduler) -> list[Any]:
        slow = [asyncio.create_task(scheduler.batch("a", image(n), record, large=True)) for n in range(20)]
        await asyncio.sleep(0.05)
        quick = [asyncio.create_task(scheduler.batch("a", image(n), Recorder())) for n in range(100, 110)]
        assert await asyncio.wait_for(asyncio.gather(*quick), 10) == list(range(100, 110))
        record.resume.set()
        return await asyncio.gather(*slow, return_exceptions=True)

    answers = with_scheduler(use, room=16)
    rejected = [answer for answer in answers if isinstance(answer, ApiError)]
    assert {(error.status_code, error.code) for error in rejected} == {(429, "busy")}
    assert 20 - len(rejected) in (4, 5)  # a quarter of the queue waits; the first may have been taken out already


def test_stop_computes_waiting_images_and_ends_the_threads() -> None:
    record = Recorder(held=True)

    async def use(scheduler: Scheduler) -> list[Any]:
        jobs = [asyncio.create_task(scheduler.batch("a", image(number), record)) for number in range(7)]
        await asyncio.sleep(0.05)
        stop = asyncio.create_task(scheduler.stop())
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError, match="shutting down"):
            await scheduler.batch("a", b"8", record)
        record.resume.set()
        await stop
        return await asyncio.gather(*jobs)

    assert with_scheduler(use, max_batch=2, max_wait=5.0) == list(range(7))


def test_stop_does_not_wait_for_a_cancelled_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_queue, "JOIN_SECONDS", 0.1)
    record = Recorder(held=True)

    async def run() -> None:
        scheduler = new_scheduler(max_batch=1, max_wait=0)
        job = asyncio.create_task(scheduler.batch("a", image(1), record))
        await until(lambda: record.batches)
        job.cancel()
        await asyncio.wait([job])
        await asyncio.wait_for(scheduler.stop(), 15)

    try:
        asyncio.run(run())
        assert any(one.name.startswith("vitreous-batch") for one in threading.enumerate())  # still computing
    finally:
        record.resume.set()
    for one in threading.enumerate():
        if one.name.startswith("vitreous-batch"):
            one.join(20)


# ---- Computations with priorities ----


class Gate:
    """A computation that has begun and waits, so that more jobs arrive meanwhile."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def work(self, step: Step) -> str:
        self.begun.set()
        assert self.open.wait(20)
        step()
        return "gate"


def start(
    scheduler: Scheduler, key: str, work: Callable[[Step], Any], priority: Priority = Priority.QUICK
) -> "asyncio.Task[Any]":
    return asyncio.create_task(scheduler.run(key, work, priority))


def test_computations_run_in_one_thread_the_shortest_first() -> None:
    async def use(scheduler: Scheduler) -> None:
        gate, done = Gate(), list[tuple[str, int]]()
        first = start(scheduler, "gate", gate.work)
        await asyncio.to_thread(gate.begun.wait)
        note = lambda name: lambda step: done.append((name, threading.get_ident()))  # noqa: E731
        rest = [
            start(scheduler, "long", note("long"), Priority.LONG),
            start(scheduler, "quick 1", note("quick 1")),
            start(scheduler, "medium", note("medium"), Priority.MEDIUM),
            start(scheduler, "quick 2", note("quick 2")),
        ]
        await asyncio.sleep(0)
        gate.open.set()
        assert await first == "gate"
        await asyncio.gather(*rest)
        assert [name for name, _ in done] == ["quick 1", "quick 2", "medium", "long"]
        assert len({thread for _, thread in done} - {threading.get_ident()}) == 1

    with_scheduler(use)


def test_short_computations_run_between_the_steps_of_a_long_one() -> None:
    async def use(scheduler: Scheduler) -> None:
        gate, order = Gate(), list[str]()

        def long(step: Step) -> None:
            gate.work(step)
            order.append("long")

        first = start(scheduler, "long", long, Priority.LONG)
        await asyncio.to_thread(gate.begun.wait)
        others = [start(scheduler, name, lambda step, name=name: order.append(name)) for name in "ab"]  # type: ignore[misc]
        others.append(start(scheduler, "also long", lambda step: order.append("also long"), Priority.LONG))
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(first, *others)
        assert order == ["a", "b", "long", "also long"]

    with_scheduler(use)


def test_computations_do_not_delay_batches() -> None:
    async def use(scheduler: Scheduler) -> None:
        gate = Gate()
        first = start(scheduler, "gate", gate.work, Priority.LONG)
        await asyncio.to_thread(gate.begun.wait)
        assert await scheduler.batch("a", image(7), Recorder()) == 7
        gate.open.set()
        assert await first == "gate"

    with_scheduler(use)


def test_requests_with_the_same_key_share_a_computation() -> None:
    async def use(scheduler: Scheduler) -> None:
        gate, times = Gate(), list[int]()
        first = start(scheduler, "gate", gate.work)
        await asyncio.to_thread(gate.begun.wait)

        def work(step: Step) -> int:
            times.append(1)
            return 42

        same = [start(scheduler, "same", work) for _ in range(20)]  # more than there is room for
        await asyncio.sleep(0)
        gate.open.set()
        assert await asyncio.gather(*same) == [42] * 20
        assert len(times) == 1
        assert await first == "gate"
        assert await start(scheduler, "same", work) == 42  # computed again later
        assert len(times) == 2

    with_scheduler(use, room=8)


def test_a_full_queue_of_computations_gives_429() -> None:
    async def use(scheduler: Scheduler) -> None:
        gate = Gate()
        first = start(scheduler, "gate", gate.work)
        await asyncio.to_thread(gate.begun.wait)
        waiting = [start(scheduler, f"{i}", lambda step: 1) for i in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError) as caught:
            await scheduler.run("one more", lambda step: 1, Priority.QUICK)
        assert (caught.value.status_code, caught.value.code) == (429, "busy")
        waiting[0].cancel()  # frees its place
        await asyncio.sleep(0)
        fourth = start(scheduler, "in its place", lambda step: 2)
        await asyncio.sleep(0)
        gate.open.set()
        assert await asyncio.gather(first, *waiting[1:], fourth) == ["gate", 1, 1, 2]

    with_scheduler(use, room=3)


def test_a_cancelled_computation_stops_at_its_next_step_or_never_begins() -> None:
    async def use(scheduler: Scheduler) -> None:
        gate, began, reached = Gate(), list[str](), list[str]()

        def long(step: Step) -> None:
            gate.work(step)
            reached.append("end")

        stopped = start(scheduler, "long", long, Priority.LONG)
        await asyncio.to_thread(gate.begun.wait)
        unbegun = start(scheduler, "other", lambda step: began.append("other"), Priority.LONG)
        stays = start(scheduler, "stays", lambda step: "answer", Priority.LONG)
        await asyncio.sleep(0)
        for task in (stopped, unbegun):
            task.cancel()
        await asyncio.wait([stopped, unbegun])
        gate.open.set()
        assert await stays == "answer"
        assert not began
        assert not reached

    with_scheduler(use)


def test_a_computation_continues_if_one_request_still_waits() -> None:
    async def use(scheduler: Scheduler) -> None:
        gate = Gate()
        cancelled, stays = (start(scheduler, "same", gate.work, Priority.LONG) for _ in range(2))
        await asyncio.to_thread(gate.begun.wait)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        gate.open.set()
        assert await stays == "gate"

    with_scheduler(use)


def test_a_thread_that_is_faster_than_the_event_loop_does_not_cancel_the_computation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enqueue = Scheduler._enqueue

    def slowly(*arguments: Any) -> None:
        enqueue(*arguments)
        assert stepped.wait(10)

    stepped = threading.Event()
    monkeypatch.setattr(Scheduler, "_enqueue", slowly)

    def work(step: Step) -> str:
        try:
            step()
        finally:
            stepped.set()
        return "done"

    async def use(scheduler: Scheduler) -> None:
        assert await scheduler.run("a", work, Priority.LONG) == "done"

    with_scheduler(use)


def test_an_error_reaches_its_request_and_the_thread_continues() -> None:
    async def use(scheduler: Scheduler) -> None:
        def broken(step: Step) -> None:
            raise KeyError("broken")

        for _ in range(2):
            with pytest.raises(KeyError, match="broken"):
                await scheduler.run("broken", broken, Priority.QUICK)
        assert await scheduler.run("whole", lambda step: 7, Priority.QUICK) == 7

    with_scheduler(use)


def test_stop_cancels_computations_and_rejects_those_that_wait() -> None:
    async def use(scheduler: Scheduler) -> None:
        gate = Gate()
        tasks = [start(scheduler, "gate", gate.work, Priority.LONG)]
        await asyncio.to_thread(gate.begun.wait)
        tasks.append(start(scheduler, "waits", lambda step: 1, Priority.LONG))
        await asyncio.sleep(0)
        stop = asyncio.create_task(scheduler.stop())
        await asyncio.sleep(0.05)
        gate.open.set()
        await stop
        for task in tasks:
            with pytest.raises(ApiError, match="shutting down"):
                await task
        with pytest.raises(ApiError, match="shutting down"):
            await scheduler.run("later", lambda step: 1, Priority.QUICK)

    with_scheduler(use)


# ---- Memory ----

SCATTERED = """
import re
from pathlib import Path
from vitreous.serving.batch_queue import MemoryTrimmer

def memory():
    return int(re.search(r"VmRSS:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1e3

pieces = [bytearray(64_000) for _ in range(3000)]
full = memory()
kept = pieces[::10]  # so that free blocks lie between used ones
pieces.clear()
free = memory()
MemoryTrimmer(every=0)()
print(full - free, free - memory(), len(kept))
"""

needs_glibc = pytest.mark.skipif(MemoryTrimmer().trim is None, reason="the system's allocator is not glibc's")


@pytest.mark.slow
@needs_glibc
def test_free_memory_between_used_blocks_is_returned_to_the_system() -> None:
    """In a new process, whose memory is not fragmented yet."""
    output = subprocess.run([sys.executable, "-c", SCATTERED], capture_output=True, text=True, check=True).stdout
    by_free, by_trim, _ = map(float, output.split())
    assert by_free < 100
    assert by_trim > 100  # MB, of 192


@needs_glibc
def test_memory_is_trimmed_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("vitreous.serving.batch_queue.time.monotonic", lambda: now[0])
    trimmer, calls = MemoryTrimmer(every=10), []
    trimmer.trim = calls.append
    for moment in (105, 109, 110, 119, 121, 122):
        now[0] = moment
        trimmer()
    assert len(calls) == 2  # at 110 and at 121


def test_memory_is_trimmed_after_a_batch() -> None:
    calls: list[int] = []

    async def use(scheduler: Scheduler) -> int:
        scheduler.trim_memory.every, scheduler.trim_memory.trim = 0.0, calls.append
        return await scheduler.batch("a", image(1), Recorder())

    assert with_scheduler(use) == 1
    assert calls == [0]
