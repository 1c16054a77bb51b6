"""`vitreous export --to web` on the command line."""

from dataclasses import replace
from pathlib import Path

import pytest

import vitreous
from command_line import CommandLine
from vitreous.exporting.web.runtime import WASM
from vitreous.model.config import ViTConfig


@pytest.mark.slow
def test_the_command_writes_the_folder(command: CommandLine, small: ViTConfig, tmp_path: Path) -> None:
    checkpoint = tmp_path / "encoder"
    vitreous.save(vitreous.build(replace(small, num_classes=0, depth=1)), checkpoint)
    package = tmp_path / "package"
    package.mkdir()
    for name in WASM:
        (package / name).touch()
    out = tmp_path / "site"
    ran = command(
        "export", str(checkpoint), "--to", "web", "--out", str(out), "--runtime", str(package), "--precision", "fp16"
    )
    assert ran.returncode == 0, ran.stderr
    assert (out / "index.html").exists()


def test_flags_without_effect_are_refused(command: CommandLine, checkpoint: Path, tmp_path: Path) -> None:
    base = ["export", str(checkpoint), "--out", str(tmp_path / "site"), "--to"]
    for words in (
        ["web", "--dynamic-size"],
        ["web", "--precision", "bf16"],
        ["onnx", "--webgpu"],
        ["web", "--outputs", "pooled"],
    ):
        assert command(*base, *words).returncode == 2
    assert not (tmp_path / "site").exists()
