"""`vitreous.explain` computes all maps from one forward pass. tests/cli/test_explain.py tests the figures."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from single_patch_models import of_kind, planted
from vitreous.common.checks import BadValue
from vitreous.explanation import METHODS
from vitreous.model.config import ViTConfig
from vitreous.model.options import MultiLabel, Numbers


@pytest.fixture
def sample_image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    return tmp_path / "wide.png"


def test_explain_returns_numbers_of_one_forward_pass(small: ViTConfig, tmp_path: Path) -> None:
    model = planted(small, "class token").train()
    passes: list[int] = []
    model.encoder.blocks[0].register_forward_hook(lambda *_: passes.append(1))
    pixels = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    fast = [method for method in METHODS if method not in ("occlusion", "faithfulness")]
    result = vitreous.explain(model, pixels, methods=fast, device="cpu")
    assert len(passes) == 1
    assert model.training
    assert list(result.maps) == ["relevance", "rollout", "attention"]
    assert all(values.shape == (3, 4) for values in result.maps.values())
    assert result.head_maps is not None
    assert result.head_maps.shape == (2, 4, 3, 4)
    assert result.target == result.predictions[0].index
    assert [row.layer for row in result.lens] == [0, 1]
    assert (result.paths, result.faithfulness) == ([], {})
    other = vitreous.explain(model, pixels, methods="relevance", target=3, out=tmp_path / "out", device="cpu")
    assert (other.target, other.label) == (3, "class 3")
    assert [path.name for path in other.paths] == ["seen.png", "relevance.png", "numbers.json", "report.html"]
    assert all(path.is_file() for path in other.paths)


def test_images_are_accepted_in_every_form(small: ViTConfig, sample_image: Path) -> None:
    model = of_kind(small, "class token")
    with Image.open(sample_image) as opened:
        forms = [sample_image, str(sample_image), sample_image.read_bytes(), np.asarray(opened), opened.copy()]
    found = [vitreous.explain(model, form, methods=["rollout"], device="cpu").maps["rollout"] for form in forms]
    assert all((one == found[0]).all() for one in found)
    larger = vitreous.explain(model, sample_image, methods=["rollout"], image_size=(48, 64), device="cpu")
    assert larger.maps["rollout"].shape == (6, 8)


def test_results_that_are_not_finite_are_an_error(small: ViTConfig, sample_image: Path) -> None:
    model = of_kind(small, "class token")
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN or infinity"):
        vitreous.explain(model, sample_image, device="cpu")


def test_faithfulness_needs_a_map_to_test() -> None:
    model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    with pytest.raises(BadValue, match="faithfulness"):
        vitreous.explain(model, np.zeros((32, 32, 3), np.uint8), methods=["faithfulness"], device="cpu")


def test_a_class_of_a_multilabel_model_is_explained_with_independent_probabilities(small: ViTConfig) -> None:
    model = planted(dataclasses.replace(small, output=MultiLabel()), "class token")
    pixels = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    result = vitreous.explain(model, pixels, methods=["relevance", "occlusion", "lens"], target=3, device="cpu")
    assert list(result.maps) == ["relevance", "occlusion"]
    [scores] = vitreous.MultiLabelPredictor(model, "cpu").logits(pixels).sigmoid()
    assert result.lens[-1].of_target == pytest.approx(float(scores[3]), abs=1e-5)
    assert result.predictions[0].probability == pytest.approx(float(scores.max()), abs=1e-5)


def test_a_target_of_a_regression_model_has_a_relevance_map(small: ViTConfig, tmp_path: Path) -> None:
    scale = Numbers((1.0, 2.0), (1.0, 1.0))
    config = dataclasses.replace(small, num_classes=2, labels=("price", "area"), output=scale)
    model = planted(config, "class token")
    pixels = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    result = vitreous.explain(model, pixels, target="area", out=tmp_path / "out", device="cpu")
    assert list(result.maps) == ["relevance", "rollout", "attention"]
    assert (result.target, result.label, result.predictions) == (1, "area", ())
    assert set(result.skipped) >= {"occlusion", "faithfulness", "lens"}
    assert (tmp_path / "out" / "report.html").is_file()
    with pytest.raises(BadValue, match="numbers"):
        vitreous.explain(model, pixels, methods=["occlusion"], device="cpu")


def test_the_report_counts_from_1_like_the_page(small: ViTConfig, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    model = planted(small, "class token")
    methods = ["heads", "similarity", "lens"]
    vitreous.explain(model, pixels, methods=methods, query=(0, 1), out=tmp_path / "out", device="cpu")  # type: ignore[arg-type]
    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "row 1, column 2" in report
    assert "after layer 2" in report
    assert "layer 0" not in report
