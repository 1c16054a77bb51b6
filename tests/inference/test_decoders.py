"""Decoding by threads, or by whoever asks."""

import threading

import pytest

from images import encoded, smooth
from predictors import random_model
from vitreous.common.checks import BadValue
from vitreous.inference.decoders import decoders
from vitreous.inference.predictor import Predictor


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_who_decodes(workers: int) -> None:
    with decoders(workers) as pool:
        names = {pool.submit(lambda: threading.current_thread().name).result() for _ in range(10)}
    own = threading.current_thread().name
    assert names == {own} if workers == 0 else all(name.startswith("vitreous-decode") for name in names)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_went_wrong_is_the_answer(workers: int) -> None:
    with decoders(workers) as pool:
        failed, done = pool.submit(int, "x"), pool.submit(int, "7")
        assert isinstance(failed.exception(), ValueError)
        assert done.result() == 7


def test_a_predictor_without_threads_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model, picture = random_model("class token"), encoded(smooth(20, 20))
    wanted = Predictor(model, "cpu", workers=2)([picture, b"no picture"])
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("a thread was started"))
    assert Predictor(model, "cpu", workers=0)([picture, b"no picture"]) == wanted


def test_fewer_than_none_cannot_decode() -> None:
    with pytest.raises(BadValue, match="workers is -1, but must be"):
        Predictor(random_model("class token"), "cpu", workers=-1)
