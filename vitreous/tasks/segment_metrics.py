"""How good a segmenter is: what it takes for what, pixel by pixel, and how well it follows outlines.

Of each picture only its part of the confusion matrix is kept, without the zeros, and the boundary F-score of each class
that it has: a few hundred bytes. So batches and processes can be joined, each picture counting once, and the pictures
that went worst can be found.

n: pictures; k: classes; h, w: height and width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.model.options import IGNORED
from vitreous.tasks.boundary import Ids, boundary_scores
from vitreous.tasks.classify_metrics import UNREADABLE


@dataclass(frozen=True)
class SegmentClass:
    """One class. A figure is None where it has no meaning, as the accuracy of a class without a pixel."""

    index: int
    name: str
    pixels: int
    iou: float | None  # of the pixels that are of this class or taken for it, the share that are both
    accuracy: float | None  # of the pixels of this class, the share that is taken for it
    boundary_f: float | None  # the mean over pictures


@dataclass(frozen=True)
class SegmentPicture:
    """One picture, by its index in the source."""

    index: int
    pixel_accuracy: float


@dataclass(frozen=True)
class SegmentEvaluation:
    """What a model answered to n pictures with masks. Made by `of`, batch by batch by `of` and `join`.

    >>> predicted = torch.tensor([[[0, 0, 1, 1]]])
    >>> masks = torch.tensor([[[0, 1, 1, IGNORED]]])
    >>> evaluation = SegmentEvaluation.of(predicted, masks, torch.tensor([0]), torch.tensor([7]), ("sky", "sea", "sun"))
    >>> evaluation.metrics()["miou"], evaluation.confusion().tolist()
    (0.5, [[1, 0, 0], [1, 1, 0], [0, 0, 0]])
    """

    indices: Int[Tensor, "n"]  # which pictures of the source these are
    readable: Bool[Tensor, "n"]
    cells: Int[Tensor, "m 4"]  # place in indices, true class, predicted class, pixels: where there are any
    outlines: Int[Tensor, "o 2"]  # place in indices, class: where there are any
    scores: Float[Tensor, "o"]  # the boundary F-score of each of them
    classes: tuple[str, ...]

    @classmethod
    def of(
        cls, predicted: Ids, masks: Ids, labels: Int[Tensor, "n"], indices: Int[Tensor, "n"], classes: Sequence[str]
    ) -> "SegmentEvaluation":
        """From classes of pixels, on any device; what is kept is on the CPU. A label of -1 marks an unreadable picture.

        Pixels that are IGNORED in the masks count nowhere.
        """
        n, k = len(masks), len(classes)
        device = predicted.device
        readable = labels.to(device) != UNREADABLE
        masks = torch.where(readable[:, None, None], masks.to(device), IGNORED)
        known = masks != IGNORED
        for what, ids in (("masks", torch.where(known, masks, 0)), ("predicted", predicted)):
            low, high = int(ids.min()), int(ids.max())
            if low < 0 or high >= k:
                raise ValueError(f"{what} has ids from {low} to {high}, but there are {k} classes")
        place = torch.arange(n, device=device)[:, None, None]
        rows = place * (k + 1) + torch.where(known, masks, k)  # ignored pixels have a row of their own, to be left out
        counts = torch.bincount((rows * k + predicted).flatten(), minlength=n * (k + 1) * k).view(n, k + 1, k)[:, :k]
        cells = counts.nonzero()
        scores = boundary_scores(predicted, masks, k)
        # A class that a picture only has where nothing is known has no outline to be judged.
        occurs = (counts.sum(1) + counts.sum(2)) > 0
        outlines = (occurs & ~scores.isnan()).nonzero()
        return cls(
            indices.cpu(),
            readable.cpu(),
            torch.cat([cells, counts[tuple(cells.T)][:, None]], dim=1).cpu(),
            outlines.cpu(),
            scores[tuple(outlines.T)].cpu(),
            tuple(classes),
        )

    @classmethod
    def join(cls, parts: Sequence["SegmentEvaluation"]) -> "SegmentEvaluation":
        """The evaluation of all pictures of all parts, in the order of their indices, each picture once."""
        if not parts:
            raise ValueError("there is nothing to join: no batch was evaluated")
        if any(part.classes != parts[0].classes for part in parts):
            raise ValueError("evaluations of different classes cannot be joined")
        indices = torch.cat([part.indices for part in parts])
        first = torch.from_numpy(np.unique(indices.numpy(), return_index=True)[1])
        places = torch.full((len(indices),), -1)
        places[first] = torch.arange(len(first))
        # Of each part's pictures the new places; -1 if one came before.
        own = torch.split(places, [len(part.indices) for part in parts])

        def moved(tables: Sequence[Tensor]) -> Tensor:
            rows = [torch.cat([new[table[:, :1]], table[:, 1:]], 1) for new, table in zip(own, tables, strict=True)]
            return torch.cat(rows)

        cells, outlines = moved([part.cells for part in parts]), moved([part.outlines for part in parts])
        kept = outlines[:, 0] >= 0
        return cls(
            indices[first],
            torch.cat([part.readable for part in parts])[first],
            cells[cells[:, 0] >= 0],
            outlines[kept],
            torch.cat([part.scores for part in parts])[kept],
            parts[0].classes,
        )

    def metrics(self) -> dict[str, float]:
        """`miou`, `pixel_accuracy`, `boundary_f` and how many pictures they are of. Fractions, not percent.

        A class that is neither there nor predicted counts in no mean. Without any outline, none is missed: F is 1.
        """
        confusion = self.confusion()
        pixels = int(confusion.sum())
        if not pixels:
            raise ValueError(f"there is nothing to measure: none of {len(self.indices)} pictures has a labelled pixel")
        classes = self.per_class()
        ious = [figures.iou for figures in classes if figures.iou is not None]
        outlines = [figures.boundary_f for figures in classes if figures.boundary_f is not None]
        count = int(self.readable.sum())
        return {
            "miou": sum(ious) / len(ious),
            "pixel_accuracy": int(confusion.diagonal().sum()) / pixels,
            "boundary_f": sum(outlines) / len(outlines) if outlines else 1.0,
            "count": count,
            "unreadable": len(self.indices) - count,
        }

    def confusion(self) -> Int[Tensor, "k k"]:
        """Pixels of class (row) that were taken for class (column)."""
        k = len(self.classes)
        _, true, predicted, pixels = self.cells.unbind(1)
        return torch.zeros(k * k, dtype=torch.int64).index_add_(0, true * k + predicted, pixels).view(k, k)

    def per_class(self) -> list[SegmentClass]:
        """Every class in its order, also those without a pixel."""
        confusion = self.confusion()
        hits, pixels, claims = confusion.diagonal().tolist(), confusion.sum(1).tolist(), confusion.sum(0).tolist()
        kind = self.outlines[:, 1]
        pictures = torch.bincount(kind, minlength=len(self.classes)).tolist()
        totals = torch.bincount(kind, self.scores, minlength=len(self.classes)).tolist()
        return [
            SegmentClass(
                index,
                name,
                pixels[index],
                iou=_share(hits[index], pixels[index] + claims[index] - hits[index]),
                accuracy=_share(hits[index], pixels[index]),
                boundary_f=_share(totals[index], pictures[index]),
            )
            for index, name in enumerate(self.classes)
        ]

    def worst(self, k: int) -> list[SegmentPicture]:
        """The k pictures with the smallest share of right pixels."""
        place, true, predicted, pixels = self.cells.unbind(1)
        totals, right = (
            torch.bincount(place, weights, minlength=len(self.indices))
            for weights in (pixels.double(), pixels * (true == predicted).double())
        )
        labelled = totals.nonzero()[:, 0]
        shares = right[labelled] / totals[labelled]
        order = shares.argsort(stable=True)[:k]
        return [SegmentPicture(int(self.indices[labelled[i]]), float(shares[i])) for i in order.tolist()]


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None
