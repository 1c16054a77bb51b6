"""Progress lines: long stages are logged now and then, short stages are not."""

import pytest

from vitreous.common import progress
from vitreous.common.progress import ProgressLines, tracked


def test_a_long_stage_logs_its_count_and_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    lines: list[str] = []
    list(tracked(range(50), "evaluating images", 50, ProgressLines(lines.append)))
    assert len(lines) == 2  # after 21 and 42 seconds
    assert "evaluating images" in lines[0]
    assert "21 of 50" in lines[0]
    assert "1 images/s" in lines[0]


def test_short_stages_log_nothing_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(1000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    lines: list[str] = []
    report = ProgressLines(lines.append)
    for _ in range(10):
        list(tracked(range(10), "evaluating images", 10, report))
    assert lines == []
