import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from vitreous.serving.inspect.worker import Busy, Pace, Step, Stopped, Worker


async def never() -> None:
    await asyncio.Event().wait()


def with_worker(test: Callable[[Worker], Awaitable[Any]], room: int = 8) -> Any:
    """Runs a test in an event loop; no thread may be left."""
    worker = Worker(room)
    try:
        return asyncio.run(asyncio.wait_for(test(worker), 30))  # type: ignore[arg-type]
    finally:
        worker.close()
        assert "vitreous-inspect" not in {thread.name for thread in threading.enumerate()}


class Gate:
    """Work that has begun and waits, so that more comes while it does."""

    def __init__(self) -> None:
        self.begun, self.open = threading.Event(), threading.Event()

    def work(self, step: Step) -> str:
        self.begun.set()
        assert self.open.wait(20)
        step()
        return "gate"


def ask(worker: Worker, key: str, work: Callable[[Step], Any], pace: Pace = Pace.QUICK) -> "asyncio.Task[Any]":
    return asyncio.create_task(worker.run(key, work, pace, never))


def test_all_work_is_done_in_one_thread_in_its_order() -> None:
    async def test(worker: Worker) -> None:
        gate, done = Gate(), list[tuple[str, int]]()
        first = ask(worker, "gate", gate.work)
        await asyncio.to_thread(gate.begun.wait)
        note = lambda name: lambda step: done.append((name, threading.get_ident()))  # noqa: E731
        rest = [
            ask(worker, "long", note("long"), Pace.LONG),
            ask(worker, "quick 1", note("quick 1")),
            ask(worker, "medium", note("medium"), Pace.MEDIUM),
            ask(worker, "quick 2", note("quick 2")),
        ]
        await asyncio.sleep(0)
        gate.open.set()
        assert await first == "gate"
        await asyncio.gather(*rest)
        assert [name for name, _ in done] == ["quick 1", "quick 2", "medium", "long"]
        assert len({thread for _, thread in done} - {threading.get_ident()}) == 1

    with_worker(test)


def test_short_work_passes_long_work_between_its_steps() -> None:
    async def test(worker: Worker) -> None:
        gate, order = Gate(), list[str]()

        def long(step: Step) -> None:
            gate.work(step)
            order.append("long")

        ends = ask(worker, "long", long, Pace.LONG)
        await asyncio.to_thread(gate.begun.wait)
        others = [ask(worker, name, lambda step, name=name: order.append(name)) for name in "ab"]  # type: ignore[misc]
        others.append(ask(worker, "also long", lambda step: order.append("also long"), Pace.LONG))
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(ends, *others)
        assert order == ["a", "b", "long", "also long"]

    with_worker(test)


def test_what_several_ask_for_is_done_once() -> None:
    async def test(worker: Worker) -> None:
        gate, times = Gate(), list[int]()
        first = ask(worker, "gate", gate.work)
        await asyncio.to_thread(gate.begun.wait)

        def work(step: Step) -> int:
            times.append(1)
            return 42

        same = [ask(worker, "same", work) for _ in range(20)]  # more than there is room for
        await asyncio.sleep(0)
        gate.open.set()
        assert await asyncio.gather(*same) == [42] * 20
        assert len(times) == 1
        assert await first == "gate"
        assert await ask(worker, "same", work) == 42  # later it is done again
        assert len(times) == 2

    with_worker(test)


def test_no_more_wait_than_there_is_room_for() -> None:
    async def test(worker: Worker) -> None:
        gate = Gate()
        first = ask(worker, "gate", gate.work)
        await asyncio.to_thread(gate.begun.wait)
        waiting = [ask(worker, f"{i}", lambda step: 1) for i in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            await worker.run("one more", lambda step: 1, Pace.QUICK, never)
        waiting[0].cancel()  # leaves its place to another
        await asyncio.sleep(0)
        fourth = ask(worker, "in its place", lambda step: 2)
        await asyncio.sleep(0)
        gate.open.set()
        assert await asyncio.gather(first, *waiting[1:], fourth) == ["gate", 1, 1, 2]

    with_worker(test, room=3)


def test_work_that_nobody_waits_for_is_stopped_or_not_begun() -> None:
    async def test(worker: Worker) -> None:
        gate, began, reached = Gate(), list[str](), list[str]()
        leaves = asyncio.Event()

        async def gone() -> None:
            await leaves.wait()

        def long(step: Step) -> None:
            gate.work(step)
            reached.append("end")

        stopped = asyncio.create_task(worker.run("long", long, Pace.LONG, gone))
        await asyncio.to_thread(gate.begun.wait)
        unbegun = asyncio.create_task(worker.run("other", lambda step: began.append("other"), Pace.LONG, gone))
        stays = ask(worker, "stays", lambda step: "answer", Pace.LONG)
        await asyncio.sleep(0)
        leaves.set()
        for task in (stopped, unbegun):
            with pytest.raises(Stopped):
                await task
        gate.open.set()
        assert await stays == "answer"
        assert not began
        assert not reached

    with_worker(test)


def test_work_goes_on_as_long_as_one_waits() -> None:
    async def test(worker: Worker) -> None:
        gate = Gate()
        leaves = asyncio.create_task(worker.run("same", gate.work, Pace.LONG, lambda: asyncio.sleep(0)))
        stays = ask(worker, "same", gate.work, Pace.LONG)
        with pytest.raises(Stopped):
            await leaves
        await asyncio.to_thread(gate.begun.wait)
        gate.open.set()
        assert await stays == "gate"

    with_worker(test)


def test_errors_belong_to_those_who_asked() -> None:
    async def test(worker: Worker) -> None:
        def broken(step: Step) -> None:
            raise KeyError("broken")

        for _ in range(2):
            with pytest.raises(KeyError, match="broken"):
                await worker.run("broken", broken, Pace.QUICK, never)
        assert await worker.run("whole", lambda step: 7, Pace.QUICK, never) == 7

    with_worker(test)


def test_closing_stops_what_is_done_and_sends_away_who_waits() -> None:
    async def test(worker: Worker) -> None:
        gate = Gate()
        tasks = [ask(worker, "gate", gate.work, Pace.LONG)]
        await asyncio.to_thread(gate.begun.wait)
        tasks.append(ask(worker, "waits", lambda step: 1, Pace.LONG))
        await asyncio.sleep(0)
        closing = asyncio.create_task(asyncio.to_thread(worker.close))
        await asyncio.sleep(0.05)
        gate.open.set()
        await closing
        for task in tasks:
            with pytest.raises(Busy):
                await task
        with pytest.raises(Busy):
            await worker.run("later", lambda step: 1, Pace.QUICK, never)

    with_worker(test)
