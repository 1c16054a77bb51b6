"""`vitreous.train`: open the data, complete the config, build the model and the optimizer, train, report."""

import json
import shlex
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console

import vitreous
from vitreous.common.atomic_files import atomic_file
from vitreous.common.codec import to_dict
from vitreous.common.text import SafeConsole, plural
from vitreous.data.sources.base import DataSet, FileSource, Source, Subset
from vitreous.model.protocol import Model
from vitreous.report.html import RunReport, duration, write_report
from vitreous.report.plots import can_draw
from vitreous.tasks.base import Finished, Results, Task, check_model
from vitreous.tasks.config import TrainConfig, typed_overrides, with_fields
from vitreous.training import loop, run_folder
from vitreous.training.checkpoint import Progress, read_progress
from vitreous.training.distributed import world
from vitreous.training.loop import Job
from vitreous.training.progress import ProgressDisplay, read_rows
from vitreous.training.run_folder import DataRecord, resume_data
from vitreous.training.setup import TASKS, choose, set_up
from vitreous.weights.native import load_folder

NAMED = 10  # unreadable images that the terminal names


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

    Keyword arguments replace fields of the config, also of its groups: epochs=3, lr=1e-3, overrides={"registers": 4}.
    `task` may be a subclass of `vitreous.tasks.base.Task`; `command` is shown in the report.

    >>> run = train(data="digits", out="runs/first", epochs=5)  # doctest: +SKIP
    >>> run.metrics["top1"], run.folder, run.model.config.labels  # doctest: +SKIP
    """
    started = time.monotonic()
    own_task = task if isinstance(task, type) else None
    given = {"data": data and str(data), "init": init, "task": None if own_task else task}
    fields |= {name: value for name, value in given.items() if value is not None}
    arguments = ["config"] * (config is not None) + [f"{name}={value!r}" for name, value in fields.items()]
    command = command or f"vitreous.train({', '.join(arguments)})"
    config = with_fields(config or TrainConfig(), fields)
    config = replace(config, overrides=typed_overrides(config.overrides))
    config.check()
    if config.resume:
        config = run_folder.resumed_config(config)
    task_class = own_task or TASKS[config.task]
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


def summarise(job: Job, folder: Path, console: Console, notes: list[str], seconds: float) -> dict[str, Any]:
    """Evaluate `best/`, write metrics.json and report.html; returns the metrics. Every process calls this."""
    split, source = ("val", job.data.val) if job.data.test is None else ("test", job.data.test)
    results = _evaluate_best(job, folder, source)
    rows = read_rows(folder / run_folder.METRICS)
    if not rows:
        raise ValueError(f"{folder / run_folder.METRICS} has no rows, so there is nothing to report")
    unreadable = _unreadable(job, rows, split, results)
    metrics: dict[str, Any] = {
        **results.metrics(),
        "part": split,
        "unreadable_files": unreadable,
        "images_per_second": mean_speed(rows),
        "seconds": seconds,
        "epochs": rows[-1]["epoch"],
        "steps": rows[-1]["step"],
    }
    batch = next(iter(job.loader.batches(0, 1)))
    draw = job.world.first and can_draw()
    report = job.task.report(Finished(folder, job.data, split, source, results, batch, job.stepper.module, draw))
    commands = next_commands(folder, job.config, job.data, type(job.task))
    if job.world.first:
        with atomic_file(folder / "metrics.json") as aside:
            aside.write_text(json.dumps(metrics, indent=2))
        path = write_report(
            folder,
            RunReport(
                title=f"{job.config.model or f'{job.config.init}, fine-tuned'} on {job.data.name}",
                task=report,
                commands=(folder / run_folder.COMMANDS).read_text(encoding="utf-8").splitlines(),
                facts=_facts(job, metrics),
                history=rows,
                config={"run": to_dict(job.config), "model": to_dict(job.state.model.config)},
                unreadable=unreadable,
                automatic=notes,
                next_commands=commands,
            ),
        )
        console.print(f"\n{split} {report.summary}, after {duration(seconds)}")
        if unreadable:
            console.print(f"{plural(len(unreadable), 'image')} could not be read and were ignored:")
        for problem in unreadable[:NAMED]:
            console.print(f"  {problem}")
        if len(unreadable) > NAMED:
            console.print(f"  and {len(unreadable) - NAMED:,} more, all listed in metrics.json")
        console.print(f"report: {path}\n\nNext steps:")
        for line in commands:
            console.print(f"  {line}")
    job.world.wait()
    return metrics


def _evaluate_best(job: Job, folder: Path, source: Source) -> Results:
    """Evaluate the best checkpoint, or the last module if checkpoints lack a part of it, such as MAE's decoder."""
    if not job.task.complete_checkpoint:
        return loop.evaluate(job, source)
    world = job.world
    world.wait()  # until the first process has written it
    model, batches = load_folder(folder / "best").to(world.device), job.evaluator(source)
    mine = job.task.evaluate_best(model, source, batches, job.stepper.precision, world.rank, world.size)
    return type(mine).join(world.gather(mine))


