"""Tables with several labels or numbers per image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitreous.data.open import open_data
from vitreous.data.sources.base import DataSet, Source
from vitreous.data.sources.targets import LabelTargets, NumberTargets, TargetKind, find_separator

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

LABELS = [["cat"], ["dog", "cat"], [], ["bird"], ["dog"], ["bird", "cat", "dog"], ["cat"], [], ["bird"], ["dog"]]
CLASSES = ("bird", "cat", "dog")
SUFFIXES = pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])


def write(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> str:
    """Write a table and a file for each of its images."""
    path = folder / f"table{suffix}"
    for row in rows:
        (folder / row["path"]).write_text(row["path"])
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == ".jsonl":
        path.write_text("\n".join(map(json.dumps, rows)))
    else:
        cell = "," if suffix == ".csv" else "\t"
        quoted = [[f'"{value}"' if cell in str(value) else str(value) for value in row.values()] for row in rows]
        path.write_text("\n".join(cell.join(row) for row in [list(rows[0]), *quoted]))
    return str(path)


def found(source: Source) -> dict[str, set[str]]:
    assert source.targets is not None
    assert source.targets.dtype == bool
    named = (np.array(source.classes, object)[row] for row in source.targets)
    return {source.name(index): set(labels) for index, labels in enumerate(named)}


def opened(spec: str, targets: TargetKind | None = None, **options: Any) -> DataSet:
    return open_data(spec, targets=targets or LabelTargets(), **options)


def check(data: DataSet) -> None:
    wanted = {f"{i}.png": set(labels) for i, labels in enumerate(LABELS)}
    assert data.classes == CLASSES
    assert found(data.train) | found(data.val) == wanted


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_lists_of_labels_are_read(tmp_path: Path, suffix: str) -> None:
    check(opened(write(tmp_path, suffix, [{"path": f"{i}.png", "tags": row} for i, row in enumerate(LABELS)])))


@SUFFIXES
@pytest.mark.parametrize(
    ("separator", "word"),
    [(";", "semicolon"), ("|", "vertical bar"), (",", "comma"), ("; ", "semicolon"), (" ", "space")],
)
def test_separated_labels_are_read_and_the_separator_is_announced(
    tmp_path: Path, suffix: str, separator: str, word: str
) -> None:
    rows = [{"path": f"{i}.png", "label": separator.join(labels)} for i, labels in enumerate(LABELS)]
    data = opened(write(tmp_path, suffix, rows))
    check(data)
    assert word in data.note
    assert "2 images have no label" in data.note


@SUFFIXES
@pytest.mark.parametrize("one", [1, "1", True, 1.0])
def test_one_column_per_class_is_read(tmp_path: Path, suffix: str, one: Any) -> None:
    zero = type(one)(0) if not isinstance(one, str) else "0"
    rows = [
        {"id": 100 + i, "path": f"{i}.png"} | {name: one if name in labels else zero for name in CLASSES}
        for i, labels in enumerate(LABELS)
    ]
    check(opened(write(tmp_path, suffix, rows)))


def test_the_text_of_python_lists_is_read(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.png", "labels": str(labels)} for i, labels in enumerate(LABELS)]
    check(opened(write(tmp_path, ".csv", rows)))


def test_chosen_columns_are_read(tmp_path: Path) -> None:
    rows = [
        {"path": f"{i}.png", "label": "x", "seen": " ".join(row), "a": i % 2, "b": 1} for i, row in enumerate(LABELS)
    ]
    table = write(tmp_path, ".csv", rows)
    check(opened(table, LabelTargets(("seen",))))
    assert opened(table, LabelTargets(("b", "a"))).classes == ("b", "a")
    with pytest.raises(ValueError, match="no column 'c'"):
        opened(table, LabelTargets(("c",)))


def test_classes_of_a_model_keep_their_order_and_may_be_unused(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.png", "label": ";".join(labels)} for i, labels in enumerate(LABELS)]
    table = write(tmp_path, ".csv", rows)
    data = opened(table, LabelTargets(classes=("emu", "dog", "cat", "bird")))
    assert data.classes == ("emu", "dog", "cat", "bird")
    assert found(data.train) == found(opened(table).train)
    with pytest.raises(ValueError, match="'bird', which the model does not know"):
        opened(table, LabelTargets(classes=("cat", "dog")))


def test_parquet_lists_of_indices_use_the_stored_names(tmp_path: Path) -> None:
    rows = [
        {"path": f"{i}.png", "labels": [CLASSES.index(label) for label in labels]} for i, labels in enumerate(LABELS)
    ]
    path = write(tmp_path, ".parquet", rows)
    table = pq.read_table(path)
    names = {"names": list(CLASSES), "_type": "ClassLabel"}
    for feature in ({"feature": names, "_type": "Sequence"}, [names]):
        metadata = {"huggingface": json.dumps({"info": {"features": {"labels": feature}}})}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        check(opened(path))


def test_every_class_is_in_train_and_val(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"path": f"{i}.png", "label": ";".join(sorted({"common", *rng.choice(["a", "b"], rng.integers(3))}))}
        for i in range(60)
    ]
    for i in (7, 31):
        rows[i]["label"] = "common;rare"
    rows[40]["label"] = "single"
    data = opened(write(tmp_path, ".csv", rows), seed=3)
    for source in (data.train, data.val):
        assert source.targets is not None
        assert (source.targets.sum(0)[[data.classes.index(name) for name in ("a", "b", "common", "rare")]] > 0).all()
    assert len(data.val) == pytest.approx(12, abs=2)


def test_a_test_split_without_labels_is_ignored(tmp_path: Path) -> None:
    words = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    rows = [{"path": f"{i}.png", "label": "", "split": word} for i, word in enumerate(words)]
    for row, labels in zip(rows[:8], LABELS[:8], strict=True):
        row["label"] = ";".join(labels)
    data = opened(write(tmp_path, ".csv", rows))
    assert data.test is None
    assert "test split has no labels" in data.note
    assert (len(data.train), len(data.val)) == (6, 2)


@pytest.mark.parametrize(
    ("cells", "separator"),
    [
        (["a;b c", "d"], ";"),
        (["a b", "c"], None),  # as many words as labels with spaces would have
        (["traffic light", "stop sign"], None),
        (["clear primary", "primary", "haze primary", "clear", "haze"], " "),
        (["cat", "dog"], None),
        (["Paris, France"], ","),
    ],
)
def test_separators(cells: list[str], separator: str | None) -> None:
    assert find_separator(cells) == separator


@pytest.mark.parametrize(
    ("column", "cells", "message"),
    [
        ("size", ["3", "4"], "no label column"),
        ("label", ["", ""], "contains no labels"),
    ],
)
def test_tables_without_labels_are_rejected(tmp_path: Path, column: str, cells: list[str], message: str) -> None:
    rows = [{"path": f"{i}.png", column: cell} for i, cell in enumerate(cells)]
    with pytest.raises(ValueError, match=message):
        opened(write(tmp_path, ".csv", rows))


def test_a_value_other_than_0_and_1_is_rejected(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.png", "a": -1 if i == 0 else 1, "b": 0} for i in range(4)]
    with pytest.raises(ValueError, match=r"'a' must contain 0 or 1, got '-1' in row 1"):
        opened(write(tmp_path, ".csv", rows), LabelTargets(("a", "b")))


def test_only_tables_have_targets(tmp_path: Path) -> None:
    for spec in (str(tmp_path), "digits", str(tmp_path / "missing.csv")):
        with pytest.raises(ValueError, match=r"expected a \.csv"):
            opened(spec)


@SUFFIXES
def test_numbers_are_read(tmp_path: Path, suffix: str) -> None:
    rows = [{"path": f"{i}.png", "name": f"n{i}", "price": i * 1.5, "area": 10**9 + i} for i in range(10)]
    table = write(tmp_path, suffix, rows)
    data = opened(table, NumberTargets(("area", "price")))
    assert data.classes == ("area", "price")
    for source in (data.train, data.val):
        assert source.targets is not None
        for index, row in enumerate(source.targets):
            number = int(source.name(index).removesuffix(".png"))
            assert row.tolist() == [10**9 + number, number * 1.5]
    with pytest.raises(ValueError, match="columns of numbers: 'price', 'area'; choose the target with --target"):
        opened(table, NumberTargets())
    with pytest.raises(ValueError, match="'name' must contain numbers, got 'n0' in row 1"):
        opened(table, NumberTargets(("name",)))


def test_a_single_column_of_numbers_is_found(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.png", "name": f"n{i}", "price": -i / 3} for i in range(10)]
    data = opened(write(tmp_path, ".csv", rows), NumberTargets())
    assert data.classes == ("price",)
    assert "'price'" in data.note


@pytest.mark.parametrize("missing", ["", "inf", "n/a"])
def test_missing_and_infinite_numbers_are_rejected(tmp_path: Path, missing: str) -> None:
    rows = [{"path": f"{i}.png", "price": missing if i == 2 else i} for i in range(10)]
    with pytest.raises(ValueError, match=r"row.* 3"):
        opened(write(tmp_path, ".csv", rows), NumberTargets(("price",)))
