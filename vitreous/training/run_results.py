"""Evaluates and calibrates `best/` at the end of a run, and writes metrics.json and report.html."""

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

import vitreous
from vitreous.common.atomic_files import atomic_file
from vitreous.common.codec import to_dict
from vitreous.common.progress import ProgressLines, Report, silent
from vitreous.common.text import duration, plural
from vitreous.data.sources.base import DataSet, FileSource, Source, Subset
from vitreous.model.calibration import Calibration
from vitreous.model.protocol import Model
from vitreous.report.html import RunReport, write_report
from vitreous.report.plots import can_draw
from vitreous.tasks.base import Finished, Results, Task
from vitreous.tasks.config import TrainConfig
from vitreous.training import run_folder
from vitreous.training.progress import phase_summary, read_rows
from vitreous.training.setup import Job
from vitreous.weights.native import load_folder, store_calibration

NAMED = 10  # number of unreadable images to list in the terminal


def summarise(job: Job, folder: Path, console: Console, notes: list[str]) -> dict[str, Any]:
    """Evaluate `best/`, write metrics.json and report.html, and return the metrics. All processes must call this."""
    split, source = ("val", job.data.val) if job.data.test is None else ("test", job.data.test)
    with job.phases("evaluation"):
        progress = ProgressLines(console.print) if job.world.first else silent
        results, calibration = _calibrate_best(job, folder, progress)
        if results is None or split == "test":
            results = _evaluate_best(job, folder, source, progress)
    rows = read_rows(folder / run_folder.METRICS)
    if not rows:
        raise ValueError(f"{folder / run_folder.METRICS} is empty: no metrics to report")
    unreadable = _unreadable(job, rows, split, results)
    steps = [row["step"] - before["step"] for row, before in zip(rows, [{"step": 0}, *rows], strict=False)]
    metrics: dict[str, Any] = {
        **results.metrics(),
        "part": split,
        "unreadable_files": unreadable,
        "images_per_second": sum(steps)
        / sum(n / row["train_images_per_second"] for n, row in zip(steps, rows, strict=True)),
        "epochs": rows[-1]["epoch"],
        "steps": rows[-1]["step"],
    }
    batch = next(iter(job.loader.batches(0, 1)))
    draw = job.world.first and can_draw()
    module, closed_form = job.stepper.module, job.task.closed_form
    report = job.task.report(Finished(folder, job.data, split, source, results, batch, module, draw, closed_form))
    commands = next_commands(folder, job.config, job.data, type(job.task))
    phases = job.phases.seconds()
    metrics |= {"seconds": sum(phases.values()), "seconds_by_phase": phases}
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
                history=() if closed_form else rows,  # a single row has no curves
                config={"run": to_dict(job.config), "model": to_dict(job.state.model.config)},
                unreadable=unreadable,
                automatic=notes,
                next_commands=commands,
            ),
        )
        console.print(f"\n{split} {report.summary}, after {duration(metrics['seconds'])}")
        console.print(f"time: {phase_summary(phases)}; {metrics['images_per_second']:,.0f} training images/s")
        if calibration is not None and (note := calibration.too_few_note()):
            console.print(note)
        if unreadable:
            console.print(f"{plural(len(unreadable), 'image')} could not be read:")
        for problem in unreadable[:NAMED]:
            console.print(f"  {problem}")
        if len(unreadable) > NAMED:
            console.print(f"  and {len(unreadable) - NAMED:,} more (see metrics.json for all)")
        console.print(f"report: {path}\n\nNext steps:")
        for line in commands:
            console.print(f"  {line}")
    job.world.wait()
    return metrics


def _evaluate_best(job: Job, folder: Path, source: Source, progress: Report) -> Results:
    """Evaluate the best checkpoint. If it lacks a part, such as MAE's decoder, evaluate the final module instead."""
    if not job.task.complete_checkpoint:
        return job.evaluate(source)
    return _evaluate_model(job, _best_model(job, folder), source, progress)


def _best_model(job: Job, folder: Path) -> Model:
    job.world.wait()  # until the first process has written best/
    return load_folder(folder / "best").to(job.world.device)


def _evaluate_model(job: Job, model: Model, source: Source, progress: Report) -> Results:
    mine = job.task.evaluate_best(model, source, job.world.rank, job.world.size, progress)
    return type(mine).join(job.world.gather(mine))


def _calibrate_best(job: Job, folder: Path, progress: Report) -> tuple[Results | None, Calibration | None]:
    """Calibrate the best checkpoint on validation images. Return the results and, for a classifier, the calibration.

    The results are None if only some of the images were used, or if the model cannot be calibrated.
    """
    if not (job.task.calibrates and job.state.model.config.can_be_calibrated):
        return None, None
    images = job.task.calibration_images(job.data.val)
    model = _best_model(job, folder)
    found = _evaluate_model(job, model, images, progress)
    calibrated = job.task.calibrate(found)
    if calibrated is None:
        return None, None
    fields, results = calibrated
    if job.world.first:
        familiarity = None
        if (fitted := job.task.fit_familiarity(model, job.data.train, found, progress)) is not None:
            familiarity, quantiles = fitted
            fields["calibration"] = replace(fields["calibration"], familiarities=quantiles)
        record = {"data": job.data.name, "split": "val", "images": results.metrics()["count"]}
        store_calibration(folder / "best", fields, familiarity, record)
    job.world.wait()
    return results if images is job.data.val else None, fields.get("calibration")


def next_commands(folder: Path, config: TrainConfig, data: DataSet, task: type[Task]) -> list[str]:
    """Return suggested commands for a finished run, with an example image and the flags that reproduce the split."""
    val, image = data.val, "IMAGE.jpg"
    source = val.source if isinstance(val, Subset) else val
    if isinstance(source, FileSource) and val.name(0).isprintable():
        image = shlex.quote(str(source.root / val.name(0)))
    flags = shlex.quote(str(config.data))
    for name in ("seed", "val_fraction", "data_root"):
        if (value := getattr(config, name)) != getattr(TrainConfig, name):
            flags += f" --{name.replace('_', '-')} {value}"
    values = {
        "best": shlex.quote(str(folder / "best")),
        "folder": shlex.quote(str(folder)),
        "image": image,
        "data": " ".join([flags, *map(shlex.quote, task.eval_flags(config))]),
        "labelled": flags if len(data.classes) > 1 else "FOLDER_OF_CLASSES",
    }
    return [command.format(**values) for command in task.next_steps]


def _unreadable(job: Job, rows: list[dict[str, Any]], split: str, results: Results) -> list[str]:
    """Return the unreadable images of all splits, with reasons. All processes must call this."""
    problems = [problem for row in rows for problem in row.get("unreadable", ())]
    if split != "val" and any(row.get("val_unreadable") for row in rows):  # rows contain only the count
        problems += [problem for batch in job.evaluator(job.data.val) for problem in batch.problems]
    problems = [problem for part in job.world.gather(problems) for problem in part]
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
        "steps": job.task.steps_taken(metrics["steps"], metrics["epochs"]),
        "device": f"{job.world.device.type} x {job.world.size}",
        "precision": str(job.stepper.precision).removeprefix("torch."),
        "speed": f"{metrics['images_per_second']:,.0f} training images/s on average",
        "time": f"{duration(metrics['seconds'])}: {phase_summary(metrics['seconds_by_phase'])}",
        "seed": str(config.seed),
        "vitreous": vitreous.__version__,
    }
