"""Predictions and embeddings as JSON, CSV or Parquet, chosen by the file's extension, or as a table to look at.

Answers are written as they come, so a million pictures do not sit in memory; and the file appears under its name only
when it is whole.
"""

import csv
import importlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import fail, suggestion
from vitreous.common.terminal import console as standard_output
from vitreous.common.text import json_text, one_line, plural
from vitreous.inference.answers import Embedding, Prediction, Throughput

Answer = Prediction | Embedding
ROWS = 1024  # in a row group of Parquet, and in a table


class Written(NamedTuple):
    """How many pictures were answered for, and how many of them only with an error."""

    pictures: int
    errors: int


def summary(written: Written, out: Path | None, speed: Throughput, device: object) -> str:
    """The last line of a run: how many, where to, how fast. A run without a single answer is an error."""
    if written.pictures and written.errors == written.pictures:
        why = f", and {out} says why" if out is not None and out.is_file() else ""
        raise ValueError(f"no picture could be read: {written.errors} of {written.pictures} failed{why}")
    where = f" to {out}" if out is not None else ""
    reasons = " (the reasons are under `error`)" if out is not None and out.is_file() else ""
    broken = f", {written.errors} of them unreadable{reasons}" if written.errors else ""
    return f"{plural(written.pictures, 'picture')}{where}{broken}, {speed.images_per_second:.1f} images/s on {device}"


class Shape(NamedTuple):
    """What every answer of a run has: so many labels, or a vector of such a length."""

    labels: int = 0
    width: int = 0


def write(answers: Iterable[Answer], path: str | os.PathLike[str], shape: Shape) -> Written:
    """All answers into one file: `.json` (a list), `.jsonl` (an object a line), `.csv`, `.parquet`.

    Whether the file can be written is checked before the first answer is asked for.
    """
    path = Path(path)
    writer = writer_for(path)
    counts = {"pictures": 0, "errors": 0}

    def counted() -> Iterator[Answer]:
        for answer in answers:
            counts["pictures"] += 1
            counts["errors"] += answer.error is not None
            yield answer

    with atomic_file(path) as aside:
        writer(counted(), aside, shape)
    return Written(**counts)


def writer_for(path: str | os.PathLike[str]) -> Callable[[Iterable[Answer], Path, Shape], None]:
    """How a file of this name is written; an extension that is not known is an error, and so is a missing package."""
    writers = {".json": _write_json, ".jsonl": _write_lines, ".csv": _write_csv, ".parquet": _write_parquet}
    ending = Path(path).suffix.lower()
    if ending not in writers:
        allowed = f"{', '.join(writers)}{suggestion(ending, writers)}"
        fail("out", os.fspath(path), f"a name that ends in {allowed}: the ending is the format")
    if ending == ".parquet":
        _pyarrow()
    return writers[ending]


# ---- JSON ------------------------------------------------------------------------------------------------------------


def as_dict(answer: Answer) -> dict[str, Any]:
    """An answer as JSON has it, with the keys of the HTTP API.

    >>> as_dict(Prediction("cat.jpg", error="the file is empty"))
    {'path': 'cat.jpg', 'error': 'the file is empty'}
    """
    if answer.error is not None:
        return {"path": clean(answer.name), "error": clean(answer.error)}
    if isinstance(answer, Prediction):
        labels = [{**vars(label), "label": clean(label.label)} for label in answer.predictions]
        return {"path": clean(answer.name), "predictions": labels}
    return {"path": clean(answer.name), "embedding": _numbers(answer)}


def json_line(answer: Answer) -> str:
    """One object, in one line, without its end: for streaming to the standard output."""
    return json_text(as_dict(answer))


def clean(text: str) -> str:
    """Names of files may hold bytes that are no text; they become question marks, as no format takes them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _write_lines(answers: Iterable[Answer], path: Path, shape: Shape) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json_line(answer) + "\n" for answer in answers)


def _write_json(answers: Iterable[Answer], path: Path, shape: Shape) -> None:
    with open(path, "w", encoding="utf-8") as file:
        before = "[\n"
        for answer in answers:
            file.write(before + json_line(answer))
            before = ",\n"
        file.write("\n]\n" if before == ",\n" else "[]\n")


# ---- CSV -------------------------------------------------------------------------------------------------------------


def _write_csv(answers: Iterable[Answer], path: Path, shape: Shape) -> None:
    """path; label and probability, of the second best too, and so on, or the numbers of the embedding; error."""
    columns = [f"feature_{i}" for i in range(shape.width)]
    for place in range(shape.labels):
        suffix = f"_{place + 1}" if place else ""
        columns += [f"label{suffix}", f"probability{suffix}"]
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", *columns, "error"])
        for answer in answers:
            cells: list[Any] = [""] * len(columns)
            if isinstance(answer, Prediction) and answer.error is None:
                cells = [cell for label in answer.predictions for cell in (clean(label.label), label.probability)]
            elif isinstance(answer, Embedding) and answer.error is None:
                cells = _numbers(answer)
            table.writerow([clean(answer.name), *cells, clean(answer.error or "")])


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError("Parquet needs pyarrow: pip install vitreous[data], or write .csv or .jsonl") from error
    return importlib.import_module("pyarrow")


def _write_parquet(answers: Iterable[Answer], path: Path, shape: Shape) -> None:
    """path, error, and either label, index, probability and all `predictions`, or the embedding as a list of width."""
    arrow = _pyarrow()
    label = {"label": arrow.string(), "index": arrow.int32(), "probability": arrow.float32()}
    if shape.width:
        columns = {"embedding": arrow.list_(arrow.float32(), shape.width)}
    else:
        columns = {**label, "predictions": arrow.list_(arrow.struct(label))}
    schema = arrow.schema({"path": arrow.string(), **columns, "error": arrow.string()})
    with arrow.parquet.ParquetWriter(path, schema) as file:
        rows = (_row(answer) for answer in answers)
        while group := list(itertools.islice(rows, ROWS)):
            file.write_table(arrow.Table.from_pylist(group, schema=schema))


def _row(answer: Answer) -> dict[str, Any]:
    row = as_dict(answer)
    return {**row, **row["predictions"][0]} if row.get("predictions") else row


def _numbers(answer: Embedding) -> list[float]:
    return [] if answer.vector is None else answer.vector.tolist()


# ---- To look at ------------------------------------------------------------------------------------------------------


def print_table(predictions: Iterable[Prediction], console: Console | None = None) -> Written:
    """A line for each picture: its name, the best label and how probable it is, and the next best."""
    console = console or standard_output()
    remaining, pictures, errors = iter(predictions), 0, 0
    while group := list(itertools.islice(remaining, ROWS)):
        table = Table("picture", "label", "probability", "or else", box=None, show_header=pictures == 0)
        for prediction in group:
            name = Text(one_line(clean(prediction.name)), overflow="fold")
            if prediction.error is not None:
                errors += 1
                table.add_row(name, Text(f"error: {clean(prediction.error)}", style="red"))
                continue
            first, *rest = prediction.predictions
            others = Text(clean(", ".join(f"{label.label} {label.probability:.1%}" for label in rest)))
            table.add_row(name, Text(clean(first.label), style="bold"), f"{first.probability:.1%}", others)
        pictures += len(group)
        console.print(table)
    return Written(pictures, errors)
