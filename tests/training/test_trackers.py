"""Experiment trackers, with the real libraries offline."""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from optional_imports import optional
from train_runs import skip_report, tiny
from vitreous.common.checks import BadValue
from vitreous.training import TrainConfig, run, trackers
from vitreous.training.run import Interrupted, train
from vitreous.training.trackers import IDS, PACKAGES, Trackers, TrackerWarning


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_report(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false",
        "WANDB_CONFIG_DIR": str(tmp_path), "WANDB_CACHE_DIR": str(tmp_path), "WANDB_DATA_DIR": str(tmp_path),
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true", "TRACKIO_DIR": str(tmp_path / "trackio"),
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs without a tracker."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    with pytest.MonkeyPatch.context() as patch:
        skip_report(patch)
        train(tiny(folder, steps=22))
    return folder


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> bytes:
    return (folder / "last" / "model.safetensors").read_bytes()


def interrupt_and_resume(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Train for two epochs with an interruption in between, and return the run id in the tracker."""
    usual = run.append_row

    def append_and_stop(path: Path, row: Mapping[str, Any]) -> None:
        usual(path, row)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(run, "append_row", append_and_stop)
        with pytest.raises(Interrupted):
            train(tiny(folder, steps=22, track=name))
    first = json.loads((folder / IDS).read_text())[name]
    train(TrainConfig(out=folder, resume=True))  # the tracker is part of the run's config
    assert json.loads((folder / IDS).read_text()) == {name: first}
    assert len(rows(folder)) == 2
    return str(first)


@pytest.mark.slow
def test_mlflow_has_every_metric_in_one_run(tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = optional("mlflow")
    run_id = interrupt_and_resume(tmp_path / "tracked", "mlflow", monkeypatch)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("vitreous")
    (only,) = client.search_runs([experiment.experiment_id])
    assert (only.info.run_id, only.info.status, only.info.run_name) == (run_id, "FINISHED", "tracked")
    assert only.data.params["batch_size"] == "128"
    for name in ("train_loss", "val_top1", "lr"):
        logged = {point.step: point.value for point in client.get_metric_history(run_id, name)}
        assert logged == {row["step"]: row[name] for row in rows(tmp_path / "tracked")}
    assert 0 <= only.data.metrics["final_top1"] <= 1
    assert weights(tmp_path / "tracked") == weights(plain)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb")
def test_wandb_has_every_metric_under_one_run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optional("wandb")
    folder = tmp_path / "tracked"
    run_id = interrupt_and_resume(folder, "wandb", monkeypatch)
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert {file.name for file in files} == {f"run-{run_id}.wandb"}
    logged: dict[int, dict[str, float]] = {}
    deadline = time.monotonic() + 60
    while "final_top1" not in logged.get(22, {}) and time.monotonic() < deadline:  # another process writes the file
        for file in files:
            for items in wandb_history(file):
                logged.setdefault(items.pop("_step"), {}).update(items)
    for row in rows(folder):
        assert logged[row["step"]]["val_top1"] == row["val_top1"]
    assert "final_top1" in logged[22]


def wandb_history(path: Path) -> list[dict[str, Any]]:
    """Read the logged rows from a file of an offline run."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store, found = DataStore(), []
    store.open_for_scan(str(path))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items})
    store.close()
    return found


def test_trackio_resumes_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optional("trackio")
    run_id = interrupt_and_resume(tmp_path / "tracked", "trackio", monkeypatch)
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("vitreous") == [run_id]
    logged = {entry["step"]: entry for entry in SQLiteStorage.get_logs("vitreous", run_id) if "val_top1" in entry}
    assert {step: entry["val_top1"] for step, entry in logged.items()} == {
        row["step"]: row["val_top1"] for row in rows(tmp_path / "tracked")
    }


class Failing:
    """A tracker that raises, or hangs, in one of its methods."""

    run_id = "x"

    def __init__(self, where: str, hang: bool):
        self.where, self.hang = where, hang
        self.fault("start")

    def fault(self, method: str) -> None:
        if method == self.where:
            if self.hang:
                time.sleep(600)
            raise RuntimeError("no\nservice")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.fault("log")

    def finish(self, failed: bool) -> None:
        self.fault("finish")


@pytest.mark.slow
@pytest.mark.parametrize(("where", "hang"), [("start", False), ("start", True), ("log", False), ("finish", True)])
def test_a_failing_tracker_neither_stops_nor_changes_the_training(
    where: str, hang: bool, tmp_path: Path, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "_start", lambda *_: Failing(where, hang))
    monkeypatch.setattr(trackers, "START_SECONDS", 0.1)
    monkeypatch.setattr(trackers, "FINISH_SECONDS", 0.1)
    with pytest.warns(TrackerWarning) as caught:
        train(tiny(tmp_path / "tracked", steps=22, tensorboard=True))
    (warning,) = [str(warning.message) for warning in caught if warning.category is TrackerWarning]
    assert "tensorboard" in warning
    assert "\n" not in warning
    assert weights(tmp_path / "tracked") == weights(plain)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_package_is_answered_with_its_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, extra = PACKAGES[name]
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf'--track {name} .*pip install "vitreous\[{extra}\]"'):
        Trackers(TrainConfig(track=name))


def test_trackers_are_off_by_default_and_checked() -> None:
    assert Trackers(TrainConfig()).names == []
    assert Trackers(TrainConfig(tensorboard=True, track="tensorboard")).names == ["tensorboard"]


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_tracker_is_rejected() -> None:
    with pytest.raises(BadValue, match=r"track.*'comet'.*mlflow"):
        TrainConfig(track="comet").check()  # type: ignore[arg-type]


def test_wandb_without_a_login_warns_instead_of_prompting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    optional("wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(OSError, match="wandb login"):
        trackers.WeightsAndBiases(tmp_path, {}, None)
