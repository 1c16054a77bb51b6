"""What a report says about a classifier's evaluation: each class, what is taken for what, and whether it knows."""

from collections.abc import Sequence
from pathlib import Path

from vitreous.report.html import Html, bar, details, inner, name, plot, table, tag
from vitreous.report.plots import FEW
from vitreous.tasks.classification_metrics import ClassMetrics, Evaluation

FEW_CLASSES, SHOWN_CLASSES, MOST_CLASSES = 20, 30, 1000  # kept in their order, shown at once, listed at all


def per_class(evaluation: Evaluation) -> list[Html]:
    """The table of classes; where there are many, the worst first."""
    rows = evaluation.per_class()
    many = len(rows) > FEW_CLASSES
    if many:  # the worst first; classes without a picture say nothing and come last
        rows = sorted(rows, key=lambda row: (row.f1 is None or row.count == 0, row.f1 or 0))
    words = (
        "Recall: of the pictures of this class, how many were found. Precision: of the pictures that were given this "
        "name, how many deserve it. F1 is high only where both are."
    )
    parts = [tag("p", words + (" The classes that go worst come first." if many else ""))]
    # Plots name classes by their number where they are many or no font has their letters.
    numbered = evaluation.names is not None and (many or not all(row.name.isascii() for row in rows))
    parts.append(_class_table(rows[:SHOWN_CLASSES], numbered))
    if rest := rows[SHOWN_CLASSES:MOST_CLASSES]:
        left_out = len(rows) - MOST_CLASSES
        parts.append(details(f"{len(rest):,} more classes", _class_table(rest, numbered)))
        if left_out > 0:
            parts.append(tag("p", f"{left_out:,} classes that go better are not listed.", class_="soft"))
    return parts


def _class_table(rows: Sequence[ClassMetrics], numbered: bool) -> Html:
    def share(number: float | None) -> str:
        return "-" if number is None else f"{number:.1%}"

    lines = [
        [
            name(row.name),
            *([str(row.index)] if numbered else []),
            f"{row.count:,}",
            share(row.precision),
            share(row.recall),
            inner(bar(row.f1 or 0), tag("span", share(row.f1))),
        ]
        for row in rows
    ]
    return table(["class", *(["number"] if numbered else []), "pictures", "precision", "recall", "F1"], lines)


def confusion(evaluation: Evaluation, drawn: Path | None) -> list[Html]:
    """The matrix, where it was drawn, and the pairs that are confused most."""
    parts = []
    if drawn is not None:
        words = (
            "Each row is a class, and shows what its pictures were taken for. Everything beside the diagonal is wrong."
        )
        parts.append(plot(drawn, "Confusion matrix: true classes against predicted ones", words))
    name_of = evaluation.name
    pairs = [
        [name(name_of(pair.true)), name(name_of(pair.predicted)), f"{pair.count:,}", f"{pair.fraction:.1%}"]
        for pair in evaluation.most_confused(10)
    ]
    columns = ["pictures of", "taken for", "how many", "of that class"]
    none = tag("p", "Nothing was taken for anything else.")
    parts.append(table(columns, pairs, 2, "Most confused") if pairs else none)
    return [tag("div", *parts, class_="side")]


def calibration(evaluation: Evaluation, drawn: Path | None) -> list[Html]:
    """What calibration means, how far off this model is and in which direction."""
    bins, top1 = evaluation.calibration(), evaluation.metrics()["top1"]
    gap = float((bins.confidence * bins.counts).sum() / bins.counts.sum()) - top1
    lean = "neither too sure nor too modest on the whole"
    if abs(gap) > 0.01:
        lean = "on the whole surer than it should be" if gap > 0 else "right more often than it believes"
    words = (
        f"When a model says 80%, it should be right 8 times in 10. This one is off by {100 * bins.ece:.1f} points on "
        f"average, and is {lean}."
    )
    if drawn is None:
        return [tag("p", words)]
    note = f"Hollow dots stand for fewer than {FEW} pictures and prove little."
    return [tag("p", words), plot(drawn, "Reliability diagram: accuracy against confidence", note)]
