"""Streams of any length hold few images in memory."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from predictors import COLOURS, colour_model, random_model
from vitreous.inference import Predictor


def test_a_stream_holds_few_batches_and_closing_it_ends_its_threads() -> None:
    taken = 0

    def endless() -> Iterator[np.ndarray]:
        nonlocal taken
        while True:
            taken += 1
            yield np.zeros((9, 9, 3), np.uint8)

    predictor = Predictor(random_model("class token"), batch_size=4, workers=2)
    stream = predictor.stream(endless())
    for given, _ in enumerate(itertools.islice(stream, 50), start=1):
        assert taken <= given + 3 * 4
    stream.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("vitreous-decode")]
    assert predictor.throughput.images == 50


def test_the_caller_may_reuse_an_array() -> None:
    def frames() -> Iterator[np.ndarray]:
        frame = np.zeros((32, 32, 3), np.uint8)
        for colour in list(COLOURS.values()) * 5:
            frame[:] = colour
            yield frame

    answers = Predictor(colour_model(), batch_size=4)(frames())
    assert [answer.predictions[0].label for answer in answers] == list(COLOURS) * 5


def test_throughput(photos: list[Path]) -> None:
    predictor = Predictor(random_model("class token"))
    predictor(photos)
    images, seconds = predictor.throughput
    assert images == 7
    assert seconds > 0
    assert predictor.throughput.images_per_second == images / seconds


def test_features_can_be_used_in_autograd(photos: list[Path]) -> None:
    predictor = Predictor(random_model("class token"))
    rows = [e.vector for e in predictor.stream_embeddings(photos) if e.vector is not None]
    for features in (predictor.embed(photos), torch.stack(rows)):
        probe = torch.nn.Linear(32, 2)
        probe(features).sum().backward()
        assert probe.weight.grad is not None
