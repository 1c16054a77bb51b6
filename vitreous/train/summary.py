"""The end of a run: the best checkpoint, measured on pictures it never learned from, and an account of it all."""

import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import vitreous
from vitreous.data.loader import Reader, Request
from vitreous.data.source import Source
from vitreous.evaluate.run import Answers, answer
from vitreous.model.codec import to_dict
from vitreous.model.options import Preprocessing
from vitreous.train.report import Mistake, RunReport, write_report
from vitreous.train.setup import Job
from vitreous.weights.files import atomic_file
from vitreous.weights.native import load_folder

SAMPLES, MISTAKES = 16, 24


def summarise(
    job: Job, folder: Path, console: Console, notes: list[str], command: str, seconds: float
) -> dict[str, Any]:
    """Evaluate `best/`, write metrics.json and the report, say where they are. Every process takes part."""
    part, source = ("val", job.data.val) if job.data.test is None else ("test", job.data.test)
    answers = _judge(job, folder / "best", source)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    figures = answers.evaluation.metrics()
    metrics: dict[str, Any] = {
        **figures,
        "part": part,
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
            unreadable=answers.problems,
            defaults_chosen=notes,
            next_commands=next_commands(folder, job.config.data),
        )
        path = write_report(folder, report)
        console.print(
            f"\n{part} top-1 {figures['top1']:.4f}, top-5 {figures['top5']:.4f}, loss {figures['loss']:.4f}, "
            f"calibration error {figures['ece']:.4f}, after {seconds:.0f} s",
            highlight=False,
        )
        console.print(f"report: {path}\n\nTry next:", highlight=False)
        for line in next_commands(folder, job.config.data):
            console.print(f"  {line}", highlight=False, soft_wrap=True)
    job.world.wait()
    return metrics


def next_commands(folder: Path, data: str) -> list[str]:
    return [
        f"vitreous predict {folder / 'best'} PICTURE.jpg",
        f"vitreous eval {folder / 'best'} --data {data}",
        f"vitreous info {folder / 'best'}",
    ]


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
