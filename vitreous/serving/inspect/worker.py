"""One thread that looks inside models, beside the one that classifies: one piece of work after the other.

Work that nobody waits for any more is not begun or, between two of its steps, stopped. Long work lets shorter work pass
between its steps, so that a page stays alive while a map is being made. What several ask for is done once.
"""

import asyncio
import heapq
import threading
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch

LAST_STEP = 2.0  # seconds that close() waits for the current step to end

Step = Callable[[], None]  # called between two steps of some work
Work = Callable[[Step], Any]


class Pace(IntEnum):
    """How long some work takes, roughly; the shorter goes first."""

    QUICK = 0  # a pass through the model or less
    MEDIUM = 1  # a few of them
    LONG = 2  # a hundred


class Busy(Exception):
    """So much is waiting already that no more is taken."""


class Stopped(Exception):
    """Nobody waits for this work any more."""


@dataclass(order=True)
class _Job:
    pace: Pace
    number: int  # first come, first served
    key: Hashable = field(compare=False)
    work: Work = field(compare=False)
    waiting: int = field(default=0, compare=False)  # requests that want its answer
    answer: Future[Any] = field(default_factory=Future, compare=False)


class Worker:
    """`room`: how much may wait, beside what is being done. `threads`: of torch's, for one piece of work."""

    def __init__(self, room: int, threads: int = 1):
        self.room, self.threads = room, threads
        self._change = threading.Condition()
        self._line: list[_Job] = []  # a heap
        self._wanted: dict[Hashable, _Job] = {}  # waiting, being done, or done and about to be fetched
        self._count = 0
        self._thread: threading.Thread | None = None
        self._closed = False

    async def run(self, key: Hashable, work: Work, pace: Pace, gone: Callable[[], Coroutine[Any, Any, None]]) -> Any:
        """The answer of `work`. `gone` ends when whoever asks has gone away; then this raises Stopped."""
        job = self._join(key, work, pace)
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[Any]) -> None:  # called in the thread
            with suppress(RuntimeError):  # the loop has ended meanwhile, and with it all who waited
                loop.call_soon_threadsafe(done.set)

        job.answer.add_done_callback(tell)
        waits = {asyncio.ensure_future(gone()), asyncio.ensure_future(done.wait())}
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not job.answer.done():
                raise Stopped
            return job.answer.result()
        finally:
            for one in waits:
                one.cancel()
            self._leave(job)

    def close(self) -> None:
        """Stop the current work at its next step and refuse what waits; do not wait long for a step to end."""
        with self._change:
            self._closed = True
            self._change.notify()
        if self._thread is not None:
            self._thread.join(LAST_STEP)

    # ---- On the side of those who ask ----

    def _join(self, key: Hashable, work: Work, pace: Pace) -> _Job:
        with self._change:
            job = self._wanted.get(key)
            if job is None:
                if self._closed or len(self._line) >= self.room:
                    raise Busy
                self._count += 1
                job = self._wanted[key] = _Job(pace, self._count, key, work)
                heapq.heappush(self._line, job)
                self._change.notify()
            job.waiting += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="vitreous-inspect", daemon=True)
                self._thread.start()
            return job

    def _leave(self, job: _Job) -> None:
        with self._change:
            job.waiting -= 1
            if not job.waiting:
                del self._wanted[job.key]
                if job in self._line:
                    self._line.remove(job)
                    heapq.heapify(self._line)

    # ---- In the thread ----

    def _loop(self) -> None:
        torch.set_num_threads(self.threads)  # of this thread; those that classify have a number of their own
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closed or self._line)
                if self._closed:
                    left, self._line = self._line, []
                    break
                job = heapq.heappop(self._line)
            self._do(job)
        for job in left:
            job.answer.set_exception(Busy())

    def _do(self, job: _Job) -> None:
        def step() -> None:
            if self._closed or not job.waiting:
                raise Stopped
            while other := self._shorter_than(job):
                self._do(other)

        try:
            step()
            found = job.work(step)
        except Stopped:
            if self._closed:
                job.answer.set_exception(Busy())
        except BaseException as error:  # it belongs to those who asked; the thread goes on
            job.answer.set_exception(error)
        else:
            job.answer.set_result(found)

    def _shorter_than(self, job: _Job) -> _Job | None:
        with self._change:
            return heapq.heappop(self._line) if self._line and self._line[0].pace < job.pace else None
