"""One function chooses the predictor by the task of a model, and a predictor knows which tasks it supports."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from predictors import random_model
from vitreous.common.checks import BadValue
from vitreous.inference import Predictor, SegmentPredictor, predictor_for
from vitreous.model.build import build, build_segmenter
from vitreous.model.config import SegmenterConfig, ViTConfig

IMAGE = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)


@pytest.fixture
def models(small: ViTConfig) -> dict[str, Any]:
    encoder = dataclasses.replace(small, num_classes=0)
    segmenter = build_segmenter(SegmenterConfig(encoder, num_classes=3))
    return {"classify": random_model("class token"), "embed": build(encoder), "segment": segmenter}


def test_each_model_gets_a_predictor_that_answers_its_task(models: dict[str, Any]) -> None:
    for task, model in models.items():
        predictor = predictor_for(model, "cpu", workers=0)
        assert type(predictor) is (SegmentPredictor if task == "segment" else Predictor)
        [result] = predictor.answers()[task](IMAGE)  # type: ignore[index]
        assert result.error is None
    assert set(predictor_for(models["classify"], "cpu").answers()) == {"classify", "embed"}
    assert set(predictor_for(models["embed"], "cpu").answers()) == {"embed"}


def test_arguments_reach_the_predictor(models: dict[str, Any]) -> None:
    options: dict[str, Any] = {"batch_size": 3, "precision": "bf16", "flip": True, "workers": 0}
    for task, own in (("classify", {"top": 2, "decode": "fast"}), ("segment", {})):
        predictor = predictor_for(models[task], "cpu", **options, **own)
        assert (predictor.batch_size, predictor.dtype, predictor.flip) == (3, torch.bfloat16, True)
        assert predictor.workers == 0
    classifier = predictor_for(models["classify"], "cpu", top=2, decode="fast")
    assert isinstance(classifier, Predictor)
    assert (classifier.top, classifier.fast_decode) == (2, True)


@pytest.mark.parametrize("option", [{"top": 3}, {"decode": "fast"}])
def test_an_argument_without_effect_is_rejected(option: dict[str, Any], models: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=f"{next(iter(option))} is .* must be omitted for a segmenter"):
        predictor_for(models["segment"], "cpu", **option)


@pytest.mark.parametrize("flip", [False, True])
def test_probabilities_are_those_of_the_predicted_labels(flip: bool, models: dict[str, Any]) -> None:
    predictor = Predictor(models["classify"], "cpu", top=7, flip=flip)
    [row], [prediction] = predictor.logits(IMAGE).softmax(1), predictor(IMAGE)
    for label in prediction.predictions:
        assert label.probability == pytest.approx(float(row[label.index]), abs=1e-6)
