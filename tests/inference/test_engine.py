"""Decoding in threads or in the calling thread, and the inputs and batches of the engine."""

import threading
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from images import encoded, smooth
from predictors import random_model
from vitreous.common.checks import BadValue
from vitreous.data.image import decode
from vitreous.data.sources.base import FileSource, StoredImage
from vitreous.inference import Predictor
from vitreous.inference.engine import decode_pool


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_work_runs_in_threads_or_in_the_caller(workers: int) -> None:
    with decode_pool(workers) as pool:
        names = {pool.submit(lambda: threading.current_thread().name).result() for _ in range(10)}
    own = threading.current_thread().name
    assert names == {own} if workers == 0 else all(name.startswith("vitreous-decode") for name in names)


@pytest.mark.parametrize("workers", [0, 2])
def test_exceptions_are_kept_in_the_future(workers: int) -> None:
    with decode_pool(workers) as pool:
        failed, done = pool.submit(int, "x"), pool.submit(int, "7")
        assert isinstance(failed.exception(), ValueError)
        assert done.result() == 7


def test_a_predictor_with_0_workers_starts_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = random_model("class token"), encoded(smooth(20, 20))
    wanted = Predictor(model, "cpu", workers=2)([image, b"no image"])
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("a thread was started"))
    assert Predictor(model, "cpu", workers=0)([image, b"no image"]) == wanted


def test_negative_workers_are_rejected() -> None:
    with pytest.raises(BadValue, match="workers"):
        Predictor(random_model("class token"), "cpu", workers=-1)


def test_images_of_a_source_are_read_by_name_and_missing_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(smooth(20, 20)))
    source = FileSource(tmp_path, ["a.png", "missing.png"], np.array([0, 1]), ("x", "y"))
    first, second = Predictor(random_model("class token"), "cpu")(source)
    assert (first.name, first.error) == ("a.png", None)
    assert (second.name, second.error) == ("missing.png", "No such file or directory")


def test_images_of_other_sizes_start_a_new_batch_and_errors_join_any() -> None:
    batches: list[tuple[int, ...]] = []

    class Sizes(Predictor):
        def decode(self, sample_image: StoredImage) -> Tensor:
            return decode(sample_image)

    def step(pixels: Tensor) -> list[tuple[int]]:
        batches.append(tuple(pixels.shape))
        return [(len(pixels),)] * len(pixels)

    engine = Sizes(random_model("class token"), "cpu", batch_size=3)
    small, large = np.zeros((4, 5, 3), np.uint8), np.zeros((6, 5, 3), np.uint8)
    images = [small, b"broken", small, small, large, small, small]
    results = list(engine.run(images, step, lambda name, size=None, error=None: size or error))
    assert batches == [(2, 3, 4, 5), (1, 3, 4, 5), (1, 3, 6, 5), (2, 3, 4, 5)]
    assert [isinstance(result, str) for result in results] == [False, True, *[False] * 5]
