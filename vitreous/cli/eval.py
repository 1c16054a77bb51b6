"""The verb `vitreous eval`. torch is imported inside, so that `--help` answers at once."""

import sys
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional, arg

import vitreous
from vitreous.cli import ImageSize
from vitreous.common.atomic_files import atomic_file
from vitreous.common.text import console as standard_output
from vitreous.common.text import plural, printable

if TYPE_CHECKING:
    from vitreous.evaluation import ClassificationMetrics, Metrics, ProbeMetrics

SHOWN = 12  # unreadable files and worst classes
SHOWN_SEGMENTS = 20


def evaluate(
    checkpoint: Annotated[Positional[Path], arg(metavar="CHECKPOINT")],
    *,
    data: str,
    split: Literal["train", "val", "test"] | None = None,
    image_size: ImageSize = (),
    data_root: Path | None = None,
    val_fraction: float = 0.2,
    seed: int = 0,
    batch_size: int = 64,
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    workers: int = 2,
    flip: bool = False,
    decode: Literal["exact", "fast"] = "exact",
    probe: Literal["knn", "linear", "fewshot"] | None = None,
    features: Literal["pooled", "class+mean"] = "pooled",
    cache: Path | None = None,
    neighbours: tuple[int, ...] = (20,),
    shots: tuple[int, ...] = (),
    ignore: tuple[str, ...] = (),
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Evaluate a checkpoint: accuracy, calibration and confusions; mean IoU and outlines for a segmenter.

    Example: vitreous eval runs/first/best --data pictures/

    Args:
        checkpoint: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name.
        data: The data set; anything that `train --data` takes.
        split: Default: the test split if there is one, else the validation split.
        image_size: Another size than the checkpoint's; its positions are resampled.
        data_root: A local copy of a data set that would be downloaded.
        val_fraction: Fraction held out if the data has no validation split, as in training.
        seed: Of that split, as in training; and of a probe's draws.
        batch_size: Images per batch.
        device: auto, cpu, cuda, mps.
        precision: Of the computation.
        workers: Threads that decode images.
        flip: Average with the mirror image.
        decode: Of JPEGs: fast decodes large ones at a reduced scale, which changes some results. Only for classifiers.
        probe: Evaluate the frozen encoder instead of the head: train k-NN, a linear classifier, or least squares on a
            few images per class on its features of the train split.
        features: For a probe: the input of the head, or the class token concatenated with the mean of the patches.
        cache: For a probe: a folder that stores features for the next one. Default: features stay in memory.
        neighbours: For --probe knn: neighbours that vote; several numbers are measured in one pass, the first is the
            result.
        shots: For --probe fewshot: images per class; the first number is the result. Default: those of 5, 10 and 25
            that every class has.
        ignore: For a segmenter: classes whose pixels are excluded.
        json: Print JSON instead of tables.
        out: Write the JSON to a file as well.
    """
    options = {name: value for name, value in locals().items() if name not in ("checkpoint", "json", "out")}
    print_metrics(vitreous.evaluate(checkpoint, **options), json, out)


def print_metrics(metrics: "Metrics", as_json: bool, out: Path | None) -> None:
    """Print tables or JSON to stdout; `out` gets the JSON as well. Doubts about the result go to stderr."""
    from vitreous.evaluation import ClassificationMetrics, ProbeMetrics

    record = metrics.to_dict()
    if record.get("doubt"):
        print(printable(f"vitreous: {record['doubt']}"), file=sys.stderr)
    if out is not None:
        with atomic_file(out) as temporary:
            temporary.write_text(dumps(record, indent=2))
    if as_json:
        print(dumps(record))
        return
    console = standard_output()
    if isinstance(metrics, ProbeMetrics):
        _print_probe(console, metrics, record)
    elif isinstance(metrics, ClassificationMetrics):
        _print_classification(console, metrics, record)
    else:
        _print_segmentation(console, record)
    problems = metrics.problems if isinstance(metrics, ProbeMetrics) else metrics.evaluation.problems
    for problem in problems[:SHOWN]:
        console.print(f"unreadable: {problem}", soft_wrap=True)


def _print_classification(console: Console, metrics: "ClassificationMetrics", record: dict[str, Any]) -> None:
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


def _print_probe(console: Console, metrics: "ProbeMetrics", record: dict[str, Any]) -> None:
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
