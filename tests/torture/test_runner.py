"""The runner reports failures, time limits and cases that cannot run, and publishes its table."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torture.runner import BEGIN, END, FAILED, NOT_RUN, PASSED, Case, Result, main, publish, run_case
from torture.scene import NotRun, Scene

ROOT = Path(__file__).parents[2]


def passes(scene: Scene) -> str:
    (scene.folder / "file").write_text("content")
    return f"pid {os.getpid()}"


def fails(scene: Scene) -> str:
    assert scene.folder == Path(), "not the right folder"
    return "unreachable"


def cannot_run(scene: Scene) -> str:
    raise NotRun("needs another machine")


def hangs(scene: Scene) -> str:
    child = subprocess.Popen(["sleep", "600"])
    (scene.shared / "child").write_text(str(child.pid))
    time.sleep(600)
    return "unreachable"


def alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().split()[2]
    except OSError:
        return False


@pytest.mark.parametrize(("check", "outcome"), [(passes, PASSED), (fails, FAILED), (cannot_run, NOT_RUN)])
def test_outcomes(check, outcome: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(SystemExit) as end:
        main([Case("a case", "a fault", "an effect", check)], ["--out", str(tmp_path / "results.json")])
    assert end.value.code == (1 if outcome == FAILED else 0)
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert (result["name"], result["outcome"]) == ("a case", outcome)
    assert f"1 {outcome}" in capsys.readouterr().out


def test_a_case_and_its_processes_are_killed_after_the_time_limit(tmp_path: Path) -> None:
    result = run_case(Case("a case", "a fault", "an effect", hangs, limit=1), tmp_path)
    assert result.outcome == FAILED
    end = time.monotonic() + 30
    while alive(int((tmp_path / "child").read_text())):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_only_the_table_of_a_page_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    publish(page, [Result("name", "a | b", "effect", "two\nlines", PASSED, 1.25)], "1 case")
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| name | a \\| b | effect | two lines | pass | 1.2 |" in text


@pytest.mark.slow
def test_real_cases_run_against_the_command_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torture", "--only", "shard index", "--out", str(tmp_path / "results.json")]
    paths = os.pathsep.join(map(str, (ROOT / "tests", ROOT / "tests" / "helpers", ROOT)))
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads((tmp_path / "results.json").read_text())["results"]
    assert result["outcome"] == PASSED


def test_there_are_at_least_thirty_cases_with_distinct_names() -> None:
    from torture import checkpoint_cases, data_cases, serving_cases, training_cases

    modules = (training_cases, checkpoint_cases, data_cases, serving_cases)
    names = [case.name for module in modules for case in module.CASES]
    assert len(names) >= 30
    assert len(set(names)) == len(names)
