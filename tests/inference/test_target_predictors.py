"""Predictors of several labels or numbers per image, compared with the outputs of the model."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from predictors import RANDOM, random_model
from vitreous.common.checks import BadValue
from vitreous.inference import Embedder, MultiLabelPredictor, Predictor, RegressPredictor, predictor_for
from vitreous.inference.prediction_files import write
from vitreous.model.options import MultiLabel, Numbers, OutputConfig
from vitreous.model.protocol import Model

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 40, 50, 3), dtype=np.uint8)
THRESHOLDS = tuple(i / 8 for i in range(7))
SCALE = Numbers(tuple(float(i) for i in range(7)), tuple(0.5 + i for i in range(7)))
NAMES = tuple("abcdefg")


def model_with(output: OutputConfig, name: str = "class token") -> Model:
    model = random_model(name)
    model.config = dataclasses.replace(RANDOM[name], output=output, labels=NAMES)
    return model


def outputs(predictor: Embedder, mirrored: bool = False) -> torch.Tensor:
    """Return the outputs of the model for the images, or for the mirrored images."""
    images = predictor.input(torch.stack([predictor.decode(image) for image in IMAGES]))
    return predictor.model.eval()(images.flip(-1) if mirrored else images).detach()


@pytest.mark.parametrize("name", ["class token", "bit"])
@pytest.mark.parametrize("flip", [False, True])
def test_labels_are_those_that_reach_their_thresholds(name: str, flip: bool) -> None:
    model = model_with(MultiLabel(THRESHOLDS), name)
    predictor = MultiLabelPredictor(model, "cpu", top=7, flip=flip)
    expected = outputs(predictor).sigmoid()
    if flip:
        expected = (expected + outputs(predictor, mirrored=True).sigmoid()) / 2
    torch.testing.assert_close(predictor.logits(IMAGES).sigmoid(), expected, atol=1e-5, rtol=1e-4)
    for row, result in zip(expected.tolist(), predictor(IMAGES), strict=True):
        assert {label.label for label in result.labels} == {
            NAMES[i] for i, value in enumerate(row) if value >= THRESHOLDS[i]
        }
        assert [label.probability for label in result.predictions] == pytest.approx(sorted(row, reverse=True), abs=1e-5)


def test_the_default_threshold_is_a_half() -> None:
    predictor = MultiLabelPredictor(model_with(MultiLabel()), "cpu", top=7)
    for result in predictor(IMAGES):
        assert [label for label in result.predictions if label.probability >= 0.5] == list(result.labels)


@pytest.mark.parametrize("flip", [False, True])
def test_numbers_are_in_the_units_of_the_targets(flip: bool) -> None:
    predictor = RegressPredictor(model_with(SCALE), "cpu", flip=flip)
    scores = outputs(predictor)
    if flip:
        scores = (scores + outputs(predictor, mirrored=True)) / 2
    expected = scores.double() * torch.tensor(SCALE.std) + torch.tensor(SCALE.mean)
    for row, result in zip(expected.tolist(), predictor(IMAGES), strict=True):
        assert list(result.values) == list(NAMES)
        assert list(result.values.values()) == pytest.approx(row, abs=1e-4)


@pytest.mark.parametrize(("output", "kind"), [(MultiLabel(), MultiLabelPredictor), (SCALE, RegressPredictor)])
def test_the_predictor_is_chosen_by_the_output(output: OutputConfig, kind: type, tmp_path: Path) -> None:
    vitreous.save(model_with(output), tmp_path / "model")
    model = vitreous.load(tmp_path / "model")
    assert model.config.output == output
    assert type(predictor_for(model, "cpu")) is kind
    with pytest.raises(TypeError, match=f"use {kind.__name__}$"):
        Predictor(model)
    with pytest.raises(BadValue, match="coverage"):
        predictor_for(model, "cpu", coverage=0.9)
    _, vectors = vitreous.embed(model, IMAGES, device="cpu").array()
    assert vectors.shape == (4, 32)
    readme = (tmp_path / "model" / "README.md").read_text()
    assert f"vitreous.{kind.__name__}(model)" in readme


def rows(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        return list(csv.DictReader(path.read_text().splitlines()))
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        return parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("output", [MultiLabel(THRESHOLDS), SCALE], ids=["labels", "numbers"])
def test_results_are_written_to_files(suffix: str, output: OutputConfig, tmp_path: Path) -> None:
    images = [*IMAGES, b"not an image"]
    predictor: Any = predictor_for(model_with(output), "cpu")
    results, path = predictor(images), tmp_path / f"x{suffix}"
    write(iter(results), path, predictor.columns)
    *found, broken = rows(path)
    assert broken["error"]
    assert len(found) == 4
    for row, result in zip(found, results, strict=False):
        assert not row.get("error")
        if isinstance(output, Numbers):
            values = row["values"] if suffix == ".jsonl" else {name: float(row[name]) for name in NAMES}
            assert values == pytest.approx(result.values)
        else:
            labels = json.loads(row["labels"]) if suffix == ".csv" else [one["label"] for one in row["labels"]]
            assert labels == [label.label for label in result.labels]
            if suffix != ".jsonl":
                assert row["label"] == result.predictions[0].label
