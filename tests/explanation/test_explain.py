import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitreous
from single_patch_models import of_kind, planted
from vitreous.cli.main import main
from vitreous.explanation import METHODS
from vitreous.explanation import explain as module
from vitreous.explanation.explain import check_output
from vitreous.model.build import build, build_vit
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.weights.load import save

FILES = {
    "seen", "relevance", "occlusion", "rollout", "attention", "faithfulness", "heads", "distance", "similarity",
    "pca", "lens", "position", "filters",
}  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit status of `vitreous explain` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["vitreous", "explain", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def sample_image(tmp_path: Path) -> Path:
    """A wide image, bright in the patch that matters to a planted model: crop_fraction is 0.875, of the middle."""
    pixels = np.random.default_rng(0).integers(100, 140, (120, 300, 3), dtype=np.uint8)
    pixels[45:75, 150:185] = 255
    path = tmp_path / "<b>wide.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def checkpoint(small: ViTConfig, tmp_path: Path) -> Path:
    model = planted(small, "registers")
    model.config = dataclasses.replace(model.config, labels=("cat", "dog & <i>", "cow", "ant", "eel"))
    save(model, tmp_path / "runs" / "mine" / "best")
    return tmp_path / "runs" / "mine" / "best"


@pytest.mark.slow
def test_all_figures_are_drawn_and_reported(
    monkeypatch, capsys, checkpoint: Path, sample_image: Path, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    assert run(monkeypatch, checkpoint, sample_image, "--out", out, "--device", "cpu") == 0
    assert {path.stem for path in out.glob("*.png")} == FILES
    output = capsys.readouterr().out
    assert all(f"{name}.png" in output.replace("\n", "") for name in FILES)
    assert "dog & <i>" in output
    assert "<- explained" in output
    page = (out / "report.html").read_text()
    assert "Attention is not attribution" in page
    assert "dog &amp; &lt;i&gt;" in page
    assert "&lt;b&gt;wide.png, explained with mine" in page
    assert "<i>" not in page.replace("<i style", "")
    assert "http://" not in page
    assert "prefers-color-scheme: dark" in page
    numbers = json.loads((out / "numbers.json").read_text())
    assert numbers["class"] == "dog & <i>"
    assert set(numbers["faithfulness"]) == {"relevance", "occlusion", "rollout", "attention", "random"}
    tested = numbers["faithfulness"]
    assert tested["occlusion"]["deletion"] < tested["random"]["deletion"]
    assert tested["relevance"]["insertion"] > tested["random"]["insertion"]
    assert np.shape(numbers["attention_distance"]["1"]) == (4,)
    with Image.open(out / "relevance.png") as drawn:
        assert drawn.size == (448, 179)  # as wide as it was, not squashed
        grey = np.asarray(drawn.convert("L")).astype(int)
    row, column = np.unravel_index(grey.argmax(), grey.shape)
    assert 45 <= row * 120 / 179 <= 75
    assert 145 <= column * 300 / 448 <= 190
    for name in ("report.html", "numbers.json"):  # written last: a kill leaves figures alone, which may be replaced
        (out / name).unlink()
        check_output(out)


def test_layers_heads_class_and_query_can_be_chosen(
    monkeypatch, checkpoint: Path, sample_image: Path, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    chosen = ["--methods", "heads", "relevance", "--layers", "-1", "--heads", "0", "3", "--query", "1", "2"]
    assert run(monkeypatch, checkpoint, sample_image, "--out", out, *chosen, "--class", "3") == 0
    assert {path.stem for path in out.glob("*.png")} == {"seen", "heads", "relevance"}
    assert json.loads((out / "numbers.json").read_text())["class"] == "ant"
    page = (out / "report.html").read_text()
    assert "row 1, column 2" in page
    assert "Skipped" not in page  # it was not requested
    with Image.open(out / "heads.png") as sheet:
        assert sheet.height < 150


def test_without_an_image(monkeypatch, capsys, checkpoint: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, checkpoint, "none", "--out", tmp_path / "out") == 0
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"position", "filters"}
    assert "skipped: relevance, occlusion, rollout, attention" in capsys.readouterr().out
    assert "no image was given" in (tmp_path / "out" / "report.html").read_text()


def test_without_a_head(monkeypatch, capsys, small: ViTConfig, sample_image: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    save(build_vit(dataclasses.replace(small, num_classes=0)), tmp_path / "headless")
    monkeypatch.setattr(module, "can_draw", lambda: False)
    monkeypatch.setattr("vitreous.explanation.explain_report.can_draw", lambda: False)
    assert run(monkeypatch, tmp_path / "headless", sample_image, "--out", tmp_path / "out") == 0
    drawn = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert drawn == FILES - {"relevance", "occlusion", "faithfulness", "lens", "distance"}
    output = capsys.readouterr().out
    assert "skipped: relevance, occlusion, faithfulness, lens (the model has no classification head" in output
    assert "matplotlib is not installed" in output


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--layers", "2"], 2, "from 0 to 1"),
        (["--heads", "4"], 2, "from 0 to 3"),
        (["--class", "cats"], 2, "one of the model's labels (did you mean 'cat'?)"),
        (["--class", "5"], 2, "or a number from 0 to 4"),
        (["--query", "3", "0"], 2, "rows 0 to 2"),
        (["--query", "3"], 2, "the row and column of a patch"),
        (["--methods", "atention"], 2, "attention"),
        (["--batch-size", "0"], 2, "batch_size is 0"),
        (["--image-size", "25"], 2, "cannot be divided into"),
        (["--lyers", "1"], 2, "--layers"),
    ],
)
def test_invalid_arguments_are_errors(
    monkeypatch, capsys, checkpoint, sample_image, tmp_path, arguments, status, message
) -> None:  # type: ignore[no-untyped-def]
    assert run(monkeypatch, checkpoint, sample_image, "--out", tmp_path / "out", *arguments) == status
    captured = capsys.readouterr()
    assert message in " ".join((captured.err + captured.out).split())
    assert not (tmp_path / "out").exists()


def test_unreadable_files_are_errors(monkeypatch, capsys, checkpoint: Path, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "text.png").write_text("no picture")
    assert run(monkeypatch, checkpoint, tmp_path / "text.png", "--out", tmp_path / "out") == 1
    assert "text.png: not an image" in capsys.readouterr().err
    assert run(monkeypatch, checkpoint, tmp_path / "cat.png", "--out", tmp_path / "out") == 1
    assert "cat.png' does not exist" in capsys.readouterr().err
    assert run(monkeypatch, checkpoint, tmp_path, "--out", tmp_path / "out") == 1
    assert "is a folder; explain takes a single image" in capsys.readouterr().err
    assert run(monkeypatch, checkpoint, "none", "--methods", "pca", "--out", tmp_path / "out") == 2
    assert "method 'pca' is not available: no image was given" in capsys.readouterr().err


def test_a_resnet_has_no_attention(monkeypatch, capsys, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    save(build(ResNetConfig(stages=(1,), width=32, num_classes=2)), tmp_path / "resnet")
    assert run(monkeypatch, tmp_path / "resnet", "none", "--out", tmp_path / "out") == 1
    assert "explain needs a Vision Transformer" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["average", "attention pooling", "hybrid"])
def test_every_kind_of_model(monkeypatch, small: ViTConfig, sample_image: Path, tmp_path: Path, kind: str) -> None:  # type: ignore[no-untyped-def]
    save(of_kind(small, kind), tmp_path / "model")
    some = [name for name in METHODS if name not in ("faithfulness", "distance", "lens")]  # drawing charts is slow
    assert run(monkeypatch, tmp_path / "model", sample_image, "--out", tmp_path / "out", "--methods", *some) == 0
    assert len(list((tmp_path / "out").glob("*.png"))) >= len(some)


@pytest.mark.parametrize("name", ["report.html", "numbers.json", "heads.png"])
def test_foreign_files_are_not_replaced(
    monkeypatch, checkpoint: Path, sample_image: Path, tmp_path: Path, name: str
) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("{}")
    assert run(monkeypatch, checkpoint, sample_image, "--out", out, "--methods", "heads") == 1
    assert [path.name for path in out.iterdir()] == [name]
    (out / name).unlink()
    for _ in range(2):  # its own files are replaced
        assert run(monkeypatch, checkpoint, sample_image, "--out", out, "--methods", "heads") == 0


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
    other = vitreous.explain(model, pixels, methods=["relevance"], target=3, out=tmp_path / "out", device="cpu")
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


def test_answers_that_are_not_numbers_are_an_error(small: ViTConfig, sample_image: Path) -> None:
    model = of_kind(small, "class token")
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="NaN or infinity"):
        vitreous.explain(model, sample_image, device="cpu")
