"""`vitreous export`: output and errors."""

import json
import sys
from pathlib import Path

import pytest

from command_line import CommandLine


@pytest.mark.slow
def test_the_comparison_is_printed_and_recorded(
    command: CommandLine, model: Path, images: Path, tmp_path: Path
) -> None:
    done = command("export", model, "--to", "onnx", "--out", tmp_path / "out", "--data", images, "--max-images", 3)
    assert done.returncode == 0, done.stderr
    assert "model.onnx" in done.stdout
    assert "100.00%" in done.stdout
    [check] = json.loads((tmp_path / "out" / "export.json").read_text())["checks"]
    assert check["differences"]["logits"] < 1e-4


def test_a_missing_package_is_one_line(
    command: CommandLine, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    done = command("export", model, "--to", "onnx", "--out", tmp_path / "out")
    assert done.returncode == 1
    assert 'pip install "vitreous[export]"' in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_unsupported_precision_is_an_argument_error(command: CommandLine, model: Path, tmp_path: Path) -> None:
    done = command("export", model, "--to", "onnx", "--out", tmp_path / "out", "--precision", "bf16")
    assert done.returncode == 2
    assert "fp16" in done.stderr
