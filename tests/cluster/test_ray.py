"""On a Ray cluster of two nodes: the same rows as in one process, also if a node is killed, and a server."""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

import ray_session
import vitreous
from image_containers import small_images, write_folder
from predictors import random_model
from ray_session import CPU, SIZE, session_of

pytestmark = pytest.mark.slow

COUNT = 400


class Session:
    """What `ray_session.py` found, and its files."""

    def __init__(self, folder: Path):
        self.images = write_folder(folder / "set", small_images(COUNT))
        (self.images / "0101.png").write_bytes(b"no image")
        self.model, other = folder / "first", folder / "second"
        vitreous.save(random_model("class token"), self.model)
        vitreous.save(random_model("mean"), other)
        self.out = folder / "out"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.id = secrets.token_hex(8)
        with tempfile.TemporaryDirectory(prefix="ray") as short:  # paths of Unix sockets have a limit
            environment = {
                **os.environ, "VITREOUS_RAY_SESSION": self.id, "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_AUTH_MODE": "disabled", "RAY_TMPDIR": short, "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONWARNINGS": "ignore",
            }  # fmt: skip
            environment.pop("RAY_ADDRESS", None)
            script = ray_session.__file__
            arguments = [self.model, other, self.images, self.out, port]
            run = subprocess.run(
                [sys.executable, str(script), *map(str, arguments)],
                env=environment, capture_output=True, text=True, timeout=1500,  # a minute on two idle cores
            )  # fmt: skip
        assert run.returncode == 0, run.stderr[-5000:]
        self.found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])

    def processes(self) -> list[int]:
        """Return the processes that the session started and that still run."""
        left = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                left += [int(folder.name)] if session_of(folder) == self.id else []
            except OSError:
                continue
        return left


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    if find_spec("ray") is None:
        pytest.skip("ray is not installed: `make setup` installs it")
    return Session(tmp_path_factory.mktemp("ray"))


def test_a_killed_node_loses_no_row_and_repeats_none(session: Session, tmp_path: Path) -> None:
    killed = session.found["killed"]
    assert len(killed["at_kill"]) == 1
    assert killed["at_kill"][0] < killed["shards"] == COUNT // SIZE
    assert (killed["images"], killed["errors"]) == (COUNT, 1)
    vitreous.predict(session.model, session.images, **CPU).write(tmp_path / "local", shard_size=SIZE)
    files = {file.name for file in (tmp_path / "local").glob("part-*")}
    assert {file.name for file in session.out.glob("part-*")} == files
    ours, theirs = (
        [row for name in sorted(files) for row in parquet.read_table(folder / name).to_pylist()]
        for folder in (tmp_path / "local", session.out)
    )
    assert len({row["path"] for row in theirs}) == COUNT
    for row, expected in zip(theirs, ours, strict=True):
        scores, labels = (
            [[label.pop("probability") for label in cells.pop("predictions") or []] for cells in (row, expected)],
            [[cells.pop(name) for name in ("path", "label", "index", "error")] for cells in (row, expected)],
        )
        assert labels[0] == labels[1]
        assert scores[0] == pytest.approx(scores[1], rel=1e-5)


def test_a_rerun_computes_only_what_is_missing(session: Session) -> None:
    assert session.found["rerun"] == {"skipped": COUNT // SIZE - 2, "untouched": True, "equal": True}


def test_results_in_memory_are_in_order(session: Session) -> None:
    expected = [(result.name, result.error) for result in vitreous.predict(session.model, session.images, **CPU)]
    assert [tuple(pair) for pair in session.found["streamed"]] == expected


def test_the_server_has_the_same_api_and_page(session: Session) -> None:
    found = session.found["serving"]
    assert (found["first"], found["page"], found["script"]) == (200, 200, 200)


def test_overload_is_answered_with_429_or_503(session: Session) -> None:
    answers = session.found["serving"]["overload"]
    assert set(answers) <= {"200", "429", "503"}
    assert answers["200"] > 0
    assert answers.get("429", 0) + answers.get("503", 0) > 0


def test_a_rolling_update_loses_no_request(session: Session) -> None:
    found = session.found["serving"]
    assert set(found["update"]) <= {"200", "429"}
    assert found["models"] == ["first", "second"]
    assert found["last"] == "second"


def test_a_session_stays_on_the_replica_that_has_its_image(session: Session) -> None:
    found = session.found["serving"]["sessions"]
    assert [found[name] for name in ("one", "two", "three")] == [[200] * 8] * 3


def test_no_process_of_ray_remains(session: Session) -> None:
    for _ in range(100):
        if not session.processes():
            return
        time.sleep(0.1)
    pytest.fail(f"processes {session.processes()} still run")
