"""Kernels, compiled for GPUs that this machine need not have, fit their shared memory and keep values in registers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OPERATIONS = "add_norm 768 scaled|bias_gelu erf|attention 197|window_attention 49 shifted|fp8"


@pytest.mark.slow
def test_kernels_fit_the_gpus(tmp_path: Path) -> None:
    """GeForce GPUs (86) have less than half the shared memory of an H100 (90)."""
    file = tmp_path / "resources.json"
    arguments = ["--capabilities", "86", "90", "--operations", OPERATIONS, "--json", str(file)]
    # The interpreter of the other tests cannot compile.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-m", "benchmarks.kernel_resources", *arguments], check=True, env=environment)
    rows = json.loads(file.read_text())
    names = {(row["operation"], row["kernel"], row["capability"]) for row in rows}
    assert ("attention 197", "_backward", 90) in names
    assert ("attention 197", "_backward", 86) not in names  # plain attention is used there
    assert not [row for row in rows if "shared memory" in row["problem"]]
    assert max(row["spilled"] for row in rows if row["capability"] == 90) < 100


@pytest.mark.slow
def test_benchmark_of_kernels_runs_without_a_gpu(tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    arguments = ["--device", "cpu", "--sizes", "test", "--batch-size", "1", "--tokens", "5", "--out", str(file)]
    subprocess.run([sys.executable, "-m", "benchmarks.kernels", *arguments], check=True, capture_output=True)
    results = json.loads(file.read_text())["results"]
    assert not [result["problem"] for result in results if result["problem"]]
    errors = {
        result["operation"]: result["error"] for result in results if result["error"] and result["system"] == "fused"
    }
    assert len(errors) == 9
    assert max(errors.values()) < 0.1
