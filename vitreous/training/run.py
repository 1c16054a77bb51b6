"""`vitreous.train`: open the data, complete the config, build the model and the optimizer, train, report."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vitreous.common.text import SafeConsole
from vitreous.model.protocol import Model
from vitreous.tasks import task_named
from vitreous.tasks.base import Task
from vitreous.tasks.config import typed_overrides, with_fields
from vitreous.tasks.initial_model import check_model
from vitreous.training import loop, run_folder
from vitreous.training.checkpoint import Progress, read_progress
from vitreous.training.config import TrainConfig
from vitreous.training.data_record import DataRecord, resume_data
from vitreous.training.defaults import choose
from vitreous.training.distributed import world
from vitreous.training.progress_display import ProgressDisplay
from vitreous.training.setup import set_up
from vitreous.training.summary import summarise
from vitreous.weights.native import load_folder


@dataclass(frozen=True)
class Run:
    """A finished run."""

    folder: Path
    metrics: dict[str, Any]
    """The content of metrics.json: top1, loss, ... of the best model, images_per_second, seconds."""

    @cached_property
    def model(self) -> Model:
        """The best model, loaded from the run's folder."""
        return load_folder(self.folder / "best")


def train(
    config: TrainConfig | None = None,
    *,
    data: str | Path | None = None,
    init: str | Path | None = None,
    task: str | type[Task] | None = None,
    command: str | None = None,
    **fields: Any,
) -> Run:
    """Train a model, as `vitreous train` does.

    config: the fields of the run; what is None in it is chosen for the data. Keyword arguments replace its fields.
    data: a folder of images, or anything else that --data takes.
    init: a checkpoint to start from.
    task: classify, segment, mae, mpp, or a subclass of `vitreous.tasks.base.Task`.
    command: shown in the report.
    fields: any other field of TrainConfig, also of its groups: epochs=3, lr=1e-3, overrides={"registers": 4}.

    >>> run = train(data="digits", out="runs/first", epochs=5)  # doctest: +SKIP
    >>> run.metrics["top1"], run.folder, run.model.config.labels  # doctest: +SKIP
    """
    started = time.monotonic()
    own_task = task if isinstance(task, type) else None
    given = {"data": data and str(data), "init": init, "task": None if own_task else task}
    fields |= {name: value for name, value in given.items() if value is not None}
    command = command or f"vitreous.train({', '.join(f'{name}={value!r}' for name, value in fields.items())})"
    config = with_fields(config or TrainConfig(), fields)
    config = replace(config, overrides=typed_overrides(config.overrides))
    config.check()
    if config.resume:
        config = run_folder.resumed_config(config)
    task_class = own_task or task_named(config.task)
    task_class.check(config)

    with world(config.device) as here, ExitStack() as held:
        console = SafeConsole(quiet=not here.first, soft_wrap=True, markup=False, emoji=False, highlight=False)
        check_model(config)
        resume = config.resume and run_folder.reopen(config, here, held)
        if config.resume and not resume:
            console.print(f"{config.out} has no checkpoint yet: starting from the beginning")

        dataset = task_class.open_data(config)
        classes = task_class.classes(dataset)
        if config.resume:
            record = run_folder.folder_of(config) / run_folder.DATA
            if here.first_only(record.exists):
                dataset = resume_data(dataset, DataRecord.read(record), classes, config.allow_data_change)
            else:
                console.print(f"{record} is missing: changes of the data since the start of the run are not detected")

        chosen = here.gather(choose(config, dataset, here.device.type, here.size, task_class))[0]  # same for all
        config, folder = chosen.config, run_folder.folder_of(chosen.config)
        if not config.resume:
            run_folder.check_free(folder)
        console.print(f"{dataset.name}: {f'{len(classes)} classes; ' if classes else ''}{dataset.note}")
        for note in chosen.notes:
            console.print(f"  auto: {note}")
        if chosen.advice:
            console.print(f"  {chosen.advice}")

        job = set_up(config, dataset, here, own_task)
        if config.resume:
            run_folder.record_command(folder, command, here)
        else:
            run_folder.create(config, command, here, held)
        if here.first and (config.allow_data_change or not (folder / run_folder.DATA).exists()):
            DataRecord.of(dataset, classes).write(folder / run_folder.DATA)
        before = read_progress(folder / "last") if resume else Progress()
        if before.step > job.total_steps:
            path = folder / "last" / "progress.json"
            raise ValueError(f"{path} is at step {before.step}, but the run has {job.total_steps} steps")
        if before.step == job.total_steps:
            console.print("this run is finished: evaluating it again")

        epochs = job.total_steps / job.steps_per_epoch
        with ProgressDisplay(
            job.total_steps, job.steps_per_epoch, epochs, before.step, quiet=not here.first
        ) as display:
            try:
                loop.run(job, folder, display, resume)
            except ValueError:
                if here.first:
                    run_folder.release(folder)
                raise
        seconds = before.seconds + time.monotonic() - started
        return Run(folder, summarise(job, folder, console, chosen.notes, seconds))
