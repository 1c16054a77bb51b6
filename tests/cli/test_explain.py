"""`vitreous explain`: figures, report and errors."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command_line import CommandLine
from single_patch_models import of_kind, planted
from vitreous.explanation import METHODS
from vitreous.explanation import explain_image as module
from vitreous.explanation.explain_image import check_output
from vitreous.model.build import build, build_vit
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.weights.load import save

FILES = {
    "seen", "relevance", "occlusion", "rollout", "attention", "faithfulness", "heads", "distance", "similarity",
    "pca", "lens", "position", "filters",
}  # fmt: skip


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
    command: CommandLine, checkpoint: Path, sample_image: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    done = command("explain", checkpoint, sample_image, "--out", out, "--device", "cpu")
    assert done.returncode == 0
    assert {path.stem for path in out.glob("*.png")} == FILES
    assert all(f"{name}.png" in done.stdout.replace("\n", "") for name in FILES)
    assert "dog & <i>" in done.stdout
    assert "<- explained" in done.stdout
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
    command: CommandLine, checkpoint: Path, sample_image: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    chosen = ["--methods", "heads", "relevance", "--layers", "-1", "--heads", "0", "3", "--query", "1", "2"]
    assert command("explain", checkpoint, sample_image, "--out", out, *chosen, "--class", "3").returncode == 0
    assert {path.stem for path in out.glob("*.png")} == {"seen", "heads", "relevance"}
    assert json.loads((out / "numbers.json").read_text())["class"] == "ant"
    page = (out / "report.html").read_text()
    assert "row 2, column 3" in page  # reports count from 1, as the page does
    assert "Skipped" not in page  # it was not requested
    with Image.open(out / "heads.png") as sheet:
        assert sheet.height < 150


def test_without_an_image(command: CommandLine, checkpoint: Path, tmp_path: Path) -> None:
    done = command("explain", checkpoint, "none", "--out", tmp_path / "out")
    assert done.returncode == 0
    assert {path.stem for path in (tmp_path / "out").glob("*.png")} == {"position", "filters"}
    assert "skipped: relevance, occlusion, rollout, attention" in done.stdout
    assert "no image was given" in (tmp_path / "out" / "report.html").read_text()


def test_without_a_head(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch, small: ViTConfig, sample_image: Path, tmp_path: Path
) -> None:
    save(build_vit(dataclasses.replace(small, num_classes=0)), tmp_path / "headless")
    monkeypatch.setattr(module, "can_draw", lambda: False)
    monkeypatch.setattr("vitreous.explanation.explain_report.can_draw", lambda: False)
    done = command("explain", tmp_path / "headless", sample_image, "--out", tmp_path / "out")
    assert done.returncode == 0
    drawn = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert drawn == FILES - {"relevance", "occlusion", "faithfulness", "lens", "distance"}
    assert "skipped: relevance, occlusion, faithfulness, lens (the model has no classification head" in done.stdout
    assert "matplotlib is not installed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--layers", "2"], 2, "from 0 to 1"),
        (["--heads", "4"], 2, "from 0 to 3"),
        (["--class", "cats"], 2, "one of the model's labels (did you mean 'cat'?)"),
        (["--class", "5"], 2, "from 0 to 4"),
        (["--query", "3", "0"], 2, "rows 0 to 2"),
        (["--query", "3"], 2, "the row and column of a patch"),
        (["--methods", "atention"], 2, "attention"),
        (["--batch-size", "0"], 2, "batch_size is 0"),
        (["--image-size", "25"], 2, "cannot be divided into"),
        (["--lyers", "1"], 2, "--layers"),
    ],
)
def test_invalid_arguments_are_errors(
    command: CommandLine,
    checkpoint: Path,
    sample_image: Path,
    tmp_path: Path,
    arguments: list[str],
    status: int,
    message: str,
) -> None:
    done = command("explain", checkpoint, sample_image, "--out", tmp_path / "out", *arguments)
    assert done.returncode == status
    assert message in " ".join((done.stderr + done.stdout).split())
    assert not (tmp_path / "out").exists()


def test_unreadable_files_are_errors(command: CommandLine, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    for arguments, status, message in (
        ([tmp_path / "text.png"], 1, "text.png: not an image"),
        ([tmp_path / "cat.png"], 1, "cat.png' does not exist"),
        ([tmp_path], 1, "is a folder"),
        (["none", "--methods", "pca"], 2, "method 'pca' is not available: no image was given"),
    ):
        done = command("explain", checkpoint, *arguments, "--out", tmp_path / "out")
        assert done.returncode == status
        assert message in done.stderr


def test_a_resnet_has_no_attention(command: CommandLine, sample_image: Path, tmp_path: Path) -> None:
    save(build(ResNetConfig((64, 64), stages=(1, 1), width=32, num_classes=2)), tmp_path / "resnet")
    done = command("explain", tmp_path / "resnet", sample_image, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "skipped: relevance, rollout, attention" in done.stdout
    figures = {path.stem for path in (tmp_path / "out").glob("*.png")}
    assert figures >= {"seen", "occlusion", "pca", "filters"}
    done = command("explain", tmp_path / "resnet", "none", "--methods", "position", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "no attention layers" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["average", "attention pooling", "hybrid"])
def test_every_kind_of_model(
    command: CommandLine, small: ViTConfig, sample_image: Path, tmp_path: Path, kind: str
) -> None:
    save(of_kind(small, kind), tmp_path / "model")
    some = [name for name in METHODS if name not in ("faithfulness", "distance", "lens")]  # drawing charts is slow
    done = command("explain", tmp_path / "model", sample_image, "--out", tmp_path / "out", "--methods", *some)
    assert done.returncode == 0
    assert len(list((tmp_path / "out").glob("*.png"))) >= len(some)


@pytest.mark.parametrize("name", ["report.html", "numbers.json", "heads.png"])
def test_foreign_files_are_not_replaced(
    command: CommandLine, checkpoint: Path, sample_image: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text("{}")
    words = ["explain", checkpoint, sample_image, "--out", out, "--methods", "heads"]
    assert command(*words).returncode == 1
    assert [path.name for path in out.iterdir()] == [name]
    (out / name).unlink()
    for _ in range(2):  # its own files are replaced
        assert command(*words).returncode == 0
