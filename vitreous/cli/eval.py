"""The `vitreous eval` command."""

import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from tyro.conf import Positional, arg

from vitreous.cli import ImageSize
from vitreous.common.atomic_files import atomic_file
from vitreous.common.text import SafeConsole, printable
from vitreous.common.text import console as standard_output

if TYPE_CHECKING:
    from vitreous.evaluation import Metrics

SHOWN = 12  # maximum number of unreadable files to print


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
    precision: Literal["fp32", "bf16", "fp8", "int8", "auto"] = "fp32",
    workers: int = 2,
    flip: bool = False,
    decode: Literal["exact", "fast"] = "exact",
    merge_tokens: int = 0,
    probe: Literal["knn", "linear", "fewshot"] | None = None,
    features: Literal["pooled", "class+mean"] = "pooled",
    cache: Path | None = None,
    neighbours: tuple[int, ...] = (20,),
    shots: tuple[int, ...] = (),
    ignore: tuple[str, ...] = (),
    target: tuple[str, ...] = (),
    json: bool = False,
    out: Path | None = None,
) -> None:
    """Evaluate a classifier (accuracy, calibration, confusion), or another model with the metrics of its task.

    Example: vitreous eval runs/first/best --data pictures/

    Args:
        checkpoint: Checkpoint folder such as runs/first/best, weight file from another library, catalog name such as
            dinov2-s, or hf-hub:owner/name.
        data: The data set; accepts the same values as `train --data`.
        split: Split to evaluate. By default the test split, or the validation split if there is no test split.
        image_size: Input size, by default that of the checkpoint. Position embeddings are resampled.
        data_root: Folder with a local copy of the data set, which is then not downloaded.
        val_fraction: Fraction of images to hold out if the data has no validation split. Use the value from training.
        seed: Seed for the held-out split and the probe. Use the value from training.
        batch_size: Images per batch.
        device: auto, cpu, cuda or mps.
        precision: Compute precision. fp8 needs a ViT and a GPU such as an H100 or RTX 4090; the first 32 images
            determine the scales, and batches before the 32nd image are computed in bf16. int8 is for CPUs and
            checkpoints with int8 scales; see `vitreous quantise`.
        workers: Number of threads that decode images.
        flip: Average the predictions for each image and its mirror image.
        decode: JPEG decoding. `fast` decodes large JPEGs at a reduced scale, which changes some results slightly.
            Only for classifiers.
        merge_tokens: Number of pairs of patches that every block of a ViT merges (ToMe): faster, but changes results.
        probe: Evaluate the frozen encoder instead of the head, by fitting a classifier to features of the train split:
            k-NN, linear, or few-shot (least squares on a few images per class).
        features: Features for --probe. pooled: the input of the head; class+mean: the class token concatenated with
            the mean patch token.
        cache: Folder in which to cache features for later probes. By default, features are not stored.
        neighbours: k for --probe knn. Several values are evaluated in one pass; the first gives the reported result.
        shots: Images per class for --probe fewshot. The first value gives the reported result. By default, those of
            5, 10 and 25 for which the smallest class has enough images.
        ignore: Classes whose pixels are excluded from segmentation metrics.
        target: Columns of the table with the labels of a multi-label classifier, as in `train --target`, or with the
            numbers of a regression model, if they have other names than in training.
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
    """Print tables or JSON to stdout, write JSON to `out`, and print warnings about the result to stderr."""
    record = metrics.to_dict()
    if record.get("doubt"):
        print(printable(f"vitreous: warning: {record['doubt']}"), file=sys.stderr)
    if out is not None:
        with atomic_file(out) as temporary:
            temporary.write_text(dumps(record, indent=2))
    if as_json:
        print(dumps(record))
        return
    console = standard_output(soft_wrap=True)  # do not break paths
    table = Table(box=None, show_header=False)
    for name, value in metrics.summary().items():
        table.add_row(name, f"{value:.4f}" if isinstance(value, float) else str(value))
    console.print(table)
    for line in metrics.lines():
        console.print(line)
    for problem in metrics.problems[:SHOWN]:
        console.print(f"unreadable: {problem}")