def mean_speed(rows: list[dict[str, Any]]) -> float:
    """Training images per second over the whole run, from the steps and the speed of every row."""
    steps = [row["step"] - before["step"] for row, before in zip(rows, [{"step": 0}, *rows], strict=False)]
    return sum(steps) / sum(n / row["train_images_per_second"] for n, row in zip(steps, rows, strict=True))


def next_commands(folder: Path, config: TrainConfig, data: DataSet, task: type[Task]) -> list[str]:
    """Commands to try after a run: with an existing image and the split of the run."""
    val, image = data.val, "IMAGE.jpg"
    source = val.source if isinstance(val, Subset) else val
    if isinstance(source, FileSource) and val.name(0).isprintable():
        image = shlex.quote(str(source.root / val.name(0)))
    flags = shlex.quote(config.data)
    for name in ("seed", "val_fraction", "data_root"):
        if (value := getattr(config, name)) != getattr(TrainConfig, name):
            flags += f" --{name.replace('_', '-')} {value}"
    ignored = config.segmenting.ignore
    values = {
        "best": shlex.quote(str(folder / "best")),
        "folder": shlex.quote(str(folder)),
        "image": image,
        "data": flags + (f" --ignore {shlex.join(ignored)}" if ignored else ""),
        "labelled": flags if len(data.classes) > 1 else "FOLDER_OF_CLASSES",
    }
    return [command.format(**values) for command in task.next_steps]


def _unreadable(job: Job, rows: list[dict[str, Any]], split: str, results: Results) -> list[str]:
    """Name and reason of every unreadable image of any split. Every process calls this."""
    problems = [problem for row in rows for problem in row.get("unreadable", ())]
    if split != "val" and any(row.get("val_unreadable") for row in rows):  # counted so far, not named
        problems += [problem for batch in job.evaluator(job.data.val) for problem in batch.problems]
    problems = [problem for those in job.world.gather(problems) for problem in those]
    return list(dict.fromkeys(problems + results.problems))


def _facts(job: Job, metrics: dict[str, Any]) -> dict[str, str]:
    config, model = job.config, job.state.model
    parameters = sum(weight.numel() for weight in model.parameters())
    return {
        "model": str(config.model or config.init),
        "parameters": f"{parameters:,}",
        "image size": " x ".join(map(str, model.config.image_size)),
        "data": f"{job.data.name}: {len(job.data.train):,} training and {len(job.data.val):,} validation images",
        "split": job.data.note,
        "steps": f"{metrics['steps']:,} of {config.batch_size} images ({metrics['epochs']} epochs)",
        "device": f"{job.world.device.type} x {job.world.size}",
        "precision": str(job.stepper.precision).removeprefix("torch."),
        "speed": f"{metrics['images_per_second']:,.0f} training images/s on average",
        "time": duration(metrics["seconds"]),
        "seed": str(config.seed),
        "vitreous": vitreous.__version__,
    }
