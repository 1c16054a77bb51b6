"""`vitreous extend`: what it prints and writes, and errors."""

from pathlib import Path

import pytest
from PIL import Image

import vitreous
from command_line import CommandLine
from train_runs import skip_report
from vitreous.model.build import build
from vitreous.model.presets import configure

SMALL = {"patch_size": 4, "width": 32, "mlp_width": 32, "depth": 1, "num_heads": 2}
CPU = ("--device", "cpu")


def colours(folder: Path, **levels: int) -> Path:
    """Write eight grey images for each class, close to its grey level."""
    for name, level in levels.items():
        (folder / name).mkdir(parents=True)
        for i in range(8):
            Image.new("RGB", (8, 8), (level + i, level, level - i)).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def start(tmp_path: Path) -> Path:
    vitreous.save(build(configure("ViT-Lite-6/4", 3, 8, SMALL)), tmp_path / "start")
    return tmp_path / "start"


@pytest.fixture
def classifier(start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint from `train --train-only lda` with the classes black and grey."""
    skip_report(monkeypatch)
    data = colours(tmp_path / "data", black=20, grey=130)
    run = vitreous.train(data=data, init=start, train_only="lda", out=tmp_path / "run", device="cpu", workers=0)
    return run.folder / "best"


def test_images_and_classes_are_added(classifier: Path, tmp_path: Path, command: CommandLine) -> None:
    more = colours(tmp_path / "more", black=22, white=235)
    (more / "white" / "broken.png").write_bytes(b"")
    done = command("extend", classifier, "--data", more, "--out", tmp_path / "out", *CPU)
    assert done.returncode == 0, done.stderr
    assert "added 16 images of 'black', 'white'" in done.stdout
    assert "new classes: 'white'" in done.stdout
    assert "broken.png" in done.stdout
    assert str(tmp_path / "out") in done.stdout
    [result] = vitreous.predict(tmp_path / "out", more / "white" / "3.png", device="cpu")
    assert result.predictions[0].label == "white"  # type: ignore[union-attr]
    assert vitreous.load(classifier).config.labels == ("black", "grey")


def test_an_ordinary_classifier_is_an_error(start: Path, tmp_path: Path, command: CommandLine) -> None:
    done = command("extend", start, "--data", colours(tmp_path / "more", white=235), "--out", tmp_path / "out", *CPU)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "--train-only lda" in done.stderr
    assert not (tmp_path / "out").exists()


def test_missing_images_are_an_error(classifier: Path, tmp_path: Path, command: CommandLine) -> None:
    done = command("extend", classifier, "--data", tmp_path / "nowhere", "--out", tmp_path / "out", *CPU)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "nowhere" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [("--data", "more"), ("--data", "more", "--out", "out", "--epochs", "2")])
def test_invalid_flags_are_rejected(words: tuple[str, ...], command: CommandLine) -> None:
    done = command("extend", "nowhere", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert ("--epochs" if "--epochs" in words else "--out") in done.stderr
