"""Targets of the images in a table: any number of labels, or numbers.

The labels of an image are a list (JSON lines, Parquet, or the text of a Python list), text with a separator (`;`, `|`,
`,` or spaces), or one 0/1 column per class. An image may have no label. Numbers have one column each.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitreous.common.text import listed
from vitreous.data.sources.base import TargetRows, cell_text, class_labels, order_labels

Columns = Mapping[str, Sequence[object]]  # without the image and the split

LABELS = ("labels", "label", "tags", "classes", "class", "target", "categories", "category", "attributes")
BINARY = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
SEPARATORS = {";": "semicolons", "|": "vertical bars", ",": "commas", " ": "spaces"}


@dataclass(frozen=True)
class LabelTargets:
    """Any number of labels per image.

    columns: The label column, or one 0/1 column per class; found automatically if empty.
    classes: The classes of an existing model, in order. By default, all labels that occur.
    """

    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def read(
        self, table: object, columns: Columns, splits: list[str], names: Mapping[str, tuple[str, ...]]
    ) -> TargetRows:
        """Read the labels of each row. `names` are the class names of columns that contain indices."""
        chosen, binary = self._choose(table, columns)
        if binary:
            return self._read_binary(table, {column: columns[column] for column in chosen}, splits)
        [column] = chosen
        rows, note = _split_labels(columns[column], names.get(column))
        found = {label for row in rows for label in row}
        classes = self.classes or names.get(column) or order_labels(found)
        if unknown := sorted(found - set(classes)):
            raise ValueError(f"{table}: column {column!r} contains {listed(unknown)}, which the model does not know")
        if not found:
            raise ValueError(f"{table}: column {column!r} contains no labels")
        index = {label: i for i, label in enumerate(classes)}
        values = np.zeros((len(rows), len(classes)), bool)
        for row, labels in enumerate(rows):
            values[row, [index[label] for label in labels]] = True
        return _label_rows(classes, values, splits, f"labels from column {column!r}{note}")

    def _choose(self, table: object, columns: Columns) -> tuple[Sequence[str], bool]:
        """Return the columns that contain the labels. Also return True if there is one 0/1 column per class."""
        _check_columns(table, columns, self.columns)
        if self.columns:
            return self.columns, len(self.columns) > 1 or _is_binary(columns[self.columns[0]])
        if self.classes and set(self.classes) <= columns.keys():
            return self.classes, True
        binary = [column for column in columns if _is_binary(columns[column])]
        lowered = {column.lower().strip(): column for column in columns}
        label = next((lowered[name] for name in LABELS if name in lowered), None)
        if label is not None and (label not in binary or len(binary) == 1):
            return [label], label in binary
        if not binary:
            usual = ", ".join(LABELS[:4])
            raise ValueError(
                f"{table} has no label column; expected one of {usual}, or one 0/1 column per class, got "
                f"{listed(columns, 20)}; choose columns with --target"
            )
        return binary, True

    def _read_binary(self, table: object, columns: Columns, splits: list[str]) -> TargetRows:
        texts = {column: [cell_text(value).lower() for value in cells] for column, cells in columns.items()}
        bare = {row for row in range(len(splits)) if not any(column[row] for column in texts.values())}
        for column, cells in texts.items():
            for row in (row for row, cell in enumerate(cells) if cell not in BINARY and row not in bare):
                raise ValueError(f"{table}: column {column!r} must contain 0 or 1, got {cells[row]!r} in row {row + 1}")
        values = np.array([[BINARY.get(cell, False) for cell in column] for column in texts.values()], bool).T
        return _label_rows(tuple(columns), values, splits, f"one class per 0/1 column: {listed(columns)}", bare)


@dataclass(frozen=True)
class NumberTargets:
    """One or several numbers per image.

    columns: The columns to predict. If empty, there must be a single column of numbers.
    """

    columns: tuple[str, ...] = ()

    def read(
        self, table: object, columns: Columns, splits: list[str], names: Mapping[str, tuple[str, ...]]
    ) -> TargetRows:
        """Read the numbers of each row."""
        _check_columns(table, columns, self.columns)
        chosen, note = self.columns, []
        if not chosen:
            numeric = tuple(column for column, cells in columns.items() if _is_numeric(cells))
            if len(numeric) != 1:
                found = f"columns of numbers: {listed(numeric, 20)}" if numeric else "no column of numbers"
                raise ValueError(f"{table} has {found}; choose the target with --target COLUMN")
            chosen, note = numeric, [f"numbers from column {numeric[0]!r}"]
        values = np.full((len(splits), len(chosen)), np.nan)
        for place, column in enumerate(chosen):
            for row, cell in enumerate(columns[column]):
                number = _number(cell)
                if number is None:
                    wrong = f"{cell_text(cell)[:40]!r} in row {row + 1}"
                    raise ValueError(f"{table}: column {column!r} must contain numbers, got {wrong}")
                values[row, place] = number
        bare = frozenset(np.flatnonzero(np.isnan(values).any(1)).tolist())
        return TargetRows(chosen, values, splits, bare, note, labelled=False)


TargetKind = LabelTargets | NumberTargets


def _check_columns(table: object, columns: Columns, chosen: Sequence[str]) -> None:
    if missing := [column for column in chosen if column not in columns]:
        raise ValueError(f"{table} has no column {listed(missing)}; its columns are {listed(columns, 20)}")


def _label_rows(
    classes: tuple[str, ...], values: np.ndarray, splits: list[str], note: str, bare: Iterable[int] = ()
) -> TargetRows:
    """Return the rows. A test split without any label is unlabelled."""
    test = {row for row, split in enumerate(splits) if split == "test"}
    hidden = test if not values[sorted(test)].any() else set()
    train = [row for row, split in enumerate(splits) if split not in ("val", "test")]
    notes, unused = [note], int((~values[train].any(0)).sum())
    if unused:
        notes.append(f"{unused:,} of {len(classes):,} classes have no training images")
    if empty := len(values) - int(values.any(1).sum()) - len(hidden | set(bare)):
        notes.append(f"{empty:,} images have no label")
    return TargetRows(classes, values, splits, frozenset(hidden | set(bare)), notes)


def _is_binary(cells: Sequence[object]) -> bool:
    texts = {cell_text(cell).lower() for cell in cells if not _is_list(cell)} - {""}
    return bool(texts) and texts <= BINARY.keys() and not any(_is_list(cell) for cell in cells)


def _is_list(cell: object) -> bool:
    return isinstance(cell, list | tuple | dict | np.ndarray)


def _is_numeric(cells: Sequence[object]) -> bool:
    numbers = [_number(cell) for cell in cells if not _is_list(cell)]
    return len(numbers) == len(cells) and None not in numbers and not np.isnan(numbers).all()  # type: ignore[arg-type]


def _number(cell: object) -> float | None:
    """Return a finite number, NaN for an empty cell, or None for anything else."""
    text = cell_text(cell)
    try:
        number = float(text or "nan")
    except ValueError:
        return None
    return number if np.isfinite(number) or not text else None


def _split_labels(cells: Sequence[object], names: tuple[str, ...] | None) -> tuple[list[list[str]], str]:
    """Return the labels of each row, and a note about their separator."""
    cells = [_parsed_list(cell) for cell in cells]
    texts = [cell_text(cell) for cell in cells if not _is_list(cell)]
    separator = find_separator(texts)
    rows = []
    for cell in cells:
        parts: list[object] = list(cell) if isinstance(cell, list | tuple | np.ndarray) else [cell]
        if separator is not None and isinstance(cell, str):
            parts = [*cell.split(None if separator == " " else separator)]
        rows.append([label for label in class_labels(parts, names) if label])
    return rows, "" if separator is None else f", separated by {SEPARATORS[separator]}"


def _parsed_list(cell: object) -> object:
    """Return the list that a text such as "['cat', 'dog']" contains, or the cell itself."""
    if not isinstance(cell, str) or not (cell.strip().startswith("[") and cell.strip().endswith("]")):
        return cell
    try:
        found = ast.literal_eval(cell.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell
    return found if isinstance(found, list) else cell


def find_separator(cells: Iterable[str]) -> str | None:
    """Return the character that separates the labels in these cells, or None if each cell has at most one label.

    Spaces separate labels only if this leads to fewer distinct labels, because a class name can contain spaces.

    >>> find_separator(["cat; dog", "cat", ""]), find_separator(["traffic light", "stop sign"])
    (';', None)
    """
    distinct = {cell.strip() for cell in cells} - {""}
    for separator in ";|,":
        if any(separator in cell for cell in distinct):
            return separator
    words = {word for cell in distinct for word in cell.split()}
    return " " if len(words) < len(distinct) else None
