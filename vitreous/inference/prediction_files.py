"""Writes predictions and embeddings as JSON, CSV or Parquet (depending on the file extension), and masks as PNG.

Results are written as they arrive, so they need not fit in memory. A file gets its final name once it is complete.
"""

import csv
import importlib
import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.common.atomic_files import atomic_file
from vitreous.common.checks import fail, suggestion
from vitreous.common.text import clean, json_text
from vitreous.inference.mask_images import overlay, palette, with_legend, write_mask
from vitreous.inference.predictions import (
    Columns,
    Embedding,
    MultiLabelPrediction,
    NumberPrediction,
    Prediction,
    Segmentation,
)
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.report.plots import is_written_here, write_png

Result = Prediction | MultiLabelPrediction | NumberPrediction | Embedding
ROW_GROUP = 1024  # rows per Parquet row group


def write(results: Iterable[Result], path: str | os.PathLike[str], columns: Columns) -> None:
    """Write predictions or embeddings in the format given by the file extension."""
    writer = writer_for(path)
    with atomic_file(Path(path)) as temporary:
        writer(results, temporary, columns)


def writer_for(path: str | os.PathLike[str]) -> Callable[[Iterable[Result], Path, Columns], None]:
    """Return the writer for a file name. Raise if the extension is unknown or requires a missing package."""
    writers = {".json": _write_json, ".jsonl": _write_lines, ".csv": _write_csv, ".parquet": _write_parquet}
    extension = Path(path).suffix.lower()
    if extension not in writers:
        allowed = f"{', '.join(writers)}{suggestion(extension, writers)}"
        fail("out", os.fspath(path), f"a folder or a file name ending in one of {allowed}")
    if extension == ".parquet":
        _pyarrow()
    return writers[extension]


# ---- JSON ------------------------------------------------------------------------------------------------------------


def as_dict(result: Result | Segmentation) -> dict[str, Any]:
    """Convert a result to a JSON object with the keys of the HTTP API."""
    return {"path": clean(result.name), **(result.record() if result.error is None else {"error": clean(result.error)})}


def _write_lines(results: Iterable[Result], path: Path, columns: Columns) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json_text(as_dict(result)) + "\n" for result in results)


def _write_json(results: Iterable[Result], path: Path, columns: Columns) -> None:
    with open(path, "w", encoding="utf-8") as file:
        before = "[\n"
        for result in results:
            file.write(before + json_text(as_dict(result)))
            before = ",\n"
        file.write("\n]\n" if before == ",\n" else "[]\n")


# ---- CSV -------------------------------------------------------------------------------------------------------------


def _write_csv(results: Iterable[Result], path: Path, columns: Columns) -> None:
    """Write path, label, probability, label_2, ..., error (predictions) or path, feature_0, ..., error (embeddings).

    A calibrated model adds the columns unknown and familiarity. A coverage adds the column label_set (a JSON list). A
    multi-label model adds labels (a JSON list). A regression model has a column per target.
    """
    names = [f"feature_{i}" for i in range(columns.width)] + [clean(target) for target in columns.targets]
    names += ["labels"] * columns.labels
    for rank in range(columns.top):
        suffix = f"_{rank + 1}" if rank else ""
        names += [f"label{suffix}", f"probability{suffix}"]
    names += ["unknown", "familiarity"] * columns.calibrated + ["label_set"] * columns.label_set
    with open(path, "w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", *names, "error"])
        for result in results:
            cells = result.cells() if result.error is None else [""] * len(names)
            table.writerow([clean(result.name), *cells, clean(result.error or "")])


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def _pyarrow() -> Any:
    try:
        importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError('Parquet requires pyarrow: pip install "vitreous[data]", or use .csv or .jsonl') from error
    return importlib.import_module("pyarrow")


