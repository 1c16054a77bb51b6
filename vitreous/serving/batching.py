"""Batches requests that arrive one by one: a model is much faster with many images at once.

Requests wait in one bounded queue. Two threads take turns: one decodes the images of its batch while the other
computes, so neither the device nor the processor idles. A batch holds requests of one kind; it is closed when it is
full, or when its first request has waited long enough. Requests whose client has gone are skipped.

Large images take seconds and much memory to decode. They are computed one at a time by one of the threads, so the other
is always there for small ones, and they may take only a part of the queue.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from vitreous.serving.errors import ApiError, busy, logger
from vitreous.serving.memory import Tidy
from vitreous.serving.metrics import Metrics

WORKERS = 2
LARGE_PART = 4  # large images may take one part in so many of the queue
LAST_BATCH = 2.0  # seconds that stop() waits for a batch that nobody waits for any more

# Pictures in, and for each of them its answer or the error that it is; never an exception for one picture's sake.
Compute = Callable[[Sequence[bytes]], Sequence[Any]]


@dataclass(eq=False)
class _Question:
    kind: Hashable
    picture: bytes
    compute: Compute
    answer: "asyncio.Future[Any]"
    since: float
    large: bool
    dropped: bool = False


class Batcher:
    """`room`: questions that may wait, beside those that are being answered."""

    def __init__(self, max_batch: int, max_wait: float, room: int, metrics: Metrics, threads: int = 1):
        self.max_batch, self.max_wait, self.room = max_batch, max_wait, room
        self.metrics, self.threads = metrics, threads
        self._line: list[_Question] = []
        self._change = threading.Condition()
        self._gathering = threading.Lock()  # one worker at a time waits for a batch to fill
        self._closed = False
        self._tidy = Tidy()
        self._workers: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unanswered = 0  # questions that somebody waits for
        self._large_busy = False  # a large image is being computed

    @property
    def full(self) -> bool:
        return len(self._line) >= self.room

    @property
    def waiting(self) -> int:
        return len(self._line)

    # ---- In the event loop ----

    def start(self) -> None:
        """Called in the event loop that questions will come from."""
        self._loop = asyncio.get_running_loop()
        self._workers = [  # daemons: whoever insists on an end at once does not wait for a batch
            threading.Thread(target=self._work, name=f"vitreous-batch-{number}", daemon=True)
            for number in range(WORKERS)
        ]
        for worker in self._workers:
            worker.start()

    async def ask(self, kind: Hashable, picture: bytes, compute: Compute, large: bool = False) -> Any:
        """The answer of `compute` for this image. Questions of the same kind share their batches and their compute."""
        assert self._loop is not None
        question = _Question(kind, picture, compute, self._loop.create_future(), time.monotonic(), large)
        with self._change:
            if self._closed:
                raise ApiError(503, "stopping", "the server is shutting down")
            if self.full:
                raise busy()
            if large and sum(other.large for other in self._line) >= max(self.room // LARGE_PART, 1):
                raise busy("too many large images are waiting")
            self._line.append(question)
            self._change.notify()
        self._unanswered += 1
        try:
            return await question.answer
        finally:
            self._unanswered -= 1
            question.dropped = True  # answered or not: nobody waits for it any more

    def _deliver(self, answered: deque[tuple[_Question, Any]]) -> None:
        """One by one, so that between two of them the loop looks who else has come."""
        question, answer = answered.popleft()
        if not question.answer.done():  # otherwise its request was given up meanwhile
            if isinstance(answer, Exception):
                question.answer.set_exception(answer)
            else:
                question.answer.set_result(answer)
        if answered:
            assert self._loop is not None
            self._loop.call_soon(self._deliver, answered)

    async def stop(self) -> None:
        """Answer what has been asked, and end the threads. A batch that nobody waits for is not waited for."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        while self._unanswered:
            await asyncio.sleep(0.01)
        for worker in self._workers:
            await asyncio.to_thread(worker.join, LAST_BATCH)

    # ---- In the workers ----

    def _work(self) -> None:
        torch.set_num_threads(self.threads)  # of this thread
        while batch := self._take():
            self.metrics.batch(len(batch))
            began = time.monotonic()
            try:
                answers = list(batch[0].compute([question.picture for question in batch]))
                assert len(answers) == len(batch)
            except Exception as error:  # not of one picture: it is everybody's, and the thread goes on
                logger.error("a batch of %d failed", len(batch), exc_info=error)
                answers = [ApiError(503, "failed", "the model could not answer; the server's log says why")] * len(
                    batch
                )
            self.metrics.computed(time.monotonic() - began)
            if batch[0].large:
                with self._change:
                    self._large_busy = False
                    self._change.notify_all()
            assert self._loop is not None
            with suppress(RuntimeError):  # the loop has ended meanwhile, and with it all who waited
                self._loop.call_soon_threadsafe(self._deliver, deque(zip(batch, answers, strict=True)))
            self._tidy()

    def _take(self) -> list[_Question]:
        """The next batch; an empty one after the last."""
        with self._gathering:
            while True:
                with self._change:
                    self._change.wait_for(lambda: self._next() or (self._closed and not self._line))
                    first = self._next()
                    if first is None and self._closed and not self._line:
                        return []
                    if first is not None and (batch := self._gather(first)):
                        self._large_busy = self._large_busy or first.large
                        return batch

    def _next(self) -> _Question | None:
        """The first question that may be computed now. Drops those that nobody waits for."""
        self._line = [question for question in self._line if not question.dropped]
        return next((question for question in self._line if not (question.large and self._large_busy)), None)

    def _gather(self, first: _Question) -> list[_Question]:
        """Take the questions of one kind that come in time out of the queue; a large one alone."""
        if first.large:
            batch = [first]
        else:
            self._change.wait_for(
                lambda: self._closed or len(self._small(first.kind)) >= self.max_batch,
                timeout=max(first.since + self.max_wait - time.monotonic(), 0),
            )
            batch = self._small(first.kind)
        taken = set(batch)
        self._line = [question for question in self._line if question not in taken]
        return [question for question in batch if not question.dropped]

    def _small(self, kind: Hashable) -> list[_Question]:
        return [question for question in self._line if question.kind == kind and not question.large][: self.max_batch]
