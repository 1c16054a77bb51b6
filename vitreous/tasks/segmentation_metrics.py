"""Segmentation metrics: IoU, pixel accuracy and confusion, and boundary F-scores.

For each image, only a sparse confusion matrix and the boundary F-scores of its classes are kept (a few hundred bytes).
This is enough to merge the results of batches and processes, and to find the worst images.

n: images; k: classes; h, w: height and width.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from vitreous.common.checks import Size
from vitreous.common.progress import Report, silent, tracked
from vitreous.data.image import UnreadableImage
from vitreous.data.loader import Batch
from vitreous.data.sources.base import Source
from vitreous.inference.engine import NOT_A_NUMBER, SourceImage
from vitreous.inference.forward_pass import evaluation_mode, mixed_precision, model_input
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.options import IGNORED, Preprocessing
from vitreous.tasks.classification_metrics import UNREADABLE, rank_batches, ratio

Ids = UInt8[Tensor, "n h w"] | Int[Tensor, "n h w"]


@dataclass(frozen=True)
class SegmentClassMetrics:
    """Metrics of one class. Undefined metrics, such as the accuracy of a class without pixels, are None."""

    index: int
    name: str
    pixels: int
    iou: float | None  # intersection over union
    accuracy: float | None  # fraction of this class's pixels that are predicted correctly
    boundary_f: float | None  # mean over images


@dataclass(frozen=True)
class SegmentEvaluation:
    """Evaluation of n predicted masks. `of` evaluates a batch, and `join` merges batches."""

    indices: Int[Tensor, "n"]  # positions of the images in their source
    readable: Bool[Tensor, "n"]
    cells: Int[Tensor, "m 4"]  # nonzero counts: row in `indices`, true class, predicted class, pixels
    outlines: Int[Tensor, "o 2"]  # row in `indices`, class with an outline
    scores: Float[Tensor, "o"]  # boundary F-score of each outline
    classes: tuple[str, ...]
    problems: list[str] = field(default_factory=list)  # unreadable images, each with the reason

    @classmethod
    def of(
        cls,
        predicted: Ids,
        masks: Ids,
        labels: Int[Tensor, "n"],
        indices: Int[Tensor, "n"],
        classes: Sequence[str],
        problems: Sequence[str] = (),
    ) -> "SegmentEvaluation":
        """Evaluate predicted masks on any device. Images with the label -1 and IGNORED pixels are excluded."""
        n, k = len(masks), len(classes)
        device = predicted.device
        readable = labels.to(device) != UNREADABLE
        masks = torch.where(readable[:, None, None], masks.to(device), IGNORED)
        known = masks != IGNORED
        for name, ids in (("masks", torch.where(known, masks, 0)), ("predicted", predicted)):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= k:
                raise ValueError(f"{name} must contain class indices from 0 to {k - 1}, got {low} to {high}")
        place = torch.arange(n, device=device)[:, None, None]
        rows = place * (k + 1) + torch.where(known, masks, k)  # ignored pixels go to row k, which is dropped
        counts = torch.bincount((rows * k + predicted).flatten(), minlength=n * (k + 1) * k).view(n, k + 1, k)[:, :k]
        cells = counts.nonzero()
        scores = boundary_scores(predicted, masks, k)
        # Skip classes that occur only in ignored pixels.
        occurs = (counts.sum(1) + counts.sum(2)) > 0
        outlines = (occurs & ~scores.isnan()).nonzero()
        cells = torch.cat([cells, counts[tuple(cells.T)][:, None]], dim=1).cpu()
        scores = scores[tuple(outlines.T)].cpu()
        return cls(indices.cpu(), readable.cpu(), cells, outlines.cpu(), scores, tuple(classes), list(problems))

    @classmethod
    def unreadable(cls, index: int, classes: Sequence[str], problems: Sequence[str]) -> "SegmentEvaluation":
        empty = torch.zeros(1, 1, 1, dtype=torch.uint8)
        return cls.of(empty, empty, torch.tensor([UNREADABLE]), torch.tensor([index]), classes, problems)

    @classmethod
    def join(cls, parts: Sequence["SegmentEvaluation"]) -> "SegmentEvaluation":
        """Merge evaluations in the order of their indices, counting each image once."""
        if not parts:
            raise ValueError("cannot merge evaluations: no batches were evaluated")
        if any(part.classes != parts[0].classes for part in parts):
            counts = sorted({len(part.classes) for part in parts})
            raise ValueError(f"cannot merge evaluations with different classes (numbers of classes: {counts})")
        indices = torch.cat([part.indices for part in parts])
        first = torch.from_numpy(np.unique(indices.numpy(), return_index=True)[1])
        places = torch.full((len(indices),), -1)
        places[first] = torch.arange(len(first))
        # For each part, the new row of each of its images, or -1 for duplicates.
        own = torch.split(places, [len(part.indices) for part in parts])

        def moved(tables: Sequence[Tensor]) -> Tensor:
            rows = [torch.cat([new[table[:, :1]], table[:, 1:]], 1) for new, table in zip(own, tables, strict=True)]
            return torch.cat(rows)

        cells, outlines = moved([part.cells for part in parts]), moved([part.outlines for part in parts])
        kept = outlines[:, 0] >= 0
        readable, scores = (torch.cat([getattr(part, name) for part in parts]) for name in ("readable", "scores"))
        tables = (cells[cells[:, 0] >= 0], outlines[kept], scores[kept])
        problems = dict.fromkeys(problem for part in parts for problem in part.problems)
        return cls(indices[first], readable[first], *tables, parts[0].classes, list(problems))

    def metrics(self) -> dict[str, Any]:
        """Return metrics as fractions. Classes that neither occur nor are predicted are excluded from the means."""
        confusion = self.confusion()
        pixels = int(confusion.sum())
        if not pixels:
            raise ValueError(f"nothing to evaluate: none of the {len(self.indices)} images has labelled pixels")
        classes = self.per_class()
        ious = [row.iou for row in classes if row.iou is not None]
        outlines = [row.boundary_f for row in classes if row.boundary_f is not None]
        count = int(self.readable.sum())
        return {
            "miou": sum(ious) / len(ious),
            "pixel_accuracy": int(confusion.diagonal().sum()) / pixels,
            "boundary_f": sum(outlines) / len(outlines) if outlines else 1.0,
            "count": count,
            "unreadable": len(self.indices) - count,
        }

    def confusion(self) -> Int[Tensor, "k k"]:
        """Return the confusion matrix of pixels: rows are true classes, columns are predicted classes."""
        k = len(self.classes)
        _, true, predicted, pixels = self.cells.unbind(1)
        return torch.zeros(k * k, dtype=torch.int64).index_add_(0, true * k + predicted, pixels).view(k, k)

    def per_class(self) -> list[SegmentClassMetrics]:
        """Return the metrics of all classes in order, including classes without pixels."""
        confusion = self.confusion()
        hits, pixels, claims = confusion.diagonal().tolist(), confusion.sum(1).tolist(), confusion.sum(0).tolist()
        kind = self.outlines[:, 1]
        images = torch.bincount(kind, minlength=len(self.classes)).tolist()
        totals = torch.bincount(kind, self.scores, minlength=len(self.classes)).tolist()
        return [
            SegmentClassMetrics(
                index,
                name,
                pixels[index],
                iou=ratio(hits[index], pixels[index] + claims[index] - hits[index]),
                accuracy=ratio(hits[index], pixels[index]),
                boundary_f=ratio(totals[index], images[index]),
            )
            for index, name in enumerate(self.classes)
        ]

    def worst(self, k: int) -> list[tuple[int, float]]:
        """Return the source index and pixel accuracy of the k images with the lowest pixel accuracy."""
        place, true, predicted, pixels = self.cells.unbind(1)
        totals, right = (
            torch.bincount(place, weights, minlength=len(self.indices))
            for weights in (pixels.double(), pixels * (true == predicted).double())
        )
        labelled = totals.nonzero()[:, 0]
        accuracies = right[labelled] / totals[labelled]
        order = accuracies.argsort(stable=True)[:k]
        return [(int(self.indices[labelled[i]]), float(accuracies[i])) for i in order.tolist()]


def segment_batches(
    module: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    preprocessing: Preprocessing,
    classes: Sequence[str],
    precision: torch.dtype = torch.float32,
) -> SegmentEvaluation:
    """Evaluate a module on batches from a loader, at the input size of the model."""
    parts = []
    with evaluation_mode(module):
        for batch in batches:
            assert batch.masks is not None
            images = model_input(batch.images, device, preprocessing)
            with mixed_precision(device, precision):
                best = module(images).argmax(1)
            labels, indices = batch.labels, batch.indices
            parts.append(SegmentEvaluation.of(best, batch.masks, labels, indices, classes, batch.problems))
    return SegmentEvaluation.join(parts)


def segment_source(
    predictor: SegmentPredictor,
    source: Source,
    classes: Sequence[str],
    rank: int = 0,
    ranks: int = 1,
    progress: Report = silent,
) -> SegmentEvaluation:
    """Evaluate a predictor at full image size, on the images that belong to process `rank` of `ranks`."""
    mine = [index for batch in rank_batches(len(source), predictor.batch_size, rank, ranks) for index in batch]
    if not mine:  # more processes than images: add a duplicate, which `join` drops
        return SegmentEvaluation.unreadable(0, classes, ())
    parts = []
    results = predictor.stream(SourceImage(source, index) for index in mine)
    results = tracked(results, "segmenting images", len(mine), progress)
    for index, result in zip(mine, results, strict=True):
        problem = result.error
        if problem == NOT_A_NUMBER:  # a problem with the model, not with the image
            raise ValueError(f"{source.name(index)}: {problem}")
        if result.mask is not None:
            try:
                truth = source.mask(index)
                if result.mask.shape != truth.shape:
                    sizes = [" x ".join(map(str, array.shape)) for array in (truth, result.mask)]
                    problem = f"the mask has {sizes[0]} pixels, but the image has {sizes[1]}"
            except (UnreadableImage, OSError) as error:
                problem = f"the mask is unreadable: {error}"
        if problem is not None:
            parts.append(SegmentEvaluation.unreadable(index, classes, [f"{source.name(index)}: {problem}"]))
            continue
        predicted, masks = (torch.from_numpy(array)[None].to(predictor.device) for array in (result.mask, truth))
        parts.append(SegmentEvaluation.of(predicted, masks, torch.tensor([0]), torch.tensor([index]), classes))
    return SegmentEvaluation.join(parts)


# ---- Boundaries ------------------------------------------------------------------------------------------------------

TOLERANCE = 0.0075  # fraction of the image diagonal


def boundary_scores(predicted: Ids, masks: Ids, classes: int) -> Float[Tensor, "n {classes}"]:
    """Return the boundary F-score of each class in each image, or NaN if the class has no outline in that image."""
    truth = torch.where(masks == IGNORED, predicted.to(masks.dtype), masks)  # ignored pixels count as correct
    predicted_outlines, true_outlines = outlines(predicted), outlines(truth)
    radius = tolerance((masks.shape[1], masks.shape[2]))
    correct, claimed = _near(predicted_outlines, true_outlines, radius, classes)
    found, actual = _near(true_outlines, predicted_outlines, radius, classes)
    precision, recall = correct / claimed.clamp(min=1), found / actual.clamp(min=1)
    scores = 2 * precision * recall / (precision + recall).clamp(min=1e-12)
    return torch.where(claimed + actual > 0, scores, torch.nan)


def tolerance(size: Size) -> int:
    """Return the maximum distance, in pixels, between outlines that count as matching."""
    return math.ceil(TOLERANCE * math.hypot(*size))


def outlines(ids: Ids) -> UInt8[Tensor, "n h w"]:
    """Return the class of each pixel that has a 4-neighbour of another class, and IGNORED for all other pixels."""
    edge = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
    across, down = ids[:, :, 1:] != ids[:, :, :-1], ids[:, 1:] != ids[:, :-1]
    edge[:, :, 1:] |= across
    edge[:, :, :-1] |= across
    edge[:, 1:] |= down
    edge[:, :-1] |= down
    return torch.where(edge, ids, IGNORED).to(torch.uint8)


def _near(
    outline: UInt8[Tensor, "n h w"], reference: UInt8[Tensor, "n h w"], radius: int, classes: int
) -> tuple[Float[Tensor, "n {classes}"], Float[Tensor, "n {classes}"]]:
    """Count the outline pixels of each class: those within `radius` of the reference outline, and all of them."""
    n, h, w = outline.shape
    step = w + 2 * radius
    around = F.pad(reference, (radius,) * 4, value=IGNORED).flatten()
    image, row, column = (outline != IGNORED).nonzero().unbind(1)
    kind = outline[image, row, column]
    place = (image * (h + 2 * radius) + row + radius) * step + column + radius
    near = torch.zeros_like(kind, dtype=torch.bool)
    for y in range(-radius, radius + 1):  # faster than dilating each class, because outlines have few pixels
        reach = math.isqrt(radius**2 - y**2)
        for x in range(-reach, reach + 1):
            near |= around[place + (y * step + x)] == kind
    cells = image * classes + kind
    hits, all_ = (torch.bincount(which, minlength=n * classes).view(n, classes) for which in (cells[near], cells))
    return hits.double(), all_.double()
