"""What a run tells at its end about a segmenter."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.common.text import plural
from vitreous.data.sources.base import Source
from vitreous.inference.mask_images import background_of, overlay
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.inputs import denormalise
from vitreous.report import plots
from vitreous.report.run_report import SAMPLES, Account
from vitreous.report.style import can_draw
from vitreous.tasks.segment_loop import Segmented
from vitreous.training.setup import Job
from vitreous.weights.native import load_folder

SHOWN = 4


def segmentation(job: Job, folder: Path, part: str, source: Source, measured: Segmented) -> Account:
    """Every process takes part; the first one uses it."""
    figures, classes, samples = measured.metrics(), job.data.mask_classes, _samples(job)
    sentence = (
        f"mean IoU {figures['miou']:.4f} on {plural(figures['count'], 'picture')}, pixel accuracy "
        f"{figures['pixel_accuracy']:.4f}, boundary F {figures['boundary_f']:.4f}"
    )
    chose = ", which chose the best epoch too" if part == "val" else ""
    parts: dict[str, Any] = {
        "task": f"Segmentation into {len(classes)} classes, measured on the {part} part{chose}",
        "headline": {name: figures[name] for name in ("miou", "pixel_accuracy", "boundary_f")},
        "classes": classes,
        "segments": measured.evaluation,
        "samples": samples,
        "sample_labels": [""] * len(samples),
    }
    if job.world.first and can_draw():
        parts["extra_figures"] = _figures(job, folder, source, measured)
    return Account(sentence, parts)


def _samples(job: Job) -> Tensor:
    """Training pictures as the model saw them at the very first step, with their masks laid over them."""
    images, masks, _ = job.task.prepare(next(iter(job.loader.batches(0, 1))))
    pictures = denormalise(images[:SAMPLES], job.state.model.config.preprocessing).cpu()
    background = background_of(job.data.mask_classes)
    pairs = zip(pictures, masks[:SAMPLES].cpu().numpy(), strict=True)
    return torch.stack([_laid_over(_rgb(picture), mask, background) for picture, mask in pairs])


def _figures(job: Job, folder: Path, source: Source, measured: Segmented) -> list[tuple[str, Path]]:
    predictor = SegmentPredictor(load_folder(folder / "best").to(job.world.device))  # type: ignore[arg-type]
    labelled = [picture.index for picture in measured.evaluation.worst(len(source))]
    rows = [
        (
            "segments.png",
            "Pictures that it never learned from: as they are, the true mask, and its answer.",
            range(SHOWN),
        ),
        ("mistakes.png", "The pictures with the smallest share of right pixels.", labelled[:SHOWN]),
    ]
    told = []
    for name, words, indices in rows:
        shown = [index for index in indices if index in set(labelled)]
        pictures = [one for index in shown for one in _triple(predictor, source, index)]
        captions = ["picture", "truth", "answer"] * len(shown)
        plots.grid(folder / name, pictures, captions, columns=6)
        told.append((words, folder / name))
    return told


def _triple(predictor: SegmentPredictor, source: Source, index: int) -> list[Tensor]:
    [answer] = predictor([source.image(index)])
    assert answer.pixels is not None
    assert answer.mask is not None
    picture = _rgb(torch.from_numpy(answer.pixels).permute(2, 0, 1))
    masks = (source.mask(index), answer.mask)
    return [
        torch.from_numpy(picture).permute(2, 0, 1),
        *(_laid_over(picture, mask, predictor.background) for mask in masks),
    ]


def _rgb(picture: Tensor) -> np.ndarray:
    return picture.expand(3, -1, -1).permute(1, 2, 0).numpy()


def _laid_over(picture: np.ndarray, mask: np.ndarray, background: int | None) -> Tensor:
    return torch.from_numpy(overlay(picture, mask, 0.6, background)).permute(2, 0, 1)
