import csv
import json
from pathlib import Path

import pytest

from vitreous.data.open import open_data
from vitreous.data.sources.base import Source

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

ROWS = [{"path": f"img/{i}.jpg", "label": ["dog", "cat"][i % 2]} for i in range(10)]


def pictures(root: Path, count: int = 10) -> None:
    (root / "img").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (root / "img" / f"{i}.jpg").write_text(f"picture {i}")


def write(path: Path, rows: list[dict]) -> Path:  # type: ignore[type-arg]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix in (".csv", ".tsv"):
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), delimiter="," if path.suffix == ".csv" else "\t")
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


def contents(source: Source) -> dict[bytes, str]:
    return {bytes(source.picture(i)): source.classes[source.labels[i]] for i in range(len(source))}


EVERY = pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"])


@EVERY
def test_paths_and_labels(tmp_path: Path, suffix: str) -> None:
    pictures(tmp_path)
    data = open_data(str(write(tmp_path / f"t{suffix}", ROWS)))
    assert data.classes == ("cat", "dog")
    assert contents(data.train) | contents(data.val) == {
        f"picture {i}".encode(): ["dog", "cat"][i % 2] for i in range(10)
    }
    assert (len(data.train), len(data.val)) == (8, 2)
    assert data.train.name(0) == "img/0.jpg"


@EVERY
def test_a_split_column(tmp_path: Path, suffix: str) -> None:
    pictures(tmp_path)
    words = ["train"] * 6 + ["Validation"] * 2 + ["test"] * 2
    rows = [row | {"split": word} for row, word in zip(ROWS, words, strict=True)]
    data = open_data(str(write(tmp_path / f"t{suffix}", rows)))
    assert (len(data.train), len(data.val)) == (6, 2)
    assert data.test is not None
    assert set(contents(data.test)) == {b"picture 8", b"picture 9"}


@EVERY
@pytest.mark.parametrize("label", [lambda i: i % 11, lambda i: str(i % 11)])
def test_numbers_are_ordered_as_numbers(tmp_path: Path, suffix: str, label) -> None:  # type: ignore[no-untyped-def]
    pictures(tmp_path, 22)
    rows = [{"File": f"img/{i}.jpg", "Target": label(i)} for i in range(22)]
    assert open_data(str(write(tmp_path / f"t{suffix}", rows))).classes == tuple(map(str, range(11)))


@EVERY
def test_a_root_for_the_paths(tmp_path: Path, suffix: str) -> None:
    pictures(tmp_path / "far")
    (tmp_path / "near").mkdir()
    table = write(tmp_path / "near" / f"t{suffix}", ROWS)
    assert len(open_data(str(table), root=tmp_path / "far").train) == 8
    rows = [row | {"path": str(tmp_path / "far" / row["path"])} for row in ROWS]
    assert len(open_data(str(write(table, rows))).train) == 8


@EVERY
def test_missing_files_are_counted_and_named(tmp_path: Path, suffix: str) -> None:
    pictures(tmp_path)
    (tmp_path / "img/3.jpg").unlink()
    rows = [*ROWS, {"path": "nowhere/x.jpg", "label": "cat"}]
    with pytest.raises(ValueError, match=r"2 of 11 files do not exist below .*'img/3.jpg' \(row 4\), 'nowhere/x.jpg'"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))


@EVERY
def test_unknown_columns_are_listed(tmp_path: Path, suffix: str) -> None:
    pictures(tmp_path)
    rows = [{"where": row["path"], "label": row["label"]} for row in ROWS]
    with pytest.raises(ValueError, match=r"no picture column: call one of .*\('where', 'label'\) path, file, image"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))
    rows = [{"path": row["path"], "breed": row["label"]} for row in ROWS]
    with pytest.raises(ValueError, match=r"no label column: call one of .*\('path', 'breed'\) label, class, target"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))


@EVERY
def test_labels_that_only_val_has(tmp_path: Path, suffix: str) -> None:
    pictures(tmp_path)
    rows = [row | {"split": "train"} for row in ROWS] + [{"path": "img/1.jpg", "label": "owl", "split": "val"}]
    with pytest.raises(ValueError, match="val has 'owl', which train lacks"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))


@EVERY
def test_rows_without_a_label(tmp_path: Path, suffix: str) -> None:
    pictures(tmp_path)
    rows = [row | {"label": None} if i in (2, 5) else row for i, row in enumerate(ROWS)]
    with pytest.raises(ValueError, match="2 of 10 rows have no label, the first: 3, 6"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))
    words = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    rows = [
        row | {"split": word} | ({"label": None} if word == "test" else {})
        for row, word in zip(ROWS, words, strict=True)
    ]
    data = open_data(str(write(tmp_path / f"t{suffix}", rows)))
    assert data.test is None
    assert "the test part has no labels and is left out" in data.note


@EVERY
def test_an_unknown_part(tmp_path: Path, suffix: str) -> None:
    pictures(tmp_path)
    rows = [row | {"split": "fold1"} for row in ROWS]
    with pytest.raises(ValueError, match="column 'split' holds 'fold1', but must hold train, val or test"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", "path,label\n", "no labelled pictures"),
        ("t.csv", "path,label\na.jpg,cat,3\n", "row 1 has 3 cells, but the header has 2"),
        ("t.jsonl", '{"path": "a.jpg", "label": "cat"}\n{"path": ', "line 2 is not JSON"),
        ("t.jsonl", "[1, 2]\n", "line 1 is .* but must be an object"),
        ("t.jsonl", '{"path": "a.jpg", "label": ["cat", "dog"]}\n', "must hold one path or one label"),
        ("t.parquet", "nothing", "cannot be read as Parquet"),
    ],
)
def test_broken_tables(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        open_data(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_semicolons_and_a_byte_order_mark(tmp_path: Path) -> None:
    pictures(tmp_path)
    lines = ["path;label", *(f"{row['path']};{row['label']}" for row in ROWS)]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    assert open_data(str(tmp_path / "t.csv")).classes == ("cat", "dog")
