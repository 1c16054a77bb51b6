"""The end of a run: the best checkpoint, measured on pictures it never learned from, and an account of it all."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

import vitreous
from vitreous.common.atomic_files import atomic_file
from vitreous.common.codec import to_dict
from vitreous.common.text import plural
from vitreous.data.sources.base import DataSet, FileSource, Subset
from vitreous.report.metric_text import duration
from vitreous.report.run_report import RunReport, write_report
from vitreous.tasks.base import Measured
from vitreous.training.accounts import account, judge
from vitreous.training.config import TrainConfig
from vitreous.training.metrics_log import read_rows
from vitreous.training.run_folder import METRICS
from vitreous.training.setup import Job

NAMED = 10


def summarise(
    job: Job, folder: Path, console: Console, notes: list[str], command: str, seconds: float
) -> dict[str, Any]:
    """Evaluate `best/`, write metrics.json and the report, say where they are. Every process takes part."""
    part, source = ("val", job.data.val) if job.data.test is None else ("test", job.data.test)
    measured = judge(job, folder, source)
    rows = read_rows(folder / METRICS)
    if not rows:
        raise ValueError(f"{folder / METRICS} has no rows, so there is nothing to report")
    figures = measured.metrics()
    unreadable = _unreadable(job, rows, part, measured)
    metrics: dict[str, Any] = {
        **figures,
        "part": part,
        "unreadable_files": unreadable,
        "images_per_second": max(row["train_images_per_second"] for row in rows),
        "seconds": seconds,
        "epochs": rows[-1]["epoch"],
        "steps": rows[-1]["step"],
    }
    told = account(job, folder, part, source, measured)
    commands = next_commands(folder, job.config, job.data, job.task.saved_whole)
    if job.world.first:
        with atomic_file(folder / "metrics.json") as aside:
            aside.write_text(json.dumps(metrics, indent=2))
        report = RunReport(
            title=f"{job.config.model or f'{job.config.init}, fine-tuned'} on {job.data.name}",
            command=command,
            facts=_facts(job, metrics),
            history=rows,
            config={"run": to_dict(job.config), "model": to_dict(job.state.model.config)},
            unreadable=unreadable,
            defaults_chosen=notes,
            next_commands=commands,
            **told.parts,
        )
        path = write_report(folder, report)
        console.print(f"\n{part} {told.sentence}, after {duration(seconds)}")
        _say_unreadable(console, unreadable)
        console.print(f"report: {path}\n\nTry next:")
        for line in commands:
            console.print(f"  {line}")
    job.world.wait()
    return metrics


def next_commands(folder: Path, config: TrainConfig, data: DataSet, classifier: bool = True) -> list[str]:
    """Ready to be typed: with a picture there is, and with the same split as in training."""
    best, source = shlex.quote(str(folder / "best")), data.val.source if isinstance(data.val, Subset) else data.val
    picture = "PICTURE.jpg"
    if isinstance(source, FileSource) and data.val.name(0).isprintable():
        picture = shlex.quote(str(source.root / data.val.name(0)))
    split = {"seed": config.seed, "val_fraction": config.val_fraction, "data_root": config.data_root}
    usual = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    said = [f" --{name.replace('_', '-')} {value}" for name, value in split.items() if value != usual[name]]
    if config.task == "segment":
        ignored = f" --ignore {shlex.join(config.segmenting.ignore)}" if config.segmenting.ignore else ""
        return [
            f"vitreous predict {best} {picture} --out {shlex.quote(str(folder / 'predicted'))}",
            f"vitreous eval {best} --data {shlex.quote(config.data)}{''.join(said)}{ignored}",
            f"vitreous explain {best} {picture} --out {shlex.quote(str(folder / 'explained'))}",
        ]
    if config.task != "classify" or not classifier:
        # Pictures that need no classes here may have none; the next steps need some.
        labelled = shlex.quote(config.data) + "".join(said) if len(data.classes) > 1 else "FOLDER_OF_CLASSES"
        return [
            f"vitreous eval {best} --data {labelled} --probe knn",
            f"vitreous train --data {labelled} --init {best}",
            f"vitreous info {best}",
        ]
    return [
        f"vitreous predict {best} {picture}",
        f"vitreous eval {best} --data {shlex.quote(config.data)}{''.join(said)}",
        f"vitreous serve {best} --open",
    ]


def _unreadable(job: Job, rows: list[dict[str, Any]], part: str, measured: Measured) -> list[str]:
    """Name and reason of every picture that could not be read, in any part. Every process takes part."""
    problems = [problem for row in rows for problem in row.get("unreadable", ())]
    if part != "val" and any(row.get("val_unreadable") for row in rows):  # counted so far, not named
        problems += [problem for batch in job.evaluator(job.data.val) for problem in batch.problems]
    problems = [problem for those in job.world.gather(problems) for problem in those]
    return list(dict.fromkeys(problems + measured.problems))


def _say_unreadable(console: Console, problems: list[str]) -> None:
    if problems:
        console.print(f"{plural(len(problems), 'picture')} could not be read and had no part in any of it:")
    for problem in problems[:NAMED]:
        console.print(f"  {problem}")
    if len(problems) > NAMED:
        console.print(f"  and {len(problems) - NAMED:,} more, all named in metrics.json")


def _facts(job: Job, metrics: dict[str, Any]) -> dict[str, str]:
    config, model = job.config, job.state.model
    parameters = sum(weight.numel() for weight in model.parameters())
    return {
        "model": str(config.model or config.init),
        "parameters": f"{parameters:,}",
        "image size": " x ".join(map(str, model.config.image_size)),
        "data": f"{job.data.name}: {len(job.data.train):,} training and {len(job.data.val):,} validation pictures",
        "split": job.data.note,
        "steps": f"{metrics['steps']:,} of {config.batch_size} pictures ({metrics['epochs']} epochs)",
        "device": f"{job.world.device.type} x {job.world.size}",
        "precision": str(job.stepper.precision).removeprefix("torch."),
        "speed": f"{metrics['images_per_second']:,.0f} training images/s",
        "time": f"{metrics['seconds']:,.0f} s",
        "seed": str(config.seed),
        "vitreous": vitreous.__version__,
    }
