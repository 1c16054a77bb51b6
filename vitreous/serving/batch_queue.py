"""The server's scheduler: bounded queues, batches, priorities and worker threads.

Images to classify, embed or segment share a queue with two threads: one thread decodes a batch while the other runs
the model. All images of a batch belong to the same group. A batch is closed when it is full, or when its first image
has waited long enough. Large images take seconds and a lot of memory to decode. They are processed one at a time and
may fill only part of the queue, so that one thread is always available for small images.

Explanations and computations for the page use a second queue with one thread, and the shortest computation runs first.
Shorter computations also run between the steps of longer computations. Requests for the same result share one
computation.

Requests get status 429 if the queue is full and 503 if the result takes too long. A job whose requests were all
cancelled is removed from its queue or stopped at its next step.
"""

import asyncio
import ctypes
import itertools
import sys
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from fastapi import Request

from vitreous.serving.errors import CLIENT_DISCONNECTED, ApiError, logger, too_many_requests
from vitreous.serving.metrics import Metrics

BATCH_WORKERS = 2
LARGE_FRACTION = 4  # large images may fill a quarter of the queue
JOIN_SECONDS = 2.0  # how long stop() waits for each thread
TRIM_SECONDS = 10.0

Step = Callable[[], None]  # called between the steps of a long computation; may raise Cancelled
Work = Callable[[Step], Any]
Compute = Callable[[Sequence[bytes]], Sequence[Any]]  # one result or exception per image


# ---- Queues ----------------------------------------------------------------------------------------------------------


class Priority(IntEnum):
    """Rough duration of a computation. Shorter computations run first."""

    QUICK = 0  # a forward pass or less
    MEDIUM = 1  # a few forward passes
    LONG = 2  # about a hundred forward passes


class Cancelled(Exception):
    """Raised if all requests for a computation were cancelled or the server is shutting down."""


@dataclass(order=True)
class _Job:
    priority: Priority
    number: int  # sequence number: first come, first served
    work: Callable[[Sequence["_Job"], Step], Sequence[Any]] = field(compare=False)
    key: Hashable = field(compare=False, default=None)  # requests with the same key share the job
    group: Hashable = field(compare=False, default=None)  # jobs of one group may share a batch; None is never batched
    image: bytes = field(compare=False, default=b"")
    large: bool = field(compare=False, default=False)
    since: float = field(compare=False, default_factory=time.monotonic)
    waiters: list["asyncio.Future[Any]"] = field(compare=False, default_factory=list)


class _Lane:
    """A bounded queue and its worker threads."""

    def __init__(self, name: str, workers: int, torch_threads: int):
        self.name, self.workers, self.torch_threads = name, workers, torch_threads
        self.queue: list[_Job] = []  # sorted by priority and number
        self.threads: list[threading.Thread] = []
        self.changed = threading.Condition()
        self.gathering = threading.Lock()  # only one worker waits for a batch to fill
        self.large_running = False
        self.closed = False

    def next(self) -> _Job | None:
        """Return the first job that may run now, or None if there is no such job."""
        return next((job for job in self.queue if not (job.large and self.large_running)), None)


