"""`vitreous demo`, with one epoch."""

import dataclasses
import json
from pathlib import Path

import pytest

from vitreous.cli import demo


@pytest.mark.slow
def test_the_demo_trains_and_walks_through_the_equations(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short = dataclasses.replace(demo.config(tmp_path / "demo"), epochs=1)
    monkeypatch.setattr(demo, "config", lambda out: short)
    monkeypatch.setattr(demo, "FOLDER", tmp_path / "demo")
    demo.demo()
    out = capsys.readouterr().out
    assert all(shape in out for shape in ("1 x 1 x 8 x 8", "1 x 16 x 128", "1 x 4 x 16 x 16", "1 x 10"))
    assert json.loads((tmp_path / "demo" / "metrics.json").read_text())["count"] == 359
    assert "vitreous predict" in out
    assert (tmp_path / "demo" / "report.html").stat().st_size > 50_000
