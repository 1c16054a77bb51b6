"""The `vitreous eval` command."""

import sys
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.common.atomic_files import atomic_file
from vitreous.common.text import SafeConsole, plural, printable
from vitreous.common.text import console as standard_output

if TYPE_CHECKING:
    from vitreous.evaluation import ClassificationMetrics, Metrics, ProbeMetrics

SHOWN = 12  # maximum number of unreadable files, and of worst classes, to print
CROSS_FITTED = (
    "The model was calibrated on this split: ece_calibrated uses the temperature of one half for the other half."
)
SHOWN_SEGMENTS = 20  # maximum number of segmentation classes to print


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
    """Evaluate a checkpoint: accuracy, calibration and confusion; for a segmenter, mean IoU and boundary F-score.

    Example: vitreous eval runs/first/best --data pictures/

    Args:
        checkpoint: Checkpoint folder such as runs/first/best, another library's weight file, a catalog name such as
            dinov2-s, or hf-hub:owner/name.
        data: The data set; accepts the same values as `train --data`.
        split: Split to evaluate. By default the test split, or the validation split if there is no test split.
        image_size: Input size, if different from the checkpoint's; position embeddings are resampled.
        data_root: Folder with a local copy of the data set, used instead of downloading it.
        val_fraction: Fraction to hold out if the data has no validation split; use the value from training.
        seed: Seed of the held-out split (use the value from training) and of the probe.
        batch_size: Images per batch.
        device: auto, cpu, cuda or mps.
        precision: Compute precision.
        workers: Number of threads that decode images.
        flip: Average each prediction with that for the mirrored image.
        decode: JPEG decoding; `fast` decodes large JPEGs at a reduced scale, which changes some results slightly.
            Only for classifiers.
        probe: Evaluate the frozen encoder instead of the head, by fitting a classifier to features of the train split:
            k-NN, linear, or few-shot (least squares on a few images per class).
        features: Features for --probe: the input of the head, or the class token concatenated with the mean patch.
        cache: Folder in which to cache features for later probes. By default they are not stored.
        neighbours: k for --probe knn. Several values are evaluated in one pass; the first gives the reported result.
        shots: Images per class for --probe fewshot; the first value gives the reported result. By default 5, 10
            and 25, except those that exceed the smallest class.
        ignore: Classes whose pixels are excluded from segmentation metrics.
        json: Print JSON instead of tables.
        out: Also write the metrics as JSON to this file.
    """
    options = {name: value for name, value in locals().items() if name not in ("checkpoint", "json", "out")}
    from vitreous import evaluation

    with ProgressDisplay() as display:
        metrics = evaluation.evaluate(checkpoint, **options, progress=display.show)
    print_metrics(metrics, json, out)


class ProgressDisplay:
    """Progress on stderr: a bar on a terminal, otherwise one line at the start of each stage."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bars = Progress(*columns, console=SafeConsole(stderr=True), transient=True)
        self.task: TaskID | None = None

    def __enter__(self) -> "ProgressDisplay":
        return self

    def __exit__(self, *error: object) -> None:
        if self.task is not None:
            self.bars.stop()

    def show(self, stage: str, done: int, total: int) -> None:
        if not self.bars.console.is_terminal:
            if done == 0:
                print(f"{stage} ...", file=sys.stderr, flush=True)
            return
        if done == 0:
            if self.task is None:
                self.bars.start()
            else:
                self.bars.remove_task(self.task)
            self.task = self.bars.add_task(stage, total=total)
        elif self.task is not None:
            self.bars.update(self.task, completed=done)


def print_metrics(metrics: "Metrics", as_json: bool, out: Path | None) -> None:
    """Print tables or JSON to stdout, write JSON to `out`, and print any warning about the result to stderr."""
    from vitreous.evaluation import ClassificationMetrics, ProbeMetrics

    record = metrics.to_dict()
    if record.get("doubt"):
        print(printable(f"vitreous: warning: {record['doubt']}"), file=sys.stderr)
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
    ece = ("ece", "ece_calibrated") if metrics.ece_calibrated is not None else ("ece",)
    console.print(_summary(record, ("part", "count", "top1", *top5, "loss", *ece, "unreadable", "images_per_second")))
    if evaluation.cross_fitted:
        console.print(f"{CROSS_FITTED}\n", soft_wrap=True)
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
        label = "split" if name == "part" else name  # the key in metrics.json is "part"
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
        return f"{settings} (held-out accuracy {row['held_out']:.4f})"
    return ""