class Scheduler:
    """Runs batches and other computations in worker threads. At most `room` jobs wait in each lane."""

    def __init__(self, max_batch: int, max_wait: float, room: int, metrics: Metrics, torch_threads: int = 1):
        self.max_batch, self.max_wait, self.room, self.metrics = max_batch, max_wait, room, metrics
        self.trim_memory = MemoryTrimmer()
        self._images = _Lane("batch", BATCH_WORKERS, torch_threads)
        self._computations = _Lane("inspect", 1, torch.get_num_threads())
        self._shared: dict[Hashable, _Job] = {}  # only accessed in the event loop
        self._numbers = itertools.count()
        self._waiting_requests = 0  # requests waiting for a batch
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """Number of images waiting for a batch."""
        return len(self._images.queue)

    @property
    def full(self) -> bool:
        return self.waiting >= self.room

    # ---- In the event loop ----

    async def batch(self, group: Hashable, image: bytes, compute: Compute, large: bool = False) -> Any:
        """Return the result of `compute` for this image, which is batched with other images of the same group."""

        def work(jobs: Sequence[_Job], step: Step) -> Sequence[Any]:
            began = time.monotonic()
            self.metrics.batch(len(jobs))
            try:
                return list(compute([job.image for job in jobs]))
            except Exception as error:
                logger.error("a batch failed (batch size %d)", len(jobs), exc_info=error)
                return [ApiError(503, "failed", "the model raised an error; see the server log")] * len(jobs)
            finally:
                self.metrics.computed(time.monotonic() - began)

        number = next(self._numbers)
        job = _Job(Priority.QUICK, number, work, group=None if large else (group,), image=image, large=large)
        self._waiting_requests += 1
        try:
            return await self._result(self._images, job, new=True)
        finally:
            self._waiting_requests -= 1

    async def run(self, key: Hashable, work: Work, priority: Priority) -> Any:
        """Return the result of `work`, which is computed only once for all waiting requests with the same key."""
        if (job := self._shared.get(key)) is not None:
            return await self._result(self._computations, job, new=False)
        job = _Job(priority, next(self._numbers), lambda jobs, step: [work(step)], key)
        return await self._result(self._computations, job, new=True)

    async def stop(self) -> None:
        """Finish pending batches, cancel other computations and stop the threads."""
        for lane in (self._images, self._computations):
            with lane.changed:
                lane.closed = True
                lane.changed.notify_all()
                cancelled = [] if lane is self._images else lane.queue.copy()
                lane.queue = lane.queue[len(cancelled) :]
            if cancelled:
                self._deliver(deque((job, stopping()) for job in cancelled))
        while self._waiting_requests:
            await asyncio.sleep(0.01)
        for thread in (*self._images.threads, *self._computations.threads):
            await asyncio.to_thread(thread.join, JOIN_SECONDS)

    def _enqueue(self, lane: _Lane, job: _Job) -> None:
        self._loop = asyncio.get_running_loop()
        with lane.changed:
            if lane.closed:
                raise stopping()
            if len(lane.queue) >= self.room:
                raise too_many_requests()
            if job.large and sum(other.large for other in lane.queue) >= max(self.room // LARGE_FRACTION, 1):
                raise too_many_requests("too many large images are waiting")
            insort(lane.queue, job)
            lane.changed.notify()
        for number in range(len(lane.threads), lane.workers):
            # Daemon threads, because a cancelled computation must not keep the process alive.
            name = f"vitreous-{lane.name}-{number}"
            lane.threads.append(threading.Thread(target=self._work, args=(lane,), name=name, daemon=True))
            lane.threads[-1].start()
        if job.key is not None:
            self._shared[job.key] = job

    async def _result(self, lane: _Lane, job: _Job, new: bool) -> Any:
        waiter = asyncio.get_running_loop().create_future()
        job.waiters.append(waiter)  # before a thread takes the job, because jobs without waiters are cancelled
        try:
            if new:
                self._enqueue(lane, job)
            return await waiter
        finally:
            job.waiters.remove(waiter)
            if not job.waiters:
                self._unshare(job)
                with lane.changed:
                    if job in lane.queue:
                        lane.queue.remove(job)

    def _deliver(self, results: deque[tuple[_Job, Any]]) -> None:
        """Deliver one result and schedule the next delivery, so that the event loop can serve requests in between."""
        job, result = results.popleft()
        self._unshare(job)
        for waiter in job.waiters:
            if waiter.done():
                continue
            if isinstance(result, Exception):
                waiter.set_exception(result)
            else:
                waiter.set_result(result)
        if results:
            assert self._loop is not None
            self._loop.call_soon(self._deliver, results)

    def _unshare(self, job: _Job) -> None:
        if self._shared.get(job.key) is job:
            del self._shared[job.key]

    # ---- In the threads ----

    def _work(self, lane: _Lane) -> None:
        torch.set_num_threads(lane.torch_threads)  # for this thread only
        while jobs := self._take(lane):
            self._compute(lane, jobs)
            self.trim_memory()

    def _take(self, lane: _Lane) -> list[_Job]:
        """Wait for the next batch. Return an empty list after shutdown."""
        with lane.gathering, lane.changed:
            while True:
                lane.changed.wait_for(lambda: lane.next() or (lane.closed and not lane.queue))
                first = lane.next()
                if first is None:
                    return []
                if jobs := self._gather(lane, first):
                    lane.large_running |= first.large
                    return jobs

    def _gather(self, lane: _Lane, first: _Job) -> list[_Job]:
        """Remove a batch from the queue. Return an empty list if its requests were cancelled in the meantime."""

        def batch() -> list[_Job]:
            if first.group is None:
                return [first]
            return [job for job in lane.queue if job.group == first.group][: self.max_batch]

        if first.group is not None:
            seconds = max(first.since + self.max_wait - time.monotonic(), 0)
            lane.changed.wait_for(lambda: lane.closed or len(batch()) >= self.max_batch, seconds)
        jobs = batch()
        taken = {job.number for job in jobs}
        lane.queue = [job for job in lane.queue if job.number not in taken]
        return jobs

    def _compute(self, lane: _Lane, jobs: list[_Job]) -> None:
        first = jobs[0]

        def step() -> None:
            if lane.closed or not first.waiters:
                raise Cancelled
            while shorter := self._take_shorter(lane, first.priority):
                self._compute(lane, [shorter])

        try:
            results = first.work(jobs, step)
        except Cancelled:
            results = [stopping()]
        except Exception as error:
            results = [error]
        if first.large:
            with lane.changed:
                lane.large_running = False
                lane.changed.notify_all()
        assert self._loop is not None
        with suppress(RuntimeError):  # the event loop has stopped
            self._loop.call_soon_threadsafe(self._deliver, deque(zip(jobs, results, strict=True)))

    def _take_shorter(self, lane: _Lane, priority: Priority) -> _Job | None:
        with lane.changed:
            return lane.queue.pop(0) if lane.queue and lane.queue[0].priority < priority else None


async def result_for(request: Request, result: Coroutine[Any, Any, Any], seconds: float, limit: float) -> Any:
    """Await `result`. Cancel the computation if the client disconnects, or after `seconds` (status 503).

    The request body must already have been read. `limit` is the timeout stated in the error message.
    """

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = [asyncio.ensure_future(result), asyncio.ensure_future(disconnect())]
    try:
        done, _ = await asyncio.wait(tasks, timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED)
        if tasks[0] in done:
            return tasks[0].result()
        if done:
            raise ApiError(CLIENT_DISCONNECTED, "client_disconnected", "the client disconnected")
        raise ApiError(503, "timeout", f"no result after {limit:g} s")
    finally:
        for task in tasks:
            task.cancel()


def stopping() -> ApiError:
    return ApiError(503, "stopping", "the server is shutting down")


class MemoryTrimmer:
    """Returns free memory to the operating system, at most once every `every` seconds.

    Batches vary in size, and glibc keeps freed buffers of every size for each thread. malloc_trim releases the buffers
    within milliseconds. Other allocators release memory automatically.
    """

    def __init__(self, every: float = TRIM_SECONDS):
        self.every, self.last = every, time.monotonic()
        self.trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None

    def __call__(self) -> None:
        if self.trim is not None and time.monotonic() - self.last >= self.every:
            self.trim(0)
            self.last = time.monotonic()
