import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from vitreous.serving import batching
from vitreous.serving.batching import WORKERS, Batcher
from vitreous.serving.errors import ApiError
from vitreous.serving.metrics import Metrics

BAD = 1300  # a picture that cannot be read


def with_batcher(use: Callable[[Batcher], Awaitable[Any]], **changes: Any) -> Any:
    """What `use` makes of a batcher that has been started, and will be stopped."""

    async def run() -> Any:
        options: dict[str, Any] = {"max_batch": 4, "max_wait": 0.02, "room": 100, "metrics": Metrics(), **changes}
        batcher = Batcher(**options)
        batcher.start()
        try:
            return await use(batcher)
        finally:
            await batcher.stop()

    return asyncio.run(run())


def picture(number: int) -> bytes:
    return str(number).encode()


class Recorder:
    """Answers every picture with itself, and writes down who came together. It may be held up."""

    def __init__(self, held: bool = False) -> None:
        self.batches: list[list[int]] = []
        self.go_on = threading.Event()
        if not held:
            self.go_on.set()

    @property
    def seen(self) -> list[int]:
        return [number for batch in self.batches for number in batch]

    def __call__(self, pictures: Sequence[bytes]) -> list[Any]:
        self.batches.append([int(one) for one in pictures])
        self.go_on.wait(20)
        return [ApiError(422, "unreadable_image", "bad") if int(one) == BAD else int(one) for one in pictures]


def test_every_question_has_its_own_answer_and_batches_are_shared() -> None:
    record = Recorder()

    async def use(batcher: Batcher) -> list[int]:
        return await asyncio.gather(*(batcher.ask("a", picture(number), record) for number in range(12)))

    assert with_batcher(use) == list(range(12))
    assert sorted(record.seen) == list(range(12))
    assert all(len(batch) <= 4 for batch in record.batches)
    assert len(record.batches) <= 4


def test_kinds_are_not_mixed_and_none_is_forgotten() -> None:
    even, odd = Recorder(), Recorder()

    async def use(batcher: Batcher) -> list[int]:
        asked = [batcher.ask(number % 2, picture(number), odd if number % 2 else even) for number in range(20)]
        return await asyncio.gather(*asked)

    assert with_batcher(use) == list(range(20))
    assert {number % 2 for number in even.seen} == {0}
    assert {number % 2 for number in odd.seen} == {1}


def test_an_error_is_only_its_own() -> None:
    record = Recorder()

    async def use(batcher: Batcher) -> list[Any]:
        asked = (batcher.ask("a", picture(number), record) for number in (12, BAD, 14))
        return await asyncio.gather(*asked, return_exceptions=True)

    before, bad, after = with_batcher(use, max_wait=0.2)
    assert (before, after) == (12, 14)
    assert isinstance(bad, ApiError)
    assert record.batches == [[12, BAD, 14]]


def test_a_batch_that_fails_as_a_whole_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def fail(pictures: Sequence[bytes]) -> list[Any]:
        raise RuntimeError("out of memory")

    async def use(batcher: Batcher) -> int:
        for _ in range(2 * WORKERS):
            with pytest.raises(ApiError, match="the model could not answer"):
                await batcher.ask("bad", b"0", fail)
        return int(await batcher.ask("good", b"7", Recorder()))

    assert with_batcher(use) == 7
    assert "out of memory" in caplog.text


def test_past_its_room_nobody_waits() -> None:
    record = Recorder(held=True)

    async def use(batcher: Batcher) -> list[Any]:
        busy = [asyncio.create_task(batcher.ask("a", picture(number), record)) for number in range(WORKERS)]
        while len(record.batches) < WORKERS:
            await asyncio.sleep(0.005)
        waiting = [asyncio.create_task(batcher.ask("a", picture(10 + number), record)) for number in range(5)]
        answers = await asyncio.gather(*waiting[3:], return_exceptions=True)
        assert batcher.full
        record.go_on.set()
        assert await asyncio.gather(*busy, *waiting[:3]) == [*range(WORKERS), 10, 11, 12]
        return answers

    refused = with_batcher(use, max_batch=1, max_wait=0, room=3)
    assert [(one.status_code, one.code, one.headers) for one in refused] == [(429, "busy", {"Retry-After": "1"})] * 2