def _write_parquet(results: Iterable[Result], path: Path, columns: Columns) -> None:
    """Write path, label, index, probability, predictions, error (predictions) or path, embedding, error (embeddings).

    A calibrated model adds the columns unknown and familiarity. A coverage adds the column label_set. A multi-label
    model adds labels. A regression model has a column per target.
    """
    arrow = _pyarrow()
    label = {"label": arrow.string(), "index": arrow.int32(), "probability": arrow.float32()}
    if columns.width:
        types = {"embedding": arrow.list_(arrow.float32(), columns.width)}
    elif columns.targets:
        types = {clean(target): arrow.float64() for target in columns.targets}
    else:
        types = {**label, "predictions": arrow.list_(arrow.struct(label))}
    if columns.calibrated:
        types |= {"unknown": arrow.bool_(), "familiarity": arrow.float32()}
    for name in ["label_set"] * columns.label_set + ["labels"] * columns.labels:
        types[name] = arrow.list_(arrow.struct(label))
    schema = arrow.schema({"path": arrow.string(), **types, "error": arrow.string()})
    # Features have no repeated values, which a dictionary would need.
    with arrow.parquet.ParquetWriter(path, schema, use_dictionary=not columns.width) as file:
        if columns.width:
            remaining = iter(results)
            while features := list(itertools.islice(remaining, ROW_GROUP)):
                file.write_table(_feature_table(arrow, schema, features, columns.width))
            return
        found = map(as_dict, results)
        # The best label and the numbers are separate columns.
        rows = ({**row, **next(iter(row.get("predictions", ())), {}), **row.get("values", {})} for row in found)
        while group := list(itertools.islice(rows, ROW_GROUP)):
            file.write_table(arrow.Table.from_pylist(group, schema=schema))


def _feature_table(arrow: Any, schema: Any, results: Sequence[Any], width: int) -> Any:
    """Return a table of embeddings. Copying whole vectors is many times faster than converting single numbers."""
    vectors = np.zeros((len(results), width), np.float32)
    for row, result in zip(vectors, results, strict=True):
        if result.error is None:
            row[:] = result.vector.numpy()
    missing = arrow.array([result.error is not None for result in results])
    return arrow.table(
        [
            arrow.array([clean(result.name) for result in results]),
            arrow.FixedSizeListArray.from_arrays(vectors.ravel(), width, mask=missing),
            arrow.array([None if result.error is None else clean(result.error) for result in results], arrow.string()),
        ],
        schema=schema,
    )


# ---- Masks -----------------------------------------------------------------------------------------------------------


class MaskFolder:
    """Writes masks/NAME.png (class ids) and overlays/NAME.png for each image.

    NAME is the image path relative to the common folder of all images. The extension is only kept if two images would
    otherwise have the same name.
    Files that Vitreous did not write, such as the masks of a data set, are never overwritten.
    """

    def __init__(self, folder: Path, paths: Sequence[str | os.PathLike[str]], predictor: SegmentPredictor):
        if not folder.is_dir() and (folder.suffix or folder.exists()):
            fail("out", folder, "a folder for masks, because the model is a segmenter")
        if not paths:
            fail("out", folder, "omitted, because masks are only written for image files")
        self.folder, self.predictor = folder, predictor
        absolute = {os.fspath(path): Path(os.path.abspath(path)) for path in paths}
        root = Path(os.path.commonpath([path.parent for path in absolute.values()]))
        whole = {name: path.relative_to(root) for name, path in absolute.items()}
        short = {name: path.with_suffix("") for name, path in whole.items()}
        self.names = short if len(set(short.values())) == len(short) else whole
        for name in self.names:
            for file in self._files(name):
                if os.path.lexists(file) and not is_written_here(file):
                    raise ValueError(f"{file} exists and was not written by predict; choose another --out")

    def _files(self, name: str) -> list[Path]:
        return [self.folder / kind / f"{self.names[name]}.png" for kind in ("masks", "overlays")]

    def write(self, result: Segmentation) -> None:
        """Write the mask and the overlay of an image. Images that could not be read are skipped."""
        if result.mask is None or result.pixels is None:
            return
        mask, laid_over = self._files(result.name)
        for file in (mask, laid_over):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_mask(result.mask, mask, self.predictor.background, self.predictor.config.ids)
        pixels = result.pixels.repeat(3, axis=2) if result.pixels.shape[2] == 1 else result.pixels
        shown = Image.fromarray(overlay(pixels, result.mask, background=self.predictor.background))
        write_png(with_legend(shown, self._legend(result.mask)), laid_over)

    def _legend(self, mask: np.ndarray) -> list[tuple[str, list[int]]]:
        """Return the name and colour of each class in the mask, except the background, which is not tinted."""
        background, labels = self.predictor.background, self.predictor.labels
        present = [index for index in np.unique(mask).tolist() if index < len(labels) and index != background]
        return [(labels[index], palette(background)[index].tolist()) for index in present]
