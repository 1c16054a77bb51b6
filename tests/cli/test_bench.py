"""`vitreous bench` rejects typos before it measures anything, and writes its results."""

import json
from pathlib import Path

import pytest

from command_line import CommandLine
from vitreous.benchmarking import systems
from vitreous.benchmarking.comparison import WORKLOADS
from vitreous.cli import bench


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--against", "tim"], "did you mean 'timm'?"),
        (["--against", ","], "at least one name"),
        (["--workloads", "training"], "did you mean 'train'?"),
        (["--models", "ViT-B16"], "did you mean 'ViT-B/16'?"),
        (["--rounds", "0"], "rounds is 0"),
        (["--seconds", "-1"], "seconds is -1"),
        (["--agianst", "timm"], "--against"),
    ],
)
def test_invalid_arguments(command: CommandLine, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = command("bench", "--device", "cpu", "--out", tmp_path / "out", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_defaults_name_all_libraries_and_workloads() -> None:
    assert bench.PEERS.split(",") == list(systems.PEERS)
    assert tuple(bench.WORKLOADS.split(",")) == WORKLOADS


def test_results_are_printed_and_written(command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "CPU_PRODUCT", 64)
    monkeypatch.setattr(systems, "LONG_JOB", 1)  # no conversion
    monkeypatch.setattr(systems.Peer, "installed", False)
    flags = ["--models", "ViT-Lite-6/4", "--workloads", "latency", "--rounds", "1", "--eager", "--device", "cpu"]
    done = command("bench", *flags, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "vitreous" in done.stdout
    assert "vit-pytorch is not installed" in done.stderr
    record = json.loads((tmp_path / "bench.json").read_text())
    assert [row["workload"] for row in record["results"]] == ["latency"]
    done = command("bench", *flags, "--out", tmp_path, "--json")
    assert json.loads(done.stdout)["results"][0]["model"] == "ViT-Lite-6/4"
