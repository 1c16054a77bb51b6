"""The end of a run: the best checkpoint, measured on pictures it never learned from, and an account of it all."""

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import vitreous
from vitreous.data.loader import Reader, Request
from vitreous.data.source import DataSet, Source, Subset
from vitreous.data.split import plural
from vitreous.data.stored import FileSource
from vitreous.evaluate.run import Answers, answer
from vitreous.model.codec import to_dict
from vitreous.model.options import Preprocessing
from vitreous.train.config import TrainConfig
from vitreous.train.figures import duration
from vitreous.train.report import Mistake, RunReport, write_report
from vitreous.train.setup import Job
from vitreous.weights.files import atomic_file
from vitreous.weights.native import load_folder

SAMPLES, MISTAKES, NAMED = 16, 24, 10


def summarise(
    job: Job, folder: Path, console: Console, notes: list[str], command: str, seconds: float
) -> dict[str, Any]:
    """Evaluate `best/`, write metrics.json and the report, say where they are. Every process takes part."""
    part, source = ("val", job.data.val) if job.data.test is None else ("test", job.data.test)
    answers = _judge(job, folder / "best", source)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figures = answers.evaluation.metrics()
    unreadable = _unreadable(job, rows, part, answers)
    metrics: dict[str, Any] = {
        **figures,
        "part": part,
        "unreadable_files": unreadable,
        "images_per_second": max(row["train_images_per_second"] for row in rows),
        "seconds": seconds,
        "epochs": rows[-1]["epoch"],
        "steps": rows[-1]["step"],
    }
    samples = _samples(job)
    if job.world.first:
        with atomic_file(folder / "metrics.json") as aside:
            aside.write_text(json.dumps(metrics, indent=2))
        report = RunReport(
            title=f"{job.config.model or 'A checkpoint'} on {job.data.name}",
            task=f"Classification into {len(job.data.classes)} classes, measured on the {part} part",
            command=command,
            headline={name: figures[name] for name in ("top1", "top5", "loss", "ece")},
            facts=_facts(job, metrics),
            history=rows,
            config={"run": to_dict(job.config), "model": to_dict(job.state.model.config)},
            evaluation=answers.evaluation,
            classes=job.data.classes,
            samples=samples[0],
            sample_labels=[job.data.classes[label] if label >= 0 else "unreadable" for label in samples[1]],
            mistakes=_mistakes(job, source, answers),
            unreadable=unreadable,
            defaults_chosen=notes,
            next_commands=next_commands(folder, job.config, job.data),
        )
        path = write_report(folder, report)
        count = figures["count"]
        console.print(
            f"\n{part} top-1 {figures['top1']:.4f} ({round(figures['top1'] * count):,} of {count:,} pictures), "
            f"top-5 {figures['top5']:.4f}, loss {figures['loss']:.4f}, calibration error {figures['ece']:.4f}, "
            f"after {duration(seconds)}"
        )
        _say_unreadable(console, unreadable)
        console.print(f"report: {path}\n\nTry next:")
        for line in next_commands(folder, job.config, job.data):
            console.print(f"  {line}")
    job.world.wait()
    return metrics


def next_commands(folder: Path, config: TrainConfig, data: DataSet) -> list[str]:
    """Ready to be typed: with a picture there is, and with the same split as in training."""
    best, source = shlex.quote(str(folder / "best")), data.val.source if isinstance(data.val, Subset) else data.val
    picture = "PICTURE.jpg"
    if isinstance(source, FileSource):
        picture = shlex.quote(str(source.root / data.val.name(0)))
    split = {"seed": config.seed, "val_fraction": config.val_fraction, "data_root": config.data_root}
    usual = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    said = [f" --{name.replace('_', '-')} {value}" for name, value in split.items() if value != usual[name]]
    return [
        f"vitreous predict {best} {picture}",
        f"vitreous eval {best} --data {shlex.quote(config.data)}{''.join(said)}",
        f"vitreous info {best}",
    ]


def _unreadable(job: Job, rows: list[dict[str, Any]], part: str, answers: Answers) -> list[str]:
    """Name and reason of every picture that could not be read, in any part. Every process takes part."""
    problems = [problem for row in rows for problem in row.get("unreadable", ())]
    if part != "val" and any(row.get("val_unreadable") for row in rows):  # counted so far, not named
        problems += [problem for batch in job.evaluator(job.data.val) for problem in batch.problems]
    problems = [problem for those in job.world.gather(problems) for problem in those]
    return list(dict.fromkeys(problems + answers.problems))


def _say_unreadable(console: Console, problems: list[str]) -> None:
    if problems:
        console.print(f"{plural(len(problems), 'picture')} could not be read and had no part in any of it:")
    for problem in problems[:NAMED]:
        console.print(f"  {problem}")
    if len(problems) > NAMED:
        console.print(f"  and {len(problems) - NAMED:,} more, all named in metrics.json")


def _judge(job: Job, checkpoint: Path, source: Source) -> Answers:
    job.world.wait()
    model = load_folder(checkpoint).to(job.world.device)
    mine = answer(
        model,
        job.evaluator(source),
        job.world.device,
        model.config.preprocessing,
        job.data.classes,
        job.stepper.precision,
        job.config.flip_test,
    )
    return Answers.join(job.world.gather(mine))


def _samples(job: Job) -> tuple[Tensor, list[int]]:
    """Training pictures as the model saw them: augmented and mixed, at the very first step."""
    batch = next(iter(job.loader.batches(0, 1)))
    images = denormalise(job.task.prepare(batch)[0][:SAMPLES], job.state.model.config.preprocessing)
    return images.cpu(), batch.labels[:SAMPLES].tolist()


def denormalise(images: Tensor, preprocessing: Preprocessing) -> Tensor:
    mean, std = (images.new_tensor(values).view(1, -1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def _mistakes(job: Job, source: Source, answers: Answers) -> list[Mistake]:
    wrong = answers.evaluation.worst(MISTAKES)
    if not wrong:
        return []
    config, indices = job.state.model.config, torch.tensor([mistake.index for mistake in wrong])
    reader = Reader(source, config.image_size, config.channels, config.preprocessing)
    pictures = reader[Request(0, indices, indices)].images
    classes = job.data.classes
    return [
        Mistake(picture, source.name(one.index), classes[one.true], classes[one.predicted], one.probability)
        for picture, one in zip(pictures, wrong, strict=True)
    ]


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
