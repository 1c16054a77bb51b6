"""What a report says about each class of pixels."""

from vitreous.report.html import Html, bar, inner, name, table, tag
from vitreous.tasks.segmentation_metrics import SegmentEvaluation

MOST_PAIRS = 10


def segment_classes(evaluation: SegmentEvaluation | None) -> list[Html]:
    """The table of classes, the worst first, and which pixels are taken for which."""
    if evaluation is None:
        return []

    def share(number: float | None) -> str:
        return "-" if number is None else f"{number:.1%}"

    words = (
        "IoU: of the pixels that are of this class or were taken for it, how many are both. Accuracy: of the pixels of "
        "this class, how many were found. Boundary F: how well its outlines are met, within a few pixels."
    )
    ordered = sorted(evaluation.per_class(), key=lambda row: (row.iou is None, row.iou))
    lines = [
        [
            name(row.name),
            f"{row.pixels:,}",
            inner(bar(row.iou or 0), tag("span", share(row.iou))),
            share(row.accuracy),
            share(row.boundary_f),
        ]
        for row in ordered
    ]
    return [
        tag("p", words),
        table(["class", "pixels", "IoU", "accuracy", "boundary F"], lines),
        *_confused(evaluation),
    ]


def _confused(evaluation: SegmentEvaluation) -> list[Html]:
    counts, names = evaluation.confusion(), evaluation.classes
    totals = counts.sum(1).clamp(min=1)
    pairs = [(int(counts[i, j]), i, j) for i in range(len(names)) for j in range(len(names)) if i != j]
    worst = sorted((pair for pair in pairs if pair[0]), reverse=True)[:MOST_PAIRS]
    rows = [[name(names[i]), name(names[j]), f"{count:,}", f"{count / int(totals[i]):.1%}"] for count, i, j in worst]
    return [table(["pixels of", "taken for", "how many", "of that class"], rows, 2, "Most confused")] if rows else []
