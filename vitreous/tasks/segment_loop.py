"""A segmenter over every picture of a source: quickly, as a training run does it, or at each picture's real size.

b: batch; c: channels; h, w: height and width.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitreous.data.image import UnreadableImage
from vitreous.data.loader import Batch
from vitreous.data.sources.base import Source
from vitreous.inference.segment_predictor import NOT_A_NUMBER, SegmentPredictor
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing
from vitreous.tasks.classify_metrics import UNREADABLE
from vitreous.tasks.segment_metrics import SegmentEvaluation


@dataclass(frozen=True)
class Segmented:
    """What a segmenter answered to some pictures, and which of them could not be read."""

    evaluation: SegmentEvaluation
    problems: list[str]

    def metrics(self) -> dict[str, Any]:
        return self.evaluation.metrics()

    @classmethod
    def join(cls, parts: Sequence["Segmented"]) -> "Segmented":
        problems = list(dict.fromkeys(problem for part in parts for problem in part.problems))
        return cls(SegmentEvaluation.join([part.evaluation for part in parts]), problems)


@torch.no_grad()
def segment_batches(
    module: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    preprocessing: Preprocessing,
    classes: Sequence[str],
    precision: torch.dtype = torch.float32,
) -> Segmented:
    """The module, in evaluation mode, on pictures and masks that were fitted to its size: what a run looks at."""
    before, parts, mixed = module.training, [], precision != torch.float32
    module.eval()
    for batch in batches:
        assert batch.masks is not None
        images = normalise(batch.images.to(device, non_blocking=True).float() / 255, preprocessing)
        with torch.autocast(device.type, precision if mixed else torch.bfloat16, enabled=mixed):
            best = module(images).argmax(1)
        found = SegmentEvaluation.of(best, batch.masks, batch.labels, batch.indices, classes)
        parts.append(Segmented(found, batch.problems))
    module.train(before)
    return Segmented.join(parts)


def segment_source(
    predictor: SegmentPredictor, source: Source, classes: Sequence[str], rank: int = 0, ranks: int = 1
) -> Segmented:
    """Every picture at its real size, as `predict` answers, against its whole mask; this process's share of them.

    A picture or mask that cannot be read is counted and named, and takes no part in any figure.
    """
    mine = range(rank, len(source), ranks)
    answers = predictor.stream(_picture(source, index) for index in mine)
    nothing = torch.zeros(1, 1, 1, dtype=torch.uint8)
    parts = []
    if not mine:  # more processes than pictures: what this one says is the first picture's, whom another has measured
        unread = torch.tensor([UNREADABLE])
        return Segmented(SegmentEvaluation.of(nothing, nothing, unread, torch.tensor([0]), classes), [])
    for index, answer in zip(mine, answers, strict=True):
        place = torch.tensor([index])
        problem = answer.error
        if problem == NOT_A_NUMBER:  # no fault of the picture: leaving it out would flatter the model
            raise ValueError(f"{source.name(index)}: {problem}")
        if answer.mask is not None:
            try:
                truth = source.mask(index)
                problem = _mismatch(answer.mask.shape, truth.shape)
            except (UnreadableImage, OSError) as error:
                problem = f"its mask: {error}"
        if problem is not None:
            unread = torch.tensor([UNREADABLE])
            found = SegmentEvaluation.of(nothing, nothing, unread, place, classes)
            parts.append(Segmented(found, [f"{source.name(index)}: {problem}"]))
            continue
        ours, theirs = (torch.from_numpy(array)[None].to(predictor.device) for array in (answer.mask, truth))
        parts.append(Segmented(SegmentEvaluation.of(ours, theirs, torch.tensor([0]), place, classes), []))
    return Segmented.join(parts)


def _picture(source: Source, index: int) -> Any:
    try:
        return source.image(index)
    except OSError:
        return b""  # which no decoder reads


def _mismatch(picture: tuple[int, ...], mask: tuple[int, ...]) -> str | None:
    sizes = [" x ".join(map(str, shape)) for shape in (mask, picture)]
    return None if picture == mask else f"its mask is {sizes[0]} pixels, but the picture {sizes[1]}"
