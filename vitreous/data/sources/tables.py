"""Tables of pictures: .csv, .tsv, .jsonl, .ndjson or .parquet with a column of paths and a column of labels.

Columns are found by their usual names, whatever the case; a `split` column, if there is one, says which part a row
belongs to. Paths are relative to the table, or to `root`. A Parquet file may hold the pictures themselves.
"""

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from vitreous.common.regular_files import check_regular
from vitreous.data.sources.base import Source
from vitreous.data.sources.rows import Rows, assemble, cell_text
from vitreous.data.sources.stored import FileSource, missing_files
from vitreous.data.split import WHOLE, Found, listed, part_name

IMAGE = ("path", "file", "image", "filename", "file_name", "filepath", "file_path", "image_path", "img", "picture")
LABEL = ("label", "class", "target", "labels", "class_name", "category", "fine_label")
SPLIT = ("split", "part", "subset")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

Columns = Mapping[str, Sequence[object]]


def open_table(path: Path, root: Path | None = None) -> Found:
    """What a table says. The files it names are looked for, not opened."""
    if path.suffix.lower() == ".parquet":
        from vitreous.data.sources.parquet import open_parquet

        return open_parquet(path.name, {WHOLE: [path]}, root)
    columns = _read_csv(path) if path.suffix.lower() in (".csv", ".tsv") else _read_jsonl(path)
    image = choose(path, columns, "picture", IMAGE)
    labels = [cell_text(value) for value in columns[choose(path, columns, "label", LABEL)]]
    return from_paths(path, columns[image], Rows(labels, row_parts(path, columns)), root)


def from_paths(table: Path, cells: Sequence[object], rows: Rows, root: Path | None) -> Found:
    """The data set of a table whose pictures are files."""
    paths = [cell_text(value) for value in cells]
    folder = root if root is not None else table.parent
    missing = missing_files(folder, paths)
    problems = []
    if missing:
        some = ", ".join(f"{paths[row]!r} (row {row + 1})" for row in sorted(missing)[:3])
        problems.append(f"{len(missing):,} of {len(paths):,} files do not exist below {folder}, the first: {some}")

    def make(keep: list[int], labels: np.ndarray, classes: tuple[str, ...]) -> Source:
        return FileSource(folder, [paths[row] for row in keep], labels, classes)

    return assemble(table.name, rows, make, problems, missing)


def choose(table: Path, columns: Collection[str], kind: str, names: Sequence[str]) -> str:
    """The column that holds the pictures, or the labels, by the first of its usual names."""
    column = find_column(columns, names)
    if column is None:
        usual = ", ".join(names[:4])
        raise ValueError(f"{table} has no {kind} column: call one of its columns ({listed(columns, 20)}) {usual}")
    return column


def find_column(columns: Collection[str], names: Sequence[str]) -> str | None:
    lowered = {column.lower().strip(): column for column in columns}
    return next((lowered[name] for name in names if name in lowered), None)


def row_parts(table: Path, columns: Columns) -> list[str]:
    """The part each row belongs to: what its split column says, or all of them together."""
    column = find_column(columns, SPLIT)
    if column is None:
        return [WHOLE] * len(next(iter(columns.values()), ()))
    words = [cell_text(value) for value in columns[column]]
    if unknown := sorted({word for word in words if part_name(word) is None}):
        raise ValueError(f"{table}: column {column!r} holds {listed(unknown)}, but must hold train, val or test")
    return [part for word in words if (part := part_name(word))]


def _read_csv(path: Path) -> Columns:
    check_regular(path)
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            header = file.readline()
            file.seek(0)
            rows = [row for row in csv.reader(file, delimiter=max(",;\t", key=header.count)) if row]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path} cannot be read as a table: {error}") from None
    if not rows:
        raise ValueError(f"{path} is empty")
    header_row, *body = rows
    for number, row in enumerate(body, 1):
        if len(row) != len(header_row):
            raise ValueError(f"{path}: row {number} has {len(row)} cells, but the header has {len(header_row)}")
    return {column: [row[i] for row in body] for i, column in enumerate(header_row)}


def _read_jsonl(path: Path) -> Columns:
    check_regular(path)
    rows = []
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}: line {number} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise ValueError(f"{path}: line {number} is {str(row)[:40]!r}, but must be an object with columns")
            rows.append(row)
    columns = dict.fromkeys(column for row in rows for column in row)
    return {column: [row.get(column) for row in rows] for column in columns}
