"""The end of a run: evaluate the best checkpoint, write metrics.json and the report, print a summary."""

import json
import shlex
from pathlib import Path
from typing import Any

from rich.console import Console

import vitreous
from vitreous.common.atomic_files import atomic_file
from vitreous.common.codec import to_dict
from vitreous.data.sources.base import DataSet, Source, Subset
from vitreous.data.sources.stored import FileSource
from vitreous.data.split import plural
from vitreous.report.metric_text import duration
from vitreous.report.run_report import RunReport, write_report
from vitreous.report.style import can_draw
from vitreous.tasks.base import Finished, Results, Task
from vitreous.training.config import TrainConfig
from vitreous.training.loop import Job, evaluate
from vitreous.training.metrics_log import read_rows
from vitreous.training.run_folder import COMMANDS, METRICS
from vitreous.weights.native import load_folder

NAMED = 10  # unreadable images that the terminal names


def summarise(job: Job, folder: Path, console: Console, notes: list[str], seconds: float) -> dict[str, Any]:
    """Evaluate `best/`, write metrics.json and report.html; returns the metrics. Every process calls this."""
    split, source = ("val", job.data.val) if job.data.test is None else ("test", job.data.test)
    results = _evaluate_best(job, folder, source)
    rows = read_rows(folder / METRICS)
    if not rows:
        raise ValueError(f"{folder / METRICS} has no rows, so there is nothing to report")
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
                commands=(folder / COMMANDS).read_text(encoding="utf-8").splitlines(),
                facts=_facts(job, metrics),
                history=rows,
                config={"run": to_dict(job.config), "model": to_dict(job.state.model.config)},
                unreadable=unreadable,
                automatic=notes,
                next_commands=commands,
            ),
        )
        console.print(f"\n{split} {report.summary}, after {duration(seconds)}")
        _print_unreadable(console, unreadable)
        console.print(f"report: {path}\n\nNext steps:")
        for line in commands:
            console.print(f"  {line}")
    job.world.wait()
    return metrics


def _evaluate_best(job: Job, folder: Path, source: Source) -> Results:
    """Evaluate the best checkpoint, or the last module if checkpoints lack a part of it, such as MAE's decoder."""
    if not job.task.complete_checkpoint:
        return evaluate(job, source)
    world = job.world
    world.wait()  # until the first process has written it
    model, batches = load_folder(folder / "best").to(world.device), job.evaluator(source)
    mine = job.task.evaluate_best(model, source, batches, job.stepper.precision, world.rank, world.size)
    return type(mine).join(world.gather(mine))


def mean_speed(rows: list[dict[str, Any]]) -> float:
    """Training images per second over the whole run, from the steps and the speed of every row.

    >>> mean_speed([{"step": 10, "train_images_per_second": 100.0}, {"step": 20, "train_images_per_second": 300.0}])
    150.0
    """
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


def _print_unreadable(console: Console, problems: list[str]) -> None:
    if problems:
        console.print(f"{plural(len(problems), 'image')} could not be read and were ignored:")
    for problem in problems[:NAMED]:
        console.print(f"  {problem}")
    if len(problems) > NAMED:
        console.print(f"  and {len(problems) - NAMED:,} more, all listed in metrics.json")


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
