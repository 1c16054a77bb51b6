"""`vitreous.calibrate`, and the calibration error in `vitreous.evaluate`."""

from pathlib import Path

import pytest
import torch

import vitreous
from command_line import CommandLine
from vitreous.model.protocol import Model
from vitreous.weights.native import provenance_of

TINY = {"depth": 1, "patch_size": 4, "width": 32, "mlp_width": 32, "num_heads": 2}


def overconfident() -> Model:
    """Return a classifier of digits that is almost certain and almost always wrong."""
    model = vitreous.create("ViT-Lite-6/4", num_classes=10, image_size=8, overrides=TINY)
    torch.nn.init.normal_(model.heads[0].weight, std=3)  # type: ignore[arg-type]
    return model


def test_calibration_reduces_the_error_and_keeps_the_accuracy() -> None:
    model = overconfident()
    found = vitreous.calibrate(model, "digits", device="cpu")
    assert model.config.calibration is None
    assert found.calibration.temperature > 2
    assert found.ece_calibrated < 0.5 * found.ece
    before, after = (vitreous.evaluate(one, "digits", device="cpu") for one in (model, found.model))
    assert isinstance(before, vitreous.ClassificationMetrics)
    assert isinstance(after, vitreous.ClassificationMetrics)
    assert (after.top1, after.loss, after.ece) == (before.top1, before.loss, before.ece)
    assert (before.ece_calibrated, after.ece_calibrated) == (None, found.ece_calibrated)


def test_only_the_split_of_the_calibration_is_cross_fitted() -> None:
    model = vitreous.calibrate(overconfident(), "digits", device="cpu").model
    val, train = (vitreous.evaluate(model, "digits", split=split, device="cpu") for split in ("val", "train"))
    assert isinstance(val, vitreous.ClassificationMetrics)
    assert isinstance(train, vitreous.ClassificationMetrics)
    assert (val.evaluation.cross_fitted, train.evaluation.cross_fitted) == (True, False)
    assert train.ece_calibrated is not None
    assert train.ece_calibrated < train.ece


def test_the_command_adds_the_calibration_to_a_checkpoint(command: CommandLine, tmp_path: Path) -> None:
    vitreous.save(overconfident(), tmp_path / "x")
    weights = (tmp_path / "x" / "model.safetensors").read_bytes()
    done = command("calibrate", tmp_path / "x", "--data", "digits", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "359 images" in done.stdout
    loaded = vitreous.load(tmp_path / "x")
    assert loaded.config.calibration is not None
    assert provenance_of(loaded)["calibration"] == {"data": "digits", "split": "val", "images": 359}
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == weights


def test_a_checkpoint_of_another_library_needs_a_folder(command: CommandLine, tmp_path: Path) -> None:
    vitreous.save(overconfident(), tmp_path / "x.npz", format="google", lossy=True)
    done = command("calibrate", tmp_path / "x.npz", "--data", "digits")
    assert done.returncode == 2
    assert "out is None" in done.stderr


def test_a_model_without_classes_is_rejected() -> None:
    model = vitreous.create("ViT-Lite-6/4", num_classes=0, image_size=8, overrides=TINY)
    with pytest.raises(ValueError, match="classes"):
        vitreous.calibrate(model, "digits", device="cpu")
