"""Readers for tables: .csv, .tsv, .jsonl, .ndjson or .parquet with an image column and a label column.

Columns are found by their common names, ignoring case; an optional `split` column gives the split of each row. Paths
are relative to the table, or to `root`.

Parquet tables may also contain the images, as on the Hugging Face Hub. The images are unpacked once into a single file
in the cache, so that reading an image takes one short read instead of decompressing a whole row group. Labels are
checked before unpacking.
"""

import csv
import hashlib
import importlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from vitreous.common.text import listed
from vitreous.common.untrusted_files import check_regular, parse_json
from vitreous.data.sources.base import (
    SPLITS,
    UNSPLIT,
    ArraySource,
    FileSource,
    FoundData,
    Rows,
    Source,
    SpanSource,
    TargetRows,
    cell_text,
    class_labels,
    from_rows,
    label_problems,
    missing_files,
    split_name,
)
from vitreous.data.sources.download import cache_folder, file_lock, progress
from vitreous.data.sources.targets import TargetKind

IMAGE = ("path", "file", "image", "filename", "file_name", "filepath", "file_path", "image_path", "img", "picture")
LABEL = ("label", "class", "target", "labels", "class_name", "category", "fine_label")
SPLIT = ("split", "part", "subset")
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

Columns = Mapping[str, Sequence[object]]


def open_table(path: Path, root: Path | None = None, targets: TargetKind | None = None) -> FoundData:
    """Open a table. Missing image files are reported as a problem; existing files are not opened.

    `targets` are read instead of one label per image.
    """
    if path.suffix.lower() == ".parquet":
        return open_parquet(path.name, {UNSPLIT: [path]}, root, targets)
    columns = _read_csv(path) if path.suffix.lower() in (".csv", ".tsv") else _read_jsonl(path)
    splits = _row_splits(path, columns)
    if targets is not None:
        image = _find_image(path, columns, [])
        rows = targets.read(path, _without(columns, [image]), splits, {})
        return _from_paths(path, columns[image], rows, root)
    image, label = _find_columns(path, columns, [], [])
    return _from_paths(path, columns[image], Rows([cell_text(value) for value in columns[label]], splits), root)


def image_paths(table: Path) -> list[Path] | None:
    """Return the files that a table lists, without opening them, or None if the table contains the images."""
    if table.suffix.lower() == ".parquet":
        if (image := _image_column(table)) in _image_columns(table):
            return None
        cells = _read_columns([table], [image])[image]
    else:
        columns = _read_csv(table) if table.suffix.lower() in (".csv", ".tsv") else _read_jsonl(table)
        cells = list(columns[_find_image(table, columns, [])])
    return [table.parent / cell_text(cell) for cell in cells]


def _from_paths(table: Path, cells: Sequence[object], rows: Rows | TargetRows, root: Path | None) -> FoundData:
    paths = [cell_text(value) for value in cells]
    folder = root if root is not None else table.parent
    missing = missing_files(folder, paths)
    problems = []
    if missing:
        some = ", ".join(f"{paths[row]!r} (row {row + 1})" for row in sorted(missing)[:3])
        problems.append(f"{len(missing):,} of {len(paths):,} files do not exist in {folder}, e.g. {some}")

    def make(keep: list[int], labels: np.ndarray, classes: tuple[str, ...]) -> Source:
        return FileSource(folder, [paths[row] for row in keep], labels, classes)

    return from_rows(table.name, rows, make, problems, missing)


# ---- Columns ---------------------------------------------------------------------------------------------------------


def _find_columns(
    table: Path, columns: Collection[str], image_columns: Sequence[str], label_columns: Sequence[str]
) -> tuple[str, str]:
    """Return the names of the image and label columns: common names, or the only column of a suitable type."""
    image, label = _find_image(table, columns, image_columns), _named(columns, LABEL)
    if label is None and len(label_columns) == 1:
        label = label_columns[0]
    return image, label or _missing(table, "label", LABEL, columns)


def _find_image(table: Path, columns: Collection[str], image_columns: Sequence[str]) -> str:
    image = _named(image_columns, IMAGE) or _named(columns, IMAGE)
    if len(image_columns) == 1:
        image = image_columns[0]
    return image or _missing(table, "image", IMAGE, columns)


def _missing(table: Path, kind: str, names: Sequence[str], columns: Collection[str]) -> NoReturn:
    usual = ", ".join(names[:4])
    hint = "; for 0/1 columns or numbers, use --task multilabel or regress" if kind == "label" else ""
    raise ValueError(f"{table} has no {kind} column; expected one of {usual}, got {listed(columns, 20)}{hint}")


