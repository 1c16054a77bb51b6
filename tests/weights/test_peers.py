"""`vitreous.convert(check=True)` runs the other library on the written checkpoint."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import pytest

import vitreous
from foreign_models import PLAIN, WITHOUT_BIAS
from optional_imports import import_torchvision, import_transformers, import_vit_pytorch
from parity import noisy
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu

VIT_PYTORCH = dataclasses.replace(WITHOUT_BIAS, norm_eps=1e-5)


def saved(config: ViTConfig, folder: Path) -> Path:
    vitreous.save(noisy(build(config)), folder / "saved")  # type: ignore[arg-type]
    return folder / "saved"


@pytest.mark.parametrize(
    ("to", "target", "config"),
    [
        ("timm", "folder", PLAIN),
        ("timm", "folder", dataclasses.replace(PLAIN, mlp=Gelu("tanh"), registers=2)),
        ("timm", "x.safetensors", PLAIN),
        ("torchvision", "x.pth", PLAIN),
        ("torchvision", "x.pth", dataclasses.replace(PLAIN, num_classes=0)),
        ("huggingface", "folder", dataclasses.replace(PLAIN, norm_eps=1e-12)),
        ("huggingface", "folder", dataclasses.replace(PLAIN, norm_eps=1e-12, num_classes=0)),
        ("lucidrains", "x.pth", VIT_PYTORCH),
    ],
)
def test_libraries_compute_the_same_outputs(to: str, target: str, config: ViTConfig, tmp_path: Path) -> None:
    {"huggingface": import_transformers, "lucidrains": import_vit_pytorch}.get(to, import_torchvision)()
    peer = vitreous.convert(saved(config, tmp_path), tmp_path / target, to=to, check=True).peer
    assert peer is not None
    assert peer.outputs is not None, peer.reason
    assert peer.outputs.largest < 2e-5 < peer.outputs.scale


def test_accepted_losses_are_measured_with_the_library(tmp_path: Path) -> None:
    import_torchvision()
    source = saved(dataclasses.replace(PLAIN, mlp=Gelu("tanh")), tmp_path)
    result = vitreous.convert(source, tmp_path / "x.pth", to="timm", lossy=True, check=True)
    assert result.peer is not None
    assert result.peer.outputs is not None
    assert result.peer.outputs.largest == pytest.approx(result.differences[-1].largest, rel=0.05)
    assert result.peer.outputs.largest > 4e-5


def test_missing_library_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    peer = vitreous.convert(saved(PLAIN, tmp_path), tmp_path / "folder", to="timm", check=True).peer
    assert peer == ("timm", None, "timm is not installed")
    assert vitreous.convert(tmp_path / "saved", tmp_path / "x.npz", to="google", lossy=True, check=True).peer is None


def test_command_names_what_was_verified(tmp_path: Path, command: Any) -> None:
    import_torchvision()
    source = saved(PLAIN, tmp_path)
    output = command("convert", source, tmp_path / "folder", "--to", "timm", "--check").stdout
    assert "verified with timm" in output
    output = command("convert", source, tmp_path / "x.npz", "--to", "google", "--lossy", "--check").stdout
    assert "not verified with another library" in output


def test_assumptions_about_an_earlier_file_are_not_printed(tmp_path: Path, command: Any) -> None:
    """A fine-tuned model keeps the provenance of the file that it started from."""
    vitreous.save(noisy(build(PLAIN)), tmp_path / "x.pth", format="timm")  # type: ignore[arg-type]
    assert "assumed" in command("convert", tmp_path / "x.pth", tmp_path / "ours", "--to", "vitreous").stdout
    output = command("convert", tmp_path / "ours", tmp_path / "again", "--to", "timm").stdout
    assert "assumed" not in output
    assert "(Vitreous)" in output
