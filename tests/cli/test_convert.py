"""`vitreous convert`: output and errors."""

import dataclasses
from pathlib import Path

import pytest

import vitreous
from command_line import CommandLine
from foreign_models import written
from vitreous.model.build import build_vit
from vitreous.model.calibration import Calibration
from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, Gelu, Learned1d


def test_the_source_is_not_overwritten(command: CommandLine, tmp_path: Path) -> None:
    vitreous.save(vitreous.create("ViT-Ti/32", overrides={"depth": 1}), tmp_path / "model")
    before = (tmp_path / "model" / "config.json").read_bytes()
    done = command("convert", tmp_path / "model", tmp_path / "model" / ".", "--to", "huggingface")
    assert done.returncode == 1
    assert "source" in done.stderr
    assert (tmp_path / "model" / "config.json").read_bytes() == before


def test_a_folder_is_advised_only_where_that_helps(command: CommandLine, tmp_path: Path) -> None:
    vitreous.save(vitreous.create("ViT-Ti/32", overrides={"depth": 1}), tmp_path / "model")  # GELU by tanh
    done = command("convert", tmp_path / "model", tmp_path / "x.pth", "--to", "timm")
    assert done.returncode == 1
    assert "folder" in done.stderr
    assert command("convert", tmp_path / "model", tmp_path / "folder", "--to", "timm").returncode == 0
    done = command("convert", tmp_path / "model", tmp_path / "x.pth", "--to", "torchvision")
    assert done.returncode == 1
    assert "folder" not in done.stderr.replace(str(tmp_path), "")


@pytest.mark.parametrize("case", ["timm", "vitreous, ResNet", "vitreous, linear segmenter"])
def test_check_prints_the_difference_after_every_stage(case: str, command: CommandLine, tmp_path: Path) -> None:
    done = command("convert", written(case, tmp_path), tmp_path / "copy", "--to", "vitreous", "--check")
    assert done.returncode == 0
    assert "wrote" in done.stdout
    assert all(word in done.stdout for word in ("verified", "features", "logits"))


def test_assumptions_are_printed_and_recorded(command: CommandLine, tmp_path: Path) -> None:
    model = vitreous.create("ViT-Ti/16", num_classes=3, image_size=32, overrides={"depth": 1, "mlp": Gelu("erf")})
    vitreous.save(model, tmp_path / "x.safetensors", format="timm")
    done = command("convert", tmp_path / "x.safetensors", tmp_path / "back", "--to", "vitreous")
    assert "assumed: num_heads" in done.stdout
    assert "num_heads: 64 dimensions per head" in (tmp_path / "back" / "config.json").read_text()


def test_export_formats_are_answered_with_the_command(command: CommandLine, tmp_path: Path) -> None:
    done = command("convert", tmp_path / "model", tmp_path / "x.onnx", "--to", "onnx")
    assert done.returncode == 2
    assert "vitreous export --to onnx" in done.stderr


def test_a_calibration_that_is_not_kept_is_named_without_its_numbers(
    small: ViTConfig, command: CommandLine, tmp_path: Path
) -> None:
    config = dataclasses.replace(small, calibration=Calibration(1.5, 20, true_probabilities=(0.1, 0.2)))
    vitreous.save(build_vit(config), tmp_path / "saved")
    printed = command("convert", tmp_path / "saved", tmp_path / "x.npz", "--to", "google").stdout.splitlines()
    assert "  not preserved: calibration" in printed


def test_fields_that_the_format_does_not_keep_are_printed(
    small: ViTConfig, command: CommandLine, tmp_path: Path
) -> None:
    square = dataclasses.replace(small, image_size=(32, 32), mlp=Gelu("erf"), preprocessing=IMAGENET)
    config = dataclasses.replace(
        square, num_classes=2, labels=("[/cat]", "dog"), position=Learned1d(interpolation="timm")
    )
    vitreous.save(build_vit(config), tmp_path / "saved")
    done = command("convert", tmp_path / "saved", tmp_path / "x[red].pth", "--to", "torchvision")
    printed = " ".join(done.stdout.split())
    assert "x[red].pth" in printed
    assert "not preserved: labels: ('[/cat]', 'dog') is read as ()" in printed
    assert "not preserved: preprocessing" in printed
    assert "not preserved: num_heads (pass num_heads=4 when loading)" in printed
