"""The description of the API against the API itself: requests made from it, right and wrong ones, by schemathesis."""

import subprocess
import sys
from pathlib import Path

import pytest

from live_server import HOST, process

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")


@pytest.mark.skipif(not SCHEMATHESIS.exists(), reason="schemathesis is not installed")
def test_schemathesis_finds_nothing(checkpoint: Path, tmp_path: Path) -> None:
    with process([checkpoint], "--max-body-mb", "1") as live:
        command = [
            str(SCHEMATHESIS), "run", f"http://{HOST}:{live.port}/openapi.json",
            "--max-examples", "15", "--seed", "1", "--no-color",
            "--workers", "1",  # with two, Python 3.11 now and then counts the depth of its own parser wrongly
            "--exclude-checks", "positive_data_acceptance",  # any bytes are a picture to it, but not to us
        ]  # fmt: skip
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
        figures = live.ask("GET", "/metrics").body.decode()
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert not [line for line in figures.splitlines() if 'status="5' in line and "/readyz" not in line]
