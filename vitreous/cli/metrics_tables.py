"""Print the results of `vitreous eval`: tables for people, or JSON."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from vitreous.common.atomic_files import atomic_file
from vitreous.common.text import console as standard_output
from vitreous.common.text import plural, printable
from vitreous.evaluation import ClassificationMetrics, Metrics, ProbeMetrics, SegmentationMetrics

SHOWN = 12  # unreadable files and worst classes
SHOWN_SEGMENTS = 20


def print_metrics(metrics: Metrics, as_json: bool, out: Path | None) -> None:
    """Print tables or JSON to stdout; `out` gets the JSON as well. Doubts about the result go to stderr."""
    record = metrics.to_dict()
    if record.get("doubt"):
        print(printable(f"vitreous: {record['doubt']}"), file=sys.stderr)
    if out is not None:
        with atomic_file(out) as temporary:
            temporary.write_text(json.dumps(record, indent=2))
    if as_json:
        print(json.dumps(record))
        return
    console = standard_output()
    if isinstance(metrics, ClassificationMetrics):
        _print_classification(console, metrics, record)
    elif isinstance(metrics, SegmentationMetrics):
        _print_segmentation(console, record)
    else:
        _print_probe(console, metrics, record)
    problems = metrics.problems if isinstance(metrics, ProbeMetrics) else metrics.evaluation.problems
    for problem in problems[:SHOWN]:
        console.print(f"unreadable: {problem}", soft_wrap=True)


def _print_classification(console: Console, metrics: ClassificationMetrics, record: dict[str, Any]) -> None:
    evaluation, rows = metrics.evaluation, record["per_class"]
    top5 = ("top5",) if len(rows) > 5 else ()
    console.print(_summary(record, ("part", "count", "top1", *top5, "loss", "ece", "unreadable", "images_per_second")))
    worst = sorted((row for row in rows if row["f1"] is not None), key=lambda row: row["f1"])[:SHOWN]
    table = Table("class", "images", "precision", "recall", "F1", box=None, title="worst classes", title_justify="left")
    for row in worst:
        table.add_row(row["name"], str(row["count"]), *_fractions(row, ("precision", "recall", "f1")))
    console.print(table)
    for pair in evaluation.most_confused(5):
        names = f"{evaluation.name(pair.true)} predicted as {evaluation.name(pair.predicted)}"
        console.print(f"{names}: {plural(pair.count, 'time')} ({pair.fraction:.1%})", soft_wrap=True)


def _print_segmentation(console: Console, record: dict[str, Any]) -> None:
    shown = ("part", "count", "miou", "pixel_accuracy", "boundary_f", "unreadable", "images_per_second")
    console.print(_summary(record, shown))
    table = Table("class", "pixels", "IoU", "accuracy", "boundary F", box=None)
    for row in sorted(record["per_class"], key=lambda row: (row["iou"] is None, row["iou"]))[:SHOWN_SEGMENTS]:
        table.add_row(row["name"], f"{row['pixels']:,}", *_fractions(row, ("iou", "accuracy", "boundary_f")))
    console.print(table)


def _print_probe(console: Console, metrics: ProbeMetrics, record: dict[str, Any]) -> None:
    shown = (metrics.probe, "part", "count", "train_count", "unreadable", "features", "width", "seconds")
    console.print(_summary(record, shown))
    top5 = metrics.num_classes > 5
    table = Table("", "top-1", *(["top-5"] if top5 else []), "", box=None)
    for row in record["results"]:
        accuracies = [f"{row[key]:.4f}" for key in ("top1", *(["top5"] if top5 else []))]
        table.add_row(_setting(row), *accuracies, _details(row))
    console.print(table)
    if metrics.skipped:
        console.print(f"skipped: {metrics.skipped}", soft_wrap=True)


def _summary(record: Mapping[str, Any], names: Sequence[str]) -> Table:
    table = Table("", "", box=None, show_header=False)
    for name in names:
        value = record[name]
        label = "split" if name == "part" else name  # the key of metrics.json
        table.add_row(label, f"{value:.4f}" if isinstance(value, float) else str(value))
    return table


def _fractions(row: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    return ["-" if row[key] is None else f"{row[key]:.3f}" for key in keys]


def _setting(row: dict[str, Any]) -> str:
    if "neighbours" in row:
        return plural(row["neighbours"], "neighbour")
    return plural(row["shots"], "shot") if "shots" in row else row["method"]


def _details(row: dict[str, Any]) -> str:
    if "draws" in row:
        return f"± {row['std']:.4f} over {len(row['draws'])} draws"
    if "setting" in row:
        settings = ", ".join(f"{name} {value:g}" for name, value in row["setting"].items())
        return f"{settings} (held out {row['held_out']:.4f})"
    return ""
