"""Requests that came one by one are answered together: a model is much quicker with many pictures at once.

Whoever asks waits in one bounded line. Two threads take turns: one reads the pictures of its batch while the other
computes, so neither the device nor the processor is left waiting. A batch holds questions of one kind; it is closed
when it is full, or when its first question has waited long enough. Questions that nobody waits for are passed over.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vitreous.serve.errors import ApiError, busy, logger
from vitreous.serve.memory import Tidy
from vitreous.serve.metrics import Metrics

WORKERS = 2

# Pictures in, and for each of them its answer or the error that it is; never an exception for one picture's sake.
Compute = Callable[[Sequence[bytes]], Sequence[Any]]


@dataclass(eq=False)
class _Question:
    kind: Hashable
    picture: bytes
    compute: Compute
    answer: "asyncio.Future[Any]"
    since: float
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

    async def ask(self, kind: Hashable, picture: bytes, compute: Compute) -> Any:
        """What `compute` answers for this picture. Questions of the same kind share their batches and their compute."""
        assert self._loop is not None
        question = _Question(kind, picture, compute, self._loop.create_future(), time.monotonic())
        with self._change:
            if self._closed:
                raise ApiError(503, "stopping", "the server is shutting down")
            if self.full:
                raise busy()
            self._line.append(question)
            self._change.notify()
        try:
            return await question.answer
        finally:
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
        """Answer what has been asked, and end the threads."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        for worker in self._workers:
            await asyncio.to_thread(worker.join)

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
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._deliver, deque(zip(batch, answers, strict=True)))
            self._tidy()

    def _take(self) -> list[_Question]:
        """The next batch; an empty one when there will be none any more."""
        with self._gathering:
            while True:
                with self._change:
                    self._change.wait_for(lambda: self._line or self._closed)
                    self._line = [question for question in self._line if not question.dropped]
                    if not self._line and self._closed:
                        return []
                    if self._line and (batch := self._gather(self._line[0])):
                        return batch

    def _gather(self, first: _Question) -> list[_Question]:
        """Those of one kind that come in time, taken out of the line."""
        self._change.wait_for(
            lambda: self._closed or len(self._of(first.kind)) >= self.max_batch,
            timeout=max(first.since + self.max_wait - time.monotonic(), 0),
        )
        batch = self._of(first.kind)
        taken = set(batch)
        self._line = [question for question in self._line if question not in taken]
        return [question for question in batch if not question.dropped]

    def _of(self, kind: Hashable) -> list[_Question]:
        return [question for question in self._line if question.kind == kind][: self.max_batch]
