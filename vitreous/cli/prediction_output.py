"""Output of `vitreous predict` and `vitreous embed`: a table, JSON lines or a file, with a summary on stderr."""

import itertools
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitreous.common.checks import check_whole, fail
from vitreous.common.text import clean, json_text, one_line, plural, printable
from vitreous.common.text import console as standard_output
from vitreous.inference import MultiLabelPrediction, NumberPrediction, Prediction, Results, Segmentation
from vitreous.inference.predict_images import Written
from vitreous.inference.prediction_files import MaskFolder, as_dict, write

Result = Prediction | MultiLabelPrediction | NumberPrediction
ROWS = 1024  # number of rows that are printed as one table with the same column widths
SHOWN = 0.005  # classes that cover a smaller fraction of the image are not printed


def check_shard_size(shard_size: int | None, out: Path | None) -> None:
    """Reject an invalid shard size, and a shard size without a folder."""
    if shard_size is not None:
        check_whole("shard_size", shard_size, 1, 10**9)
        if out is None or not is_folder(out):
            fail("shard_size", shard_size, "omitted unless --out is a folder")


def is_folder(out: Path) -> bool:
    """Return True if `out` is a folder, or will be one: a name without extension."""
    return out.is_dir() or (not out.suffix and not out.exists())


def output_results(results: Results[Any], as_json: bool, out: Path | None, shard_size: int | None = None) -> None:
    """Write results to `out`, or print them. Masks are always summarised on stdout."""
    if results.columns is None:
        _output_masks(results, as_json, out)
    elif out is not None and is_folder(out):
        _print_written(results.write(out, shard_size=shard_size), results.where)
        return
    elif out is not None:
        write(results, out, results.columns)
    elif as_json:
        for result in results:
            print(json_text(as_dict(result)), flush=True)
    else:
        print_table(results)
    _print_summary(results, out)
    if results.columns is None and out is None and not as_json:
        print("use --out FOLDER to write masks and overlays", file=sys.stderr)


def print_table(predictions: Iterable[Result], console: Console | None = None) -> None:
    """Print one row per image: file name and prediction, or the error in the last column, which may be long."""
    console = console or standard_output()
    remaining, header = iter(predictions), True
    while group := list(itertools.islice(remaining, ROWS)):
        rows = [prediction.printed() if prediction.error is None else None for prediction in group]
        columns = list(next(filter(None, rows), {"label": None}))
        table = Table("image", *columns, box=None)
        table.show_header = header
        header = False
        for prediction, row in zip(group, rows, strict=True):
            error = Text(f"error: {clean(prediction.error or '')}", style="red")
            name = Text(one_line(clean(prediction.name)), overflow="fold")
            table.add_row(name, *([""] * (len(columns) - 1) + [error] if row is None else row.values()))
        console.print(table)


def _output_masks(results: Results[Segmentation], as_json: bool, out: Path | None) -> None:
    """Write masks and overlays to `out`, and print the fraction of the image that each class covers."""
    folder = None if out is None else MaskFolder(out, results.paths, results.engine)
    console = standard_output(soft_wrap=True)
    for result in results:
        if folder is not None:
            folder.write(result)
        if as_json:
            print(json_text(as_dict(result)), flush=True)
        elif result.error is not None:
            console.print(f"{one_line(result.name)}: {result.error}")
        else:
            pairs = result.largest_classes()
            shown = [f"{result.labels[i]} {fraction:.1%}" for i, fraction in pairs if fraction >= SHOWN]
            console.print(f"{one_line(result.name)}: {', '.join(shown)}")


def _print_summary(results: Results[Any], out: Path | None) -> None:
    """Print the number of images, the output path and the speed. Raise ValueError if no image could be read."""
    in_file = out is not None and out.is_file()
    if results.images and results.errors == results.images:
        where = f"; see {out}" if in_file else ""
        raise ValueError(f"no image could be read ({plural(results.images, 'image')} given){where}")
    reasons = " (see the `error` field)" if in_file else ""
    broken = f", {results.errors} unreadable{reasons}" if results.errors else ""
    speed = f"{results.engine.throughput.images_per_second:.1f} images/s on {results.where}"
    to = f"; results written to {out}" if out is not None else ""
    print(printable(f"{plural(results.images, 'image')} processed{broken}, {speed}{to}"), file=sys.stderr)


def _print_written(written: Written, where: str) -> None:
    if written.images and written.errors == written.images:
        raise ValueError(f"no image could be read ({plural(written.images, 'image')} given); see {written.folder}")
    broken = f", {written.errors:,} unreadable (see the `error` column)" if written.errors else ""
    skipped = f", {written.skipped:,} of them from an earlier run" if written.skipped else ""
    speed = f", {written.images_per_second:.1f} images/s on {where}" if written.skipped < written.shards else ""
    files = f"{plural(written.shards, 'file')}{skipped}, in {written.folder}"
    print(printable(f"{plural(written.images, 'image')} processed{broken}{speed}; {files}"), file=sys.stderr)
