"""`vitreous quantise`: where the scales are stored, predictions with them, and errors."""

from pathlib import Path

import pytest
import torch

import vitreous
from command_line import CommandLine
from every_family import FAMILIES
from vitreous.data import open_data
from vitreous.model.build import build
from vitreous.weights.native import int8_scales

TINY = {"depth": 1, "patch_size": 4, "width": 32, "mlp_width": 32, "num_heads": 2}


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """The checkpoint folder of a classifier of digits with large margins."""
    overrides = {**TINY, "labels": open_data("digits").classes}
    model = vitreous.create("ViT-Lite-6/4", num_classes=10, image_size=8, overrides=overrides)
    torch.nn.init.normal_(model.heads[0].weight, std=3)  # type: ignore[arg-type]
    vitreous.save(model, tmp_path / "digits")
    return tmp_path / "digits"


def test_the_scales_are_added_to_the_checkpoint(command: CommandLine, digits: Path) -> None:
    image = Path(vitreous.__file__).parent / "page" / "static" / "examples"
    failed = command("predict", digits, image, "--device", "cpu", "--precision", "int8")
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1)
    assert "vitreous quantise" in failed.stderr
    weights = (digits / "model.safetensors").read_bytes()
    done = command("quantise", digits, "--data", "digits")
    assert done.returncode == 0, done.stderr
    assert "in int8, same labels as in float32: " in done.stdout
    assert (digits / "model.safetensors").read_bytes() == weights
    assert int8_scales(vitreous.load(digits)).layers
    done = command("predict", digits, image, "--device", "cpu", "--precision", "int8")
    assert done.returncode == 0, done.stderr
    assert "int8" in done.stderr


def test_a_checkpoint_of_another_library_needs_a_folder(command: CommandLine, digits: Path, tmp_path: Path) -> None:
    vitreous.save(vitreous.load(digits), tmp_path / "x.npz", format="google", lossy=True)
    done = command("quantise", tmp_path / "x.npz", "--data", "digits")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--out" in done.stderr


def test_segmenters_are_rejected(command: CommandLine, tmp_path: Path) -> None:
    vitreous.save(build(FAMILIES["ViT segmenter"]), tmp_path / "segmenter")
    done = command("quantise", tmp_path / "segmenter", "--data", "digits")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "one output per image" in done.stderr
