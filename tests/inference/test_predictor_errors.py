"""Errors of single images, and invalid models and options."""

import dataclasses
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from predictors import RANDOM, colour_model, probabilities, random_model
from vitreous.inference import Predictor
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.build import build, build_segmenter
from vitreous.model.config import SegmenterConfig


def test_an_unreadable_image_affects_no_other(tmp_path: Path, photos: list[Path]) -> None:
    (tmp_path / "text.jpg").write_text("not an image")
    (tmp_path / "empty.png").touch()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "cut.png").write_bytes(photos[0].read_bytes()[:200])
    cut = Image.open(io.BytesIO((tmp_path / "cut.png").read_bytes()))
    bad: list[Any] = [tmp_path / name for name in ("text.jpg", "empty.png", "folder.png", "cut.png", "missing.jpg")]
    bad += [b"", b"\xff\xd8\xff", np.zeros((4, 4, 3)), np.zeros((0, 4, 3), np.uint8), cut]
    mixed: list[Any] = list(itertools.chain.from_iterable(itertools.zip_longest(bad, photos)))
    mixed = [image for image in mixed if image is not None]
    predictor = Predictor(random_model("class token"), batch_size=3)
    answers = predictor(mixed)
    failed = [answer for answer in answers if answer.error is not None]
    assert len(failed) == len(bad)
    assert all(answer.predictions == () and answer.error and "\n" not in answer.error for answer in failed)
    reasons = {Path(answer.name).name: answer.error for answer in failed}
    assert reasons["missing.jpg"] == "No such file or directory"
    assert reasons["folder.png"] == "Is a directory"
    assert reasons["empty.png"] == "the file is empty"
    good = [answer for answer in answers if answer.error is None]
    np.testing.assert_allclose(probabilities(good), probabilities(predictor(photos)), atol=1e-5)
    assert all(answer.error for answer in predictor(bad))
    embeddings = list(predictor.stream_embeddings(mixed))
    assert [e.error for e in embeddings] == [answer.error for answer in answers]
    with pytest.raises(ValueError, match=r"empty.png: the file is empty"):
        predictor.embed([photos[0], tmp_path / "empty.png"])


@pytest.mark.usefixtures("unchecked")
def test_an_input_that_is_not_an_image_raises_type_error(photos: list[Path]) -> None:
    with pytest.raises(TypeError, match="paths, bytes, uint8 arrays or Pillow images, got int"):
        Predictor(random_model("class token"))([photos[0], 3])  # type: ignore[list-item]


def test_outputs_that_are_not_finite_are_errors(photos: list[Path]) -> None:
    model = colour_model()
    with torch.no_grad():
        model.head.bias[0] = float("nan")
        model.norm.bias[0] = float("inf")
    predictor = Predictor(model)
    assert {answer.error for answer in predictor(photos)} == {"the model's output contains NaN or infinity"}
    assert {answer.error for answer in predictor.stream_embeddings(photos)} == {
        "the model's output contains NaN or infinity"
    }


def test_invalid_models_and_options_are_rejected_immediately() -> None:
    config = RANDOM["class token"]
    headless = build(dataclasses.replace(config, num_classes=0))
    with pytest.raises(ValueError, match="no classification head"):
        Predictor(headless).stream([])
    assert Predictor(headless).embed(np.zeros((9, 9, 3), np.uint8)).shape == (1, 32)
    with pytest.raises(ValueError, match="4 input channels"):
        Predictor(build(dataclasses.replace(config, channels=4)))
    with pytest.raises(ValueError, match="batch_size"):
        Predictor(headless, batch_size=0)
    with pytest.raises(ValueError, match="device 'cuda:99'"):
        Predictor(headless, device="cuda:99")


@pytest.mark.usefixtures("unchecked")
def test_the_error_names_the_predictor_that_takes_the_model() -> None:
    classifier = random_model("class token")
    segmenter = build_segmenter(SegmenterConfig(dataclasses.replace(RANDOM["class token"], num_classes=0)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Predictor takes a classifier or encoder, got Segmenter; use SegmentPre"):
        Predictor(segmenter)  # type: ignore[arg-type]
    for model in (classifier, random_model("bit")):
        with pytest.raises(TypeError, match=r"SegmentPredictor takes a segmenter, got \w+; use Predictor$"):
            SegmentPredictor(model)  # type: ignore[arg-type]
    for predictor in (Predictor, SegmentPredictor):
        with pytest.raises(TypeError, match=r"\w+ takes a [\w ]+, got Linear$"):
            predictor(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"got str; .*vitreous\.load"):
            predictor("runs/first/best")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_compiled_model_is_accepted() -> None:
    assert Predictor(torch.compile(random_model("class token")), "cpu").width == 32  # type: ignore[arg-type]
