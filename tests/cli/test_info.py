"""`vitreous info`: presets and checkpoints as tables and JSON."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import vitreous
from command_line import CommandLine
from vitreous.model import PRESETS
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig


def test_a_missing_path_is_reported_as_a_checkpoint(command: CommandLine, tmp_path: Path) -> None:
    done = command("info", tmp_path / "missing.pth")
    assert done.returncode == 1
    assert "not found" in done.stderr


@pytest.mark.slow
def test_json(command: CommandLine) -> None:
    done = command("info", "ViT-Ti/16", "--image-size", "224", "320", "--num-classes", "10", "--json")
    answer = json.loads(done.stdout)
    assert answer["parameters"] == 5_717_416 - 192 * 990 - 990 + 192 * 84  # fewer classes, more positions
    assert answer["tokens"] == 1 + 14 * 20
    assert answer["config"]["image_size"] == [224, 320]
    assert (answer["kernels"]["scope"] == "none") == bool(answer["kernels"]["reason"])


def test_number_of_classes_of_a_checkpoint(command: CommandLine, checkpoint: Path) -> None:
    def described(*flags: str) -> dict[str, Any]:
        return json.loads(command("info", checkpoint, "--json", *flags).stdout)

    whole, other, bare = described(), described("--num-classes", "3"), described("--num-classes", "0")
    assert [one["config"]["num_classes"] for one in (whole, other, bare)] == [10, 3, 0]
    assert whole["parameters"] - other["parameters"] == 7 * (whole["config"]["width"] + 1)
    assert other["config"]["labels"] == []


def test_table_of_a_small_checkpoint(command: CommandLine, tmp_path: Path) -> None:
    config = ViTConfig(image_size=(8, 8), patch_size=(4, 4), depth=1, num_classes=2, labels=("[/cat]", "dog\x1b[2J"))
    vitreous.save(build_vit(config), tmp_path / "model")
    printed = command("info", tmp_path / "model").stdout
    assert "2 classes: '[/cat]', 'dog\\x1b[2J'" in printed
    assert float(re.search(r"([\d.]+) MiB of activations", printed)[1]) > 0  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-B/16", "R50+ViT-B/16", "DINOv2-S/14-reg", "BiT-R50x1"])
def test_table(command: CommandLine, name: str) -> None:
    done = command("info", name)
    assert done.returncode == 0
    assert name in done.stdout
    assert "GMACs" in done.stdout


@pytest.mark.parametrize("name", ["ViT-Ti/4", "Swin-Ti/2", "BiT-R50x1"])
def test_kernels_on_this_machine(command: CommandLine, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_KERNELS", "off")
    reason = "none exist" if name.startswith("BiT") else "VITREOUS_KERNELS=off"
    assert reason in next(line for line in command("info", name).stdout.splitlines() if "this machine" in line)


def test_every_preset_is_listed(command: CommandLine) -> None:
    listed = command("info").stdout
    assert all(name in listed for name in PRESETS)
    assert set(json.loads(command("info", "--json").stdout)) == set(PRESETS)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--jsn"], 2, "--json"),
        (["--num-classes", "many"], 2, "--num-classes"),
        (["ViT-B16"], 2, "preset 'ViT-B16' (did you mean 'ViT-B/16'?)"),
        (["ViT-B/16", "--image-size", "225"], 2, "use 224 x 224 or 240 x 240"),
        (["ViT-B/16", "--image-size", "1", "2", "3"], 2, "must be one integer"),
        (["ViT-B/16", "--num-classes", "-5"], 2, "num_classes is -5"),
    ],
)
def test_invalid_arguments_exit_with_a_reason(
    command: CommandLine, arguments: list[str], status: int, message: str
) -> None:
    done = command("info", *arguments)
    assert done.returncode == status
    assert message in " ".join(done.stderr.split())
