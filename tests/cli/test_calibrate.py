"""`vitreous calibrate`: where the calibration is stored, and errors."""

from pathlib import Path

import pytest
import torch

import vitreous
from command_line import CommandLine
from vitreous.model import calibration
from vitreous.weights.native import provenance_of

TINY = {"depth": 1, "patch_size": 4, "width": 32, "mlp_width": 32, "num_heads": 2}
DIGITS = ("--data", "digits", "--device", "cpu")


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """The checkpoint folder of an overconfident classifier of digits."""
    model = vitreous.create("ViT-Lite-6/4", num_classes=10, image_size=8, overrides=TINY)
    torch.nn.init.normal_(model.heads[0].weight, std=3)  # type: ignore[arg-type]
    vitreous.save(model, tmp_path / "digits")
    return tmp_path / "digits"


def test_the_calibration_is_added_to_the_checkpoint(command: CommandLine, digits: Path) -> None:
    weights = (digits / "model.safetensors").read_bytes()
    done = command("calibrate", digits, *DIGITS)
    assert done.returncode == 0, done.stderr
    assert "359 images" in done.stdout
    loaded = vitreous.load(digits)
    assert loaded.config.calibration is not None
    assert provenance_of(loaded)["calibration"] == {"data": "digits", "split": "val", "images": 359}
    assert (digits / "model.safetensors").read_bytes() == weights


def test_too_few_images_to_mark_unknown_ones_are_reported(
    command: CommandLine, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "marked as unknown" not in command("calibrate", digits, *DIGITS).stdout
    monkeypatch.setattr(calibration, "FEWEST", 360)
    assert "marked as unknown" in command("calibrate", digits, *DIGITS).stdout


def test_a_calibrated_copy_is_written_to_another_folder(command: CommandLine, digits: Path, tmp_path: Path) -> None:
    done = command("calibrate", digits, *DIGITS, "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "new") in done.stdout
    assert vitreous.load(digits).config.calibration is None
    assert vitreous.load(tmp_path / "new").config.calibration is not None


def test_a_checkpoint_of_another_library_needs_a_folder(command: CommandLine, digits: Path, tmp_path: Path) -> None:
    vitreous.save(vitreous.load(digits), tmp_path / "x.npz", format="google", lossy=True)
    done = command("calibrate", tmp_path / "x.npz", *DIGITS)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "out is None" in done.stderr


def test_training_images_are_not_accepted(command: CommandLine, digits: Path) -> None:
    done = command("calibrate", digits, *DIGITS, "--split", "train")
    assert done.returncode == 2
    assert "--split" in done.stderr


def test_other_classes_are_an_error(command: CommandLine, model: Path) -> None:
    before = (model / "config.json").read_bytes()
    done = command("calibrate", model, *DIGITS)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "ant, bee, cat" in done.stderr
    assert (model / "config.json").read_bytes() == before


def test_only_classifiers_are_calibrated(command: CommandLine, tmp_path: Path) -> None:
    vitreous.save(vitreous.create("ViT-Lite-6/4", num_classes=0, image_size=8, overrides=TINY), tmp_path / "encoder")
    done = command("calibrate", tmp_path / "encoder", *DIGITS)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "classifier" in done.stderr
