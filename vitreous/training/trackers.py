"""Experiment trackers: TensorBoard, Weights & Biases, MLflow and trackio.

A tracker gets every row of metrics.jsonl and the final metrics. It runs in its own thread, so that an error or a slow
network cannot stop or change the training; the first error is reported as a warning and ends the tracking. A resumed
run continues its run in the tracker, whose id is in trackers.json. Only the first process tracks.
"""

import importlib
import importlib.util
import json
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Protocol, runtime_checkable

from vitreous.common.atomic_files import atomic_file
from vitreous.common.text import single_spaced
from vitreous.common.untrusted_files import read_json_object
from vitreous.tasks.config import TrainConfig, flatten

IDS = "trackers.json"  # in the run folder; run ids by tracker
PROJECT = "vitreous"  # default project or experiment
START_SECONDS = 30.0  # training starts without waiting any longer for a tracker
FINISH_SECONDS = 60.0  # longest wait for uploads at the end of a run
# Package and extra of each tracker.
PACKAGES = {
    "tensorboard": ("torch.utils.tensorboard", "track"),
    "wandb": ("wandb", "wandb"),
    "mlflow": ("mlflow", "mlflow"),
    "trackio": ("trackio", "trackio"),
}


class TrackerWarning(UserWarning):
    """Warning that a tracker failed. The training continues without it."""


@runtime_checkable
class Tracker(Protocol):
    """A run in an experiment tracker. `run_id` identifies it when the training is resumed."""

    run_id: str

    def log(self, metrics: Mapping[str, float], step: int) -> None: ...

    def finish(self, failed: bool) -> None: ...


class Trackers:
    """The trackers of a run. Creating it raises ValueError if a package is missing; `started` starts them."""

    def __init__(self, config: TrainConfig):
        self.config, self.threads = config, list[_TrackerThread]()
        self.names = list(dict.fromkeys(["tensorboard"] * config.tensorboard + [config.track] * bool(config.track)))
        for name in self.names:
            module, extra = PACKAGES[str(name)]
            try:
                importlib.import_module(module)
            except ImportError:
                raise ValueError(f'--track {name} requires {name}: pip install "vitreous[{extra}]"') from None

    @contextmanager
    def started(self, folder: Path, resume: bool) -> Iterator[None]:
        """Track the rows that are logged in this context. Call this only in the first process."""
        fields = {name: _simple(value) for name, value in flatten(self.config).items()}
        self.threads = [_TrackerThread(str(name), folder, fields, resume) for name in self.names]
        failed = True
        try:
            yield
            failed = False
        finally:
            for thread in self.threads:
                thread.finish(failed)

    def log(self, row: Mapping[str, Any], prefix: str = "") -> None:
        """Log the numbers of a row at its step."""
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}
        for thread in self.threads:
            thread.log({f"{prefix}{name}": value for name, value in numbers.items()}, row["step"])


class _TrackerThread:
    """Runs one tracker in a thread, and reports its first error as a warning in the calling thread."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], resume: bool):
        self.name, self.folder, self.config, self.resume = name, folder, config, resume
        self.queue, self.ready = SimpleQueue[tuple[dict[str, float], int] | bool](), Event()
        self.error: Exception | None = None
        self.thread = Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self.thread.start()
        self.ready.wait(START_SECONDS)  # data workers should not be forked while the thread imports modules
        self._warn()

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.queue.put((metrics, step))
        self._warn()

    def finish(self, failed: bool) -> None:
        self.queue.put(failed)
        self.thread.join(FINISH_SECONDS)
        if self.thread.is_alive():
            self.error = TimeoutError(f"no answer after {FINISH_SECONDS:g} seconds, the last metrics may be missing")
        self._warn()

    def _run(self) -> None:
        try:
            ids = read_json_object(self.folder / IDS) if (self.folder / IDS).exists() else {}
            tracker = _start(self.name, self.folder, self.config, ids.get(self.name) if self.resume else None)
            with atomic_file(self.folder / IDS) as aside:
                aside.write_text(json.dumps({**ids, self.name: tracker.run_id}))
            self.ready.set()
            while not isinstance(item := self.queue.get(), bool):
                tracker.log(*item)
            tracker.finish(failed=item)
        except Exception as error:  # whatever the library raises
            self.error = error
        finally:
            self.ready.set()

    def _warn(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            reason = single_spaced(str(error) or type(error).__name__, 300)
            message = f"tracking with {self.name} failed: {reason}; the training is not affected"
            warnings.warn(message, TrackerWarning, stacklevel=2)


def _start(name: str, folder: Path, config: Mapping[str, Any], run_id: str | None) -> Tracker:
    match name:
        case "tensorboard":
            return TensorBoard(folder)
        case "wandb":
            return WeightsAndBiases(folder, config, run_id)
        case "mlflow":
            return MLflow(folder, config, run_id)
        case _:
            return Trackio(folder, config, run_id)


def _simple(value: Any) -> bool | int | float | str | None:
    return value if isinstance(value, bool | int | float | str | None) else str(value)


# ---- Libraries -------------------------------------------------------------------------------------------------------


class TensorBoard:
    """Event files in tensorboard/ of the run folder."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter

        self.run_id = "tensorboard"
        self.writer: Any = SummaryWriter(str(folder / self.run_id))

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, number in metrics.items():
            self.writer.add_scalar(name, number, step)
        self.writer.flush()

    def finish(self, failed: bool) -> None:
        self.writer.close()


class WeightsAndBiases:
    """Uses the settings of wandb, such as WANDB_PROJECT, WANDB_MODE=offline and WANDB_API_KEY. It never prompts."""

    def __init__(self, folder: Path, config: Mapping[str, Any], run_id: str | None):
        import wandb

        if os.environ.get("WANDB_MODE", "online") == "online" and not wandb.api.api_key:
            raise OSError("not logged in: run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            dir=folder,
            config=dict(config),
            id=run_id,
            resume="allow",
            settings=wandb.Settings(console="off", finish_timeout=FINISH_SECONDS),
        )
        self.run_id = str(self.run.id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def finish(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class MLflow:
    """Uses the settings of MLflow, such as MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME."""

    def __init__(self, folder: Path, config: Mapping[str, Any], run_id: str | None):
        import mlflow

        if not mlflow.is_tracking_uri_set() and importlib.util.find_spec("sqlalchemy") is None:
            raise OSError("set MLFLOW_TRACKING_URI to a server, or `pip install mlflow` for a local database")
        self.entities, self.client = mlflow.entities, mlflow.MlflowClient()
        if run_id is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = self.client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else self.client.create_experiment(name)
            self.run_id = self.client.create_run(experiment, run_name=folder.name).info.run_id
            parameters = [mlflow.entities.Param(key, str(value)) for key, value in config.items()]
            self.client.log_batch(self.run_id, params=parameters)
        else:
            self.run_id = run_id
            self.client.update_run(run_id, status="RUNNING")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        points = [self.entities.Metric(name, float(number), now, step) for name, number in metrics.items()]
        self.client.log_batch(self.run_id, metrics=points)

    def finish(self, failed: bool) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class Trackio:
    """Uses the settings of trackio, such as TRACKIO_DIR and TRACKIO_SPACE_ID."""

    def __init__(self, folder: Path, config: Mapping[str, Any], run_id: str | None):
        import trackio

        # A run is identified by its name, which must therefore be unique.
        self.run_id = run_id or f"{folder.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        self.run = trackio.init(project, name=self.run_id, config=dict(config), resume="allow", embed=False)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.run.log(dict(metrics), step=step)

    def finish(self, failed: bool) -> None:
        self.run.finish()
