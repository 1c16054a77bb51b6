"""Predictions of a calibrated model: probabilities, unknown images, label sets, and their files."""

import csv
import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

import vitreous
from predictors import COLOURS, colour_model, probabilities, random_model
from vitreous.common.checks import BadValue
from vitreous.inference import Predictor
from vitreous.inference.prediction_files import write
from vitreous.model.calibration import FRACTIONS, Calibration
from vitreous.model.familiarity import Familiarity
from vitreous.model.protocol import Model
from vitreous.weights.io.safetensors_file import write_tensors

IMAGES = np.stack([np.full((16, 24, 3), colour, dtype=np.uint8) for colour in COLOURS.values()])


def calibrated(model: Model, **fields: object) -> Model:
    quantiles = {"familiarities": tuple(fraction - 0.5 for fraction in FRACTIONS), "true_probabilities": FRACTIONS}
    found = Calibration(**{"temperature": 2.0, "images": 2000, **quantiles, **fields})  # type: ignore[arg-type]
    model.config = dataclasses.replace(model.config, calibration=found)  # type: ignore[type-var]
    if model.familiarity is None:
        model.familiarity = Familiarity.fit(torch.randn(100, model.config.feature_width), torch.arange(100) % 3)
    return model


def test_a_temperature_changes_probabilities_but_not_the_labels_or_the_logits() -> None:
    plain, warm = Predictor(colour_model(), "cpu"), Predictor(calibrated(colour_model()), "cpu")
    logits = plain.logits(IMAGES)
    assert torch.equal(warm.logits(IMAGES), logits)
    np.testing.assert_allclose(probabilities(warm(IMAGES)), (logits / 2).softmax(1), atol=1e-6)
    for before, after in zip(plain(IMAGES), warm(IMAGES), strict=True):
        assert [label.label for label in before.predictions] == [label.label for label in after.predictions]
        assert (before.familiarity, before.unknown, before.label_set) == (None, None, None)


def test_an_image_with_a_low_score_is_unknown() -> None:
    model = calibrated(colour_model())
    assert model.familiarity is not None
    [score, *_] = model.familiarity.scores(Predictor(model, "cpu").embed(IMAGES)).tolist()
    for shift, unknown in ((-0.5, False), (-0.04, True), (0.5, True)):
        quantiles = tuple(score + shift + fraction for fraction in FRACTIONS)
        [found, *_] = Predictor(calibrated(model, familiarities=quantiles), "cpu")(IMAGES)
        assert found.unknown is unknown
        assert found.familiarity == pytest.approx(max(0.0, -shift), abs=0.011)


def test_flip_averages_the_features() -> None:
    """Mirror images of equal colours are equal, so nothing may change."""
    model = calibrated(colour_model())
    plain, flipped = Predictor(model, "cpu")(IMAGES), Predictor(model, "cpu", flip=True)(IMAGES)
    np.testing.assert_allclose(probabilities(flipped), probabilities(plain), atol=1e-6)
    assert [one.familiarity for one in flipped] == [one.familiarity for one in plain]


def test_a_label_set_contains_the_labels_above_the_threshold() -> None:
    results = list(vitreous.predict(calibrated(colour_model()), IMAGES, device="cpu", top=1, coverage=0.8))
    for result, row in zip(results, probabilities(Predictor(calibrated(colour_model()), "cpu")(IMAGES)), strict=True):
        assert result.label_set is not None  # type: ignore[union-attr]
        assert {label.index for label in result.label_set} == set(np.flatnonzero(row >= 0.2))  # type: ignore[union-attr]


def test_a_coverage_needs_a_calibration_and_a_classifier() -> None:
    with pytest.raises(ValueError, match=r"coverage is 0.9.*not been calibrated.*vitreous calibrate"):
        Predictor(colour_model(), "cpu", coverage=0.9)
    with pytest.raises(BadValue, match=r"coverage is 1\.5"):
        Predictor(calibrated(colour_model()), "cpu", coverage=1.5)


def test_another_image_size_has_no_calibration() -> None:
    model = calibrated(colour_model())
    [result] = Predictor(model.resized((32, 48)), "cpu")(IMAGES[:1])
    assert result.unknown is None
    assert Predictor(model.resized((16, 24)), "cpu")(IMAGES[:1])[0].unknown is not None


def test_a_calibration_is_saved_and_loaded(tmp_path: Path) -> None:
    for name in ("class token", "bit"):
        model = calibrated(random_model(name))
        vitreous.save(model, tmp_path / name)
        loaded = vitreous.load(tmp_path / name)
        assert loaded.config == model.config
        assert loaded.familiarity is not None
        assert model.familiarity is not None
        features = torch.randn(5, model.config.feature_width)
        assert torch.equal(loaded.familiarity.scores(features), model.familiarity.scores(features))
        vitreous.save(loaded.resized((48, 64)), tmp_path / name)
        assert not (tmp_path / name / "familiarity.safetensors").exists()


def test_a_damaged_familiarity_is_reported(tmp_path: Path) -> None:
    vitreous.save(calibrated(colour_model()), tmp_path / "x")
    write_tensors({"centre": torch.zeros(4)}, tmp_path / "x" / "familiarity.safetensors")
    with pytest.raises(ValueError, match=r"familiarity.safetensors.*expected the tensors"):
        vitreous.load(tmp_path / "x")
    (tmp_path / "x" / "familiarity.safetensors").unlink()
    [result] = Predictor(vitreous.load(tmp_path / "x"), "cpu", coverage=0.9)(IMAGES[:1])
    assert result.unknown is None
    assert result.label_set is not None


def test_json_and_tables_have_the_fields(tmp_path: Path) -> None:
    predictor = Predictor(calibrated(colour_model()), "cpu", top=1, coverage=0.9)
    results = predictor([*IMAGES, b"broken"])
    for name in ("x.jsonl", "x.csv", "x.parquet"):
        write(results, tmp_path / name, predictor.columns)
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert list(lines[0]) == ["path", "predictions", "unknown", "familiarity", "label_set"]
    assert list(lines[0]["label_set"][0]) == list(lines[0]["predictions"][0]) == ["label", "index", "probability"]
    assert list(lines[3]) == ["path", "error"]
    with open(tmp_path / "x.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    for line, row, entry in zip(lines[:3], rows, table, strict=False):
        assert json.loads(row["unknown"]) is line["unknown"] is entry["unknown"]
        assert float(row["familiarity"]) == line["familiarity"] == pytest.approx(entry["familiarity"])
        labels = [label["label"] for label in line["label_set"]]
        assert json.loads(row["label_set"]) == labels == [label["label"] for label in entry["label_set"]]
    assert (rows[3]["unknown"], table[3]["unknown"]) == ("", None)
