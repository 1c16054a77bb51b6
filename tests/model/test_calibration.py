"""The calibration in a config: validation, thresholds, and changes that make it invalid."""

import dataclasses
import json
from typing import Any

import pytest
import torch

from vitreous.common.checks import BadValue
from vitreous.common.codec import from_dict, to_dict
from vitreous.inference.fit_calibration import lower_quantiles
from vitreous.inference.predictor import familiarity_ranks
from vitreous.model.calibration import FEWEST, FRACTIONS, UNKNOWN, Calibration
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.top_labels import class_probabilities

ALL = tuple(fraction / 2 for fraction in FRACTIONS)
FOUND = Calibration(1.5, 2000, familiarities=ALL, true_probabilities=ALL)


@pytest.mark.parametrize("config", [ViTConfig(), ResNetConfig()])
def test_a_config_with_a_calibration_converts_to_json_and_back(config: Any) -> None:
    calibrated = dataclasses.replace(config, calibration=FOUND)
    assert from_dict(type(config), json.loads(json.dumps(to_dict(calibrated)))) == calibrated


def test_a_config_of_an_earlier_version_has_no_calibration(small: ViTConfig) -> None:
    stored = to_dict(small)
    del stored["calibration"]
    assert from_dict(ViTConfig, stored) == small
    assert small.calibration is None


@pytest.mark.parametrize("config", [ViTConfig(), ResNetConfig()])
def test_other_classes_and_image_sizes_drop_the_calibration(config: Any) -> None:
    calibrated = dataclasses.replace(config, calibration=FOUND)
    assert calibrated.resized(config.image_size).calibration == FOUND
    assert calibrated.resized((448, 448)).calibration is None
    assert calibrated.with_classes(3).calibration is None


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": float("nan")},
        {"images": 0},
        {"familiarities": (2.0, 1.0)},
        {"true_probabilities": (0.5,) * 200},
    ],
)
def test_invalid_values_are_rejected(fields: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=f"calibration.{next(iter(fields))}"):
        dataclasses.replace(FOUND, **fields)


@pytest.mark.parametrize(("coverage", "fraction"), [(0.9, 0.1), (0.95, 0.05), (0.999, 0.001), (0.905, 0.09)])
def test_thresholds_are_rounded_to_a_higher_coverage(coverage: float, fraction: float) -> None:
    assert FOUND.probability_threshold(coverage) == pytest.approx(fraction / 2)


def test_a_coverage_that_needs_more_images_includes_every_class() -> None:
    few = Calibration(1.0, 19, true_probabilities=ALL[FRACTIONS.index(0.05) :])
    assert few.probability_threshold(0.95) == 0.025
    assert few.probability_threshold(0.96) == 0
    with pytest.raises(BadValue, match=r"coverage is 1.*0\.999"):
        few.probability_threshold(1)


def test_probabilities_use_the_temperature_and_logits_do_not_change(small: ViTConfig) -> None:
    logits = torch.randn(4, 5)
    calibrated = dataclasses.replace(small, calibration=FOUND)
    assert torch.equal(class_probabilities(logits, small), logits.softmax(-1))
    torch.testing.assert_close(class_probabilities(logits, calibrated), (logits / 1.5).softmax(-1))
    assert torch.equal(class_probabilities(logits, calibrated).argmax(-1), logits.argmax(-1))


@pytest.mark.parametrize(("images", "enough"), [(FEWEST - 1, False), (FEWEST, True)])
def test_too_few_images_for_the_unknown_threshold_are_reported(images: int, enough: bool) -> None:
    calibration = Calibration(1.0, images, familiarities=lower_quantiles(torch.arange(images).float()))
    assert (calibration.unknown_below is not None) == enough
    assert (calibration.too_few_note() == "") == enough
    assert (familiarity_ranks(calibration, torch.tensor([-1.0]))[0] < UNKNOWN) == enough