def _without(columns: Columns, images: Collection[str]) -> Columns:
    """Return the columns that can contain targets: all except the images and the split."""
    split = _named(columns, SPLIT)
    return {name: cells for name, cells in columns.items() if name not in images and name != split}


def _named(columns: Collection[str], names: Sequence[str]) -> str | None:
    lowered = {column.lower().strip(): column for column in columns}
    return next((lowered[name] for name in names if name in lowered), None)


def _row_splits(table: Path, columns: Columns) -> list[str]:
    """Return the split of each row from the split column, or UNSPLIT if there is no such column."""
    column = _named(columns, SPLIT)
    if column is None:
        return [UNSPLIT] * len(next(iter(columns.values()), ()))
    words = [cell_text(value) for value in columns[column]]
    if unknown := sorted({word for word in words if split_name(word) is None}):
        raise ValueError(f"{table}: column {column!r} must contain train, val or test, got {listed(unknown)}")
    return [split for word in words if (split := split_name(word))]


# ---- Text ------------------------------------------------------------------------------------------------------------


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
            raise ValueError(f"{path}: row {number} has {len(row)} columns, but the header has {len(header_row)}")
    return {column: [row[i] for row in body] for i, column in enumerate(header_row)}


def _read_jsonl(path: Path) -> Columns:
    check_regular(path)
    rows = []
    with open(path, encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            row = parse_json(line, f"{path}: line {number}")
            if not isinstance(row, dict):
                raise ValueError(f"{path}: line {number} must be a JSON object, got {str(row)[:40]!r}")
            rows.append(row)
    columns = dict.fromkeys(column for row in rows for column in row)
    return {column: [row.get(column) for row in rows] for column in columns}


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def open_parquet(
    name: str, files: Mapping[str, Sequence[Path]], root: Path | None = None, targets: TargetKind | None = None
) -> FoundData:
    """Open the Parquet files of each split. Files in the split "all" may have a split column."""
    paths = [path for inside in files.values() for path in inside]
    schema = _parquet(paths[0]).schema_arrow
    names = _class_names(schema)
    images = [field.name for field in schema if _has_images(field.type)]
    split = _named(schema.names, SPLIT) if UNSPLIT in files else None
    if targets is None:
        image, label = _find_columns(paths[0], schema.names, images, list(names))
        columns = _read_columns(paths, [label] + ([split] if split else []))
    else:
        image = _find_image(paths[0], schema.names, images)
        columns = _read_columns(paths, [name for name in schema.names if name not in (image, *images)])
    counts = [_parquet(path).metadata.num_rows for path in paths]
    by_file = [word for word, inside in files.items() for _ in inside]
    splits = [word for word, count in zip(by_file, counts, strict=True) for _ in range(count)]
    splits = _row_splits(paths[0], columns) if split else splits
    rows: Rows | TargetRows
    if targets is None:
        rows = Rows(class_labels(columns[label], names.get(label)), splits, names.get(label))
    else:
        rows = targets.read(paths[0], _without(columns, images), splits, names)
    if image not in images:
        if len(paths) > 1:
            raise ValueError(
                f"{name}: column {image!r} contains paths, but must contain images; "
                "paths are supported only if the data set is a single file"
            )
        return _from_paths(paths[0], _read_columns(paths, [image])[image], rows, root)

    bare = from_rows(name, rows, lambda _, numbers, classes: ArraySource(np.empty(0), numbers, classes, name), [])
    if problems := bare.problems + label_problems(bare):
        raise ValueError(f"{name}: {problems[0]}")  # before unpacking anything

    def make(keep: list[int], numbers: np.ndarray, classes: tuple[str, ...]) -> Source:
        packed, spans = _unpack(name, paths, image)
        inside = [f"{path.name}[{row}]" for path, count in zip(paths, counts, strict=True) for row in range(count)]
        return SpanSource([packed], spans[keep], [inside[row] for row in keep], numbers, classes)

    return from_rows(name, rows, make, [])


def row_group_sizes(path: Path) -> list[int]:
    """Return the number of rows in each row group of a Parquet file."""
    metadata = _parquet(path).metadata
    return [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]


def image_batches(path: Path, row_groups: Sequence[int]) -> Iterator[list[bytes | None]]:
    """Yield the images in some row groups of a Parquet file, a few rows at a time. An empty cell yields None."""
    image = _image_column(path)
    for batch in _parquet(path).iter_batches(batch_size=64, row_groups=list(row_groups), columns=[image]):
        values = batch.column(0)
        yield (values.field("bytes") if hasattr(values, "field") else values).to_pylist()


def _image_columns(path: Path) -> list[str]:
    return [field.name for field in _parquet(path).schema_arrow if _has_images(field.type)]


def _image_column(path: Path) -> str:
    return _find_image(path, _parquet(path).schema_arrow.names, _image_columns(path))


def choose_files(spec: str, files: Iterable[str], config: str | None) -> dict[str, list[str]]:
    """Select the Parquet files of one configuration and group them by split, based on their paths."""
    configs: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(files):
        *folders, name = file.split("/")
        words = [*re.split(r"[^A-Za-z]+", name), *reversed(folders)]
        split = next((split for word in words if (split := split_name(word))), UNSPLIT)
        rest = [folder for folder in folders if folder != "data" and not split_name(folder)]
        configs["/".join(rest) or "default"][split].append(file)
    if config is None:
        config = "default" if "default" in configs else min(configs)
        if config != "default" and len(configs) > 1:
            raise ValueError(f"{spec} has configurations {listed(configs, 10)}; choose one, e.g. {spec}:{config}")
    if config not in configs:
        raise ValueError(f"{spec} has no configuration {config!r}; choose from {listed(configs, 10)}")
    splits = configs[config]
    for split, inside in splits.items():
        if (count := re.search(r"-of-(\d+)\.parquet$", inside[0])) and len(inside) < int(count[1]):
            raise ValueError(f"{spec}: only {len(inside)} of {int(count[1])} files of the {split} split were found")
    known = [split for split in SPLITS if split in splits]
    return {split: splits[split] for split in (known if "train" in known else splits)}


def _parquet(path: Path) -> Any:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(f'reading {path} requires pyarrow: pip install "vitreous[data]"') from None
    check_regular(path)
    try:
        return parquet.ParquetFile(path)
    except ValueError as error:  # includes ArrowInvalid
        raise ValueError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def _read_columns(paths: Sequence[Path], columns: list[str]) -> dict[str, list[object]]:
    tables = [_parquet(path).read(columns=columns) for path in paths]
    return {column: [value for table in tables for value in table[column].to_pylist()] for column in columns}


def _has_images(kind: Any) -> bool:
    """Return True if a column of this type can contain images: {bytes, path} structs or plain bytes."""
    types = importlib.import_module("pyarrow.types")
    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """Return the class names by column, from the metadata written by Hugging Face's datasets library."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = parse_json(text, "huggingface metadata").get("info", {}).get("features", {})
    except (ValueError, AttributeError):
        return {}
    # The class names of a list column are in its element.
    parts = {
        column: feature[0] if isinstance(feature, list) and feature else feature for column, feature in features.items()
    }
    labels = {
        column: part["feature"] if isinstance(part.get("feature"), dict) else part
        for column, part in parts.items()
        if isinstance(part, dict)
    }
    return {
        column: tuple(map(str, feature["names"]))
        for column, feature in labels.items()
        if feature.get("_type") == "ClassLabel" and feature.get("names") and column in schema.names
    }


def _unpack(name: str, paths: Sequence[Path], column: str) -> tuple[Path, np.ndarray]:
    """Write all images to one file in the cache. Return its path and the spans [n, 3] for a SpanSource."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(repr((stats, column)).encode()).hexdigest()[:24]
    packed = cache_folder("tables") / f"{key}.bin"
    index = packed.with_suffix(".npy")
    with file_lock(index):
        if not index.exists():
            np.save(index.with_suffix(".part.npy"), _write(name, paths, column, packed))
            index.with_suffix(".part.npy").replace(index)  # last, to mark completion
    return packed, np.load(index, allow_pickle=False)


def _write(name: str, paths: Sequence[Path], column: str, packed: Path) -> np.ndarray:
    spans: list[tuple[int, int, int]] = []
    start, total = 0, sum(path.stat().st_size for path in paths)
    aside = packed.with_suffix(".part")
    with progress(f"unpacking {name}") as advance, open(aside, "wb") as out:
        for path in paths:
            for batch in _parquet(path).iter_batches(batch_size=256, columns=[column]):
                values = batch.column(0)
                for value in values.field("bytes") if hasattr(values, "field") else values:
                    if not value.is_valid:
                        raise ValueError(f"{path}: row {len(spans) + 1} of column {column!r} contains no image")
                    buffer = value.as_buffer()
                    out.write(buffer)
                    spans.append((0, start, buffer.size))
                    start += buffer.size
                advance(start, max(start, total))
    aside.replace(packed)
    return np.array(spans, np.int64).reshape(-1, 3)