def test_what_nobody_waits_for_is_not_computed() -> None:
    record = Recorder(held=True)

    async def use(batcher: Batcher) -> None:
        busy = [asyncio.create_task(batcher.ask("a", picture(number), record)) for number in range(WORKERS)]
        while len(record.batches) < WORKERS:
            await asyncio.sleep(0.005)
        left = asyncio.create_task(batcher.ask("a", picture(50), record))
        stays = asyncio.create_task(batcher.ask("a", picture(51), record))
        await asyncio.sleep(0.01)
        left.cancel()
        await asyncio.sleep(0.01)
        record.go_on.set()
        assert await stays == 51
        await asyncio.gather(*busy)

    with_batcher(use, max_batch=1, max_wait=0)
    assert 50 not in record.seen


def test_stopping_answers_what_was_asked_and_ends_the_threads() -> None:
    record = Recorder(held=True)

    async def run() -> list[Any]:
        batcher = Batcher(2, 5.0, 100, Metrics())
        batcher.start()
        asked = [asyncio.create_task(batcher.ask("a", picture(number), record)) for number in range(7)]
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0.05)
        with pytest.raises(ApiError, match="shutting down"):
            await batcher.ask("a", b"8", record)
        record.go_on.set()
        await stopping
        return await asyncio.gather(*asked)

    assert asyncio.run(run()) == list(range(7))
    assert not [one for one in threading.enumerate() if one.name.startswith("vitreous-batch")]


def test_large_images_are_computed_one_at_a_time_while_small_ones_pass() -> None:
    """They are held up until all small ones have been answered, which could never be if they took both threads."""
    large, small = Recorder(held=True), Recorder()

    async def use(batcher: Batcher) -> list[int]:
        slow = [asyncio.create_task(batcher.ask("a", picture(n), large, large=True)) for n in range(16)]
        await asyncio.sleep(0.05)
        quick = [asyncio.create_task(batcher.ask("a", picture(n), small)) for n in range(100, 140)]
        assert await asyncio.wait_for(asyncio.gather(*quick), 10) == list(range(100, 140))
        assert large.batches == [[0]]
        large.go_on.set()
        return await asyncio.gather(*slow)

    assert with_batcher(use) == list(range(16))
    assert large.batches == [[number] for number in range(16)]


def test_large_images_may_take_only_a_part_of_the_queue() -> None:
    record = Recorder(held=True)

    async def use(batcher: Batcher) -> list[Any]:
        slow = [asyncio.create_task(batcher.ask("a", picture(n), record, large=True)) for n in range(20)]
        await asyncio.sleep(0.05)
        quick = [asyncio.create_task(batcher.ask("a", picture(n), Recorder())) for n in range(100, 110)]
        assert await asyncio.wait_for(asyncio.gather(*quick), 10) == list(range(100, 110))
        record.go_on.set()
        return await asyncio.gather(*slow, return_exceptions=True)

    answers = with_batcher(use, room=16)
    refused = [answer for answer in answers if isinstance(answer, ApiError)]
    assert {(error.status_code, error.code) for error in refused} == {(429, "busy")}
    assert 20 - len(refused) in (4, 5)  # a quarter of the queue waits; the first may have been taken out already


def test_a_batch_that_nobody_waits_for_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "LAST_BATCH", 0.1)
    record = Recorder(held=True)

    async def run() -> None:
        batcher = Batcher(1, 0, 100, Metrics())
        batcher.start()
        asked = asyncio.create_task(batcher.ask("a", picture(1), record))
        while not record.batches:
            await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.wait([asked])
        await asyncio.wait_for(batcher.stop(), 15)

    try:
        asyncio.run(run())
    finally:
        record.go_on.set()
    for one in threading.enumerate():
        if one.name.startswith("vitreous-batch"):
            one.join(20)


def test_free_memory_is_given_back_after_a_batch() -> None:
    calls: list[int] = []

    async def use(batcher: Batcher) -> int:
        batcher._tidy.every, batcher._tidy.trim = 0.0, calls.append
        return await batcher.ask("a", picture(1), Recorder())

    assert with_batcher(use) == 1
    assert calls == [0]
