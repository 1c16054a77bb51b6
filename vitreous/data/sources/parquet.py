"""Parquet tables, with paths or with the pictures themselves, as the Hugging Face hub stores them.

Embedded pictures are unpacked once into the cache, end to end in one file: then any of them is one short read,
where Parquet would have to decompress a whole row group for each. Labels are checked before that.
"""

import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.common.regular_files import check_regular
from vitreous.data.sources.base import Source
from vitreous.data.sources.download import cache_folder, only_one, progress
from vitreous.data.sources.rows import Rows, assemble, class_labels
from vitreous.data.sources.stored import SpanSource
from vitreous.data.sources.tables import IMAGE, LABEL, SPLIT, find_column, from_paths, row_parts
from vitreous.data.split import WHOLE, Found, label_problems, listed


def open_parquet(name: str, files: Mapping[str, Sequence[Path]], root: Path | None = None) -> Found:
    """The data set in some Parquet files, by part; for the part "all" a split column is looked for."""
    paths = [path for part in files.values() for path in part]
    schema = _parquet(paths[0]).schema_arrow
    names = _class_names(schema)
    image, label = _columns(paths[0], schema, names)
    split = find_column(schema.names, SPLIT) if WHOLE in files else None
    columns = _read(paths, [label] + ([split] if split else []))
    labels = class_labels(columns[label], names.get(label))
    parts = [part for part, inside in files.items() for path in inside for _ in range(_parquet(path).metadata.num_rows)]
    rows = Rows(labels, row_parts(paths[0], columns) if split else parts, names.get(label))
    if not _embedded(schema.field(image).type):
        if len(paths) > 1:
            raise ValueError(f"{name}: column {image!r} holds paths, not pictures: open its files one by one")
        return from_paths(paths[0], _read(paths, [image])[image], rows, root)

    def make(keep: list[int], numbers: np.ndarray, classes: tuple[str, ...]) -> Source:
        packed, spans = _unpack(name, paths, image)
        inside = [f"{path.name}[{row}]" for path in paths for row in range(_parquet(path).metadata.num_rows)]
        return SpanSource([packed], spans[keep], [inside[row] for row in keep], numbers, classes)

    found = assemble(name, rows, lambda _, numbers, classes: _Bare(numbers, classes), [])
    if problems := found.problems + label_problems(found):
        raise ValueError(f"{name}: {problems[0]}")  # before anything is unpacked
    return assemble(name, rows, make, [])


class _Bare(Source):
    """Labels without their pictures: enough to check them."""

    def __init__(self, labels: np.ndarray, classes: tuple[str, ...]):
        self.labels, self.classes = labels, classes

    def picture(self, index: int) -> bytes:
        raise TypeError("these are labels without their pictures")

    def name(self, index: int) -> str:
        raise TypeError("these are labels without their pictures")


def _parquet(path: Path) -> Any:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise ValueError(f"{path} is a Parquet file, which needs pyarrow: pip install vitreous[data]") from None
    check_regular(path)
    try:
        return parquet.ParquetFile(path)
    except ValueError as error:  # ArrowInvalid is one
        raise ValueError(f"{path} cannot be read as Parquet: {str(error).splitlines()[0]}") from None


def _read(paths: Sequence[Path], columns: list[str]) -> dict[str, list[object]]:
    tables = [_parquet(path).read(columns=columns) for path in paths]
    return {column: [value for table in tables for value in table[column].to_pylist()] for column in columns}


def _embedded(kind: Any) -> bool:
    """Whether a column of this type holds pictures: {bytes, path}, or plain bytes."""
    types = importlib.import_module("pyarrow.types")
    if types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _columns(path: Path, schema: Any, names: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """The columns of pictures and labels: by their usual names, or as the only one of their type."""
    pictures = [field.name for field in schema if _embedded(field.type)]
    image = pictures[0] if len(pictures) == 1 else find_column(pictures, IMAGE) or find_column(schema.names, IMAGE)
    label = find_column(schema.names, LABEL) or (next(iter(names)) if len(names) == 1 else None)
    for column, kind, usual in ((image, "picture", IMAGE), (label, "label", LABEL)):
        if column is None:
            wanted = ", ".join(usual[:4])
            raise ValueError(f"{path} has no {kind} column: call one of ({listed(schema.names, 20)}) {wanted}")
    assert image is not None
    assert label is not None
    return image, label


def _class_names(schema: Any) -> dict[str, tuple[str, ...]]:
    """The names behind indices, by column, which the hub's library writes into the file's metadata."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(text).get("info", {}).get("features", {})
    except (ValueError, AttributeError):
        return {}
    labels = {column: feature for column, feature in features.items() if isinstance(feature, dict)}
    return {
        column: tuple(map(str, feature["names"]))
        for column, feature in labels.items()
        if feature.get("_type") == "ClassLabel" and feature.get("names") and column in schema.names
    }


def _unpack(name: str, paths: Sequence[Path], column: str) -> tuple[Path, np.ndarray]:
    """The file with all pictures end to end, and [n, 3] of file 0, start and size."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    key = hashlib.sha256(repr((stats, column)).encode()).hexdigest()[:24]
    packed = cache_folder("tables") / f"{key}.bin"
    index = packed.with_suffix(".npy")
    with only_one(index):
        if not index.exists():
            spans = _write(name, paths, column, packed)
            np.save(index.with_suffix(".part.npy"), spans)
            index.with_suffix(".part.npy").replace(index)  # last: where it is, everything is
    return packed, np.load(index, allow_pickle=False)


def _write(name: str, paths: Sequence[Path], column: str, packed: Path) -> np.ndarray:
    spans: list[tuple[int, int, int]] = []
    start, total = 0, sum(path.stat().st_size for path in paths)
    part = packed.with_suffix(".part")
    with progress(f"unpacking {name}") as advance, open(part, "wb") as out:
        for path in paths:
            for batch in _parquet(path).iter_batches(batch_size=256, columns=[column]):
                values = batch.column(0)
                for value in values.field("bytes") if hasattr(values, "field") else values:
                    if not value.is_valid:
                        raise ValueError(f"{path}: row {len(spans) + 1} of column {column!r} holds no picture")
                    buffer = value.as_buffer()
                    out.write(buffer)
                    spans.append((0, start, buffer.size))
                    start += buffer.size
                advance(start, max(start, total))
    part.replace(packed)
    return np.array(spans, np.int64).reshape(-1, 3)
