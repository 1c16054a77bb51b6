"""What a task has to tell at the end of a run: how its best model was measured, in which words, with which pictures."""

from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.data.loader import Reader, Request
from vitreous.data.sources.base import Source
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.inputs import denormalise
from vitreous.model.options import Preprocessing
from vitreous.model.patch import cut, uncut
from vitreous.model.segmenter import Segmenter
from vitreous.report import plots
from vitreous.report.run_report import SAMPLES, Account, Mistake
from vitreous.report.style import can_draw
from vitreous.tasks.base import Measured
from vitreous.tasks.classification_metrics import Evaluation
from vitreous.tasks.masked import FillIn
from vitreous.tasks.segmentation_metrics import SegmentEvaluation, segment_source
from vitreous.training.loop import evaluate
from vitreous.training.segment_account import segmentation
from vitreous.training.setup import Job
from vitreous.weights.native import load_folder

MISTAKES, FILLED = 24, 6


def judge(job: Job, folder: Path, source: Source) -> Measured:
    """The best checkpoint on pictures it never learned from. Every process takes part.

    What fills in patches, say, is not in the checkpoint, which is for the encoder's next task: there, the last module
    counts. Pixels are judged at each picture's real size, as `eval` and `predict` see it.
    """
    if not job.task.saved_whole:
        return evaluate(job, source)
    job.world.wait()
    model = load_folder(folder / "best").to(job.world.device)
    if isinstance(model, Segmenter):
        precision: Literal["bf16", "fp32"] = "bf16" if job.stepper.precision == torch.bfloat16 else "fp32"
        predictor = SegmentPredictor(model, job.world.device, precision)
        classes, world = job.data.mask_classes, job.world
        parts: list[Measured] = world.gather(segment_source(predictor, source, classes, world.rank, world.size))
        return SegmentEvaluation.join(parts)  # type: ignore[arg-type]
    mine = job.task.measure(model, job.evaluator(source), job.world.device, job.stepper.precision)
    return type(mine).join(job.world.gather(mine))


def account(job: Job, folder: Path, part: str, source: Source, measured: Measured) -> Account:
    """Every process takes part; the first one uses it."""
    if isinstance(measured, SegmentEvaluation):
        return segmentation(job, folder, part, source, measured)
    images, labels = _samples(job)
    shared = {"samples": images, "classes": job.data.classes}
    if isinstance(measured, Evaluation):
        told = _classification(job, part, source, measured)
        names = [job.data.classes[label] if label >= 0 else "unreadable" for label in labels]
        return told._replace(parts=shared | {"sample_labels": names} | told.parts)
    if isinstance(job.task, FillIn):
        told = _filling(job, folder, part, source, measured)
    else:
        told = _plain(job, part, measured)
    return told._replace(parts=shared | {"sample_labels": [""] * len(images)} | told.parts)


def _classification(job: Job, part: str, source: Source, answers: Evaluation) -> Account:
    figures = answers.metrics()
    count = figures["count"]
    sentence = (
        f"top-1 {figures['top1']:.4f} ({round(figures['top1'] * count):,} of {count:,} pictures), "
        f"top-5 {figures['top5']:.4f}, loss {figures['loss']:.4f}, calibration error {figures['ece']:.4f}"
    )
    chose = ", which chose the best epoch too" if part == "val" else ""
    return Account(
        sentence,
        {
            "task": f"Classification into {len(job.data.classes)} classes, measured on the {part} part{chose}",
            "headline": {name: figures[name] for name in ("top1", "top5", "loss", "ece")},
            "evaluation": answers,
            "mistakes": _mistakes(job, source, answers),
        },
    )


def _filling(job: Job, folder: Path, part: str, source: Source, measured: Measured) -> Account:
    figures = measured.metrics()
    names = {"mae": "Masked autoencoding", "mpp": "Masked patch prediction"}
    parts: dict[str, Any] = {
        "task": f"{names[job.config.task]}, without labels, measured on the {part} part",
        "headline": {"loss": figures["loss"]},
    }
    pictures = reconstructions(job, source)
    if job.world.first and can_draw():
        file = folder / "reconstructions.png"
        plots.grid(file, pictures, ["picture", "what is seen", "filled in"] * (len(pictures) // 3), columns=6)
        words = "Pictures that it never learned from, what it was shown of them, and what it believes was hidden."
        if job.config.task == "mae":
            words += " It is asked for the structure of a patch alone: its mean and its contrast are the picture's own."
        parts["extra_figures"] = [(words, file)]
    return Account(f"loss {figures['loss']:.4f} on {figures['count']:,} pictures", parts)


def _plain(job: Job, part: str, measured: Measured) -> Account:
    """Of a task that is not one of ours: the figure that chose the best checkpoint."""
    figures, best = measured.metrics(), job.task.best
    task = f"{type(job.task).__name__}, measured on the {part} part"
    return Account(f"{best} {figures[best]:.4f}", {"task": task, "headline": {best: figures[best]}})


@torch.no_grad()
def reconstructions(job: Job, source: Source) -> list[Tensor]:
    """Of a few pictures: as it is, what is seen of it, and with the holes filled in."""
    task, device = job.task, job.world.device
    assert isinstance(task, FillIn)
    model = task.encoder.config
    indices = torch.arange(min(FILLED, len(source)))
    reader = Reader(source, model.image_size, model.channels, model.preprocessing)
    images, unit, numbers, _ = task.show(reader[Request(0, indices, indices)], device)
    module = job.stepper.module
    before = module.training
    filled = task.fill(module.eval(), images, unit, numbers)
    module.train(before)
    patches, size, grid = cut(unit, model.patch_size), model.patch_size, model.grid
    believed = filled.patches if job.config.task == "mpp" else _unit(filled.patches, size, grid, model.preprocessing)
    hidden = filled.hidden[..., None]
    seen, whole = patches.masked_fill(hidden, 0.5), torch.where(hidden, believed, patches)
    rows = [unit, uncut(seen, size, grid), uncut(whole, size, grid)]
    shown = [(row.clamp(0, 1) * 255).round().to(torch.uint8).cpu() for row in rows]
    return [row[i] for i in range(len(indices)) for row in shown]


def _unit(patches: Tensor, size: tuple[int, int], grid: tuple[int, int], preprocessing: Preprocessing) -> Tensor:
    """Patches in the units of the input, with pixels in [0, 1] again."""
    return cut(denormalise(uncut(patches, size, grid), preprocessing).float() / 255, size)


def _samples(job: Job) -> tuple[Tensor, list[int]]:
    """Training pictures as the model saw them: augmented and mixed, at the very first step."""
    batch = next(iter(job.loader.batches(0, 1)))
    images = denormalise(job.task.prepare(batch)[0][:SAMPLES], job.state.model.config.preprocessing)
    return images.cpu(), batch.labels[:SAMPLES].tolist()


def _mistakes(job: Job, source: Source, answers: Evaluation) -> list[Mistake]:
    wrong = answers.worst(MISTAKES)
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
