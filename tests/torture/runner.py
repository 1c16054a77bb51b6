"""Runs cases one after another, each in its own time-limited process, and publishes a table of the results."""

import argparse
import contextlib
import json
import os
import platform
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torture.scene import NotRun, Scene

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "en" / "reliability.md"
BEGIN, END = "<!-- torture: begin -->", "<!-- torture: end -->"
PASSED, FAILED, NOT_RUN = "pass", "FAIL", "not run"


@dataclass(frozen=True)
class Case:
    """A fault. `check` causes it and returns the observed behaviour; it raises AssertionError or NotRun otherwise."""

    name: str
    done: str
    expected: str
    check: Callable[[Scene], str]
    limit: float = 180  # seconds


@dataclass(frozen=True)
class Result:
    name: str
    done: str
    expected: str
    observed: str
    outcome: str
    seconds: float


def run_case(case: Case, shared: Path) -> Result:
    """Run a case in a child process. After its time limit, kill it and all processes that it started."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="torture-"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reader)
        outcome = _outcome(case, Scene(folder, shared))
        os.write(writer, json.dumps(outcome).encode()[:60_000])
        os._exit(0)
    os.close(writer)
    finished, _, _ = select.select([reader], [], [], case.limit)
    outcome, observed = FAILED, f"no result after {case.limit:g} s"
    if finished and (data := os.read(reader, 65536)):
        outcome, observed = json.loads(data)
    elif finished:
        observed = "the case ended without a result"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # also what the case has left running
    os.waitpid(child, 0)
    os.close(reader)
    shutil.rmtree(folder, ignore_errors=True)
    return Result(case.name, case.done, case.expected, observed, outcome, round(time.monotonic() - began, 1))


def _outcome(case: Case, scene: Scene) -> tuple[str, str]:
    try:
        with contextlib.redirect_stderr(sys.stdout):
            return PASSED, case.check(scene)
    except NotRun as reason:
        return NOT_RUN, str(reason)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        kind = "" if isinstance(error, AssertionError) and str(error) else f"{type(error).__name__} "
        return FAILED, f"{kind}{error} ({Path(where.filename).name}:{where.lineno})"[:4000]


def main(cases: Sequence[Case], arguments: Sequence[str]) -> None:
    """Run the cases and exit with 1 if one failed."""
    parser = argparse.ArgumentParser("torture", description="Run faults against the command line and the server.")
    parser.add_argument("--only", metavar="TEXT", help="run the cases whose name contains TEXT")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "torture.json", help="results as JSON")
    parser.add_argument("--publish", action="store_true", help="write the table to docs/en/reliability.md")
    options = parser.parse_args(arguments)
    chosen = [case for case in cases if not options.only or options.only in case.name]
    if not chosen:
        parser.error(f"no case contains {options.only!r}; choose from: {', '.join(case.name for case in cases)}")

    began, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="torture-shared-") as shared:
        for number, case in enumerate(chosen, 1):
            result = run_case(case, Path(shared))
            results.append(result)
            line = f"{number:2}/{len(chosen)}  {result.outcome:8} {result.seconds:6.1f} s  {result.name}"
            print(f"{line}: {one_line(result.observed)}", flush=True)
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in (PASSED, FAILED, NOT_RUN)}
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"{len(results)} cases in {time.monotonic() - began:.0f} s: {summary}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = {"date": time.strftime("%Y-%m-%d"), "system": system(), "results": [asdict(one) for one in results]}
    options.out.write_text(json.dumps(record, indent=2))
    if options.publish:
        publish(PAGE, results, f"{len(results)} cases in {time.monotonic() - began:.0f} s: {summary}")
    sys.exit(1 if counts[FAILED] else 0)


def publish(page: Path, results: Sequence[Result], summary: str) -> None:
    """Replace the table between the markers of a page."""
    rows = ["| Case | Fault | Expected | Observed | Result | Seconds |", "|---|---|---|---|---|---|"]
    for result in results:
        cells = (result.name, result.done, result.expected, one_line(result.observed), result.outcome)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + f" | {result.seconds:.1f} |")
    header = f"`make torture` on {time.strftime('%Y-%m-%d')}, {system()}. {summary}."
    table = "\n".join([BEGIN, header, "", *rows, END])
    text = page.read_text(encoding="utf-8")
    assert re.search(f"{BEGIN}.*{END}", text, re.DOTALL), f"{page} has no markers"
    page.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: table, text, flags=re.DOTALL), encoding="utf-8")


def one_line(text: str, length: int = 200) -> str:
    """Join and shorten a text, and remove temporary paths."""
    text = re.sub(r"/\S*torture-(?:shared-)?\w+/", "", " ".join(text.split()))
    return text if len(text) <= length else text[: length - 1] + "…"


def system() -> str:
    load = f"load average {os.getloadavg()[0]:.0f}"
    return f"{platform.system()}, {os.cpu_count()} cores, {load}, Python {platform.python_version()}"
