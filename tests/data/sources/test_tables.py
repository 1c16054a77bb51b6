import csv
import json
import os
import sys
from pathlib import Path

import pytest

from vitreous.data.open import open_data
from vitreous.data.sources.base import Source

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

ROWS = [{"path": f"img/{i}.jpg", "label": ["dog", "cat"][i % 2]} for i in range(10)]


def random_images(root: Path, count: int = 10) -> None:
    (root / "img").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (root / "img" / f"{i}.jpg").write_text(f"image {i}")


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
    return {bytes(source.image(i)): source.classes[source.labels[i]] for i in range(len(source))}


EVERY = pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"])


@EVERY
def test_paths_and_labels_are_read(tmp_path: Path, suffix: str) -> None:
    random_images(tmp_path)
    data = open_data(str(write(tmp_path / f"t{suffix}", ROWS)))
    assert data.classes == ("cat", "dog")
    assert contents(data.train) | contents(data.val) == {
        f"image {i}".encode(): ["dog", "cat"][i % 2] for i in range(10)
    }
    assert (len(data.train), len(data.val)) == (8, 2)
    assert data.train.name(0) == "img/0.jpg"


@EVERY
def test_split_column_is_used(tmp_path: Path, suffix: str) -> None:
    random_images(tmp_path)
    words = ["train"] * 6 + ["Validation"] * 2 + ["test"] * 2
    rows = [row | {"split": word} for row, word in zip(ROWS, words, strict=True)]
    data = open_data(str(write(tmp_path / f"t{suffix}", rows)))
    assert (len(data.train), len(data.val)) == (6, 2)
    assert data.test is not None
    assert set(contents(data.test)) == {b"image 8", b"image 9"}


@EVERY
@pytest.mark.parametrize("label", [lambda i: i % 11, lambda i: str(i % 11)])
def test_numeric_labels_are_ordered_numerically(tmp_path: Path, suffix: str, label) -> None:  # type: ignore[no-untyped-def]
    random_images(tmp_path, 22)
    rows = [{"File": f"img/{i}.jpg", "Target": label(i)} for i in range(22)]
    assert open_data(str(write(tmp_path / f"t{suffix}", rows))).classes == tuple(map(str, range(11)))


@EVERY
def test_paths_are_relative_to_the_root(tmp_path: Path, suffix: str) -> None:
    random_images(tmp_path / "far")
    (tmp_path / "near").mkdir()
    table = write(tmp_path / "near" / f"t{suffix}", ROWS)
    assert len(open_data(str(table), root=tmp_path / "far").train) == 8
    rows = [row | {"path": str(tmp_path / "far" / row["path"])} for row in ROWS]
    assert len(open_data(str(write(table, rows))).train) == 8


@EVERY
def test_missing_files_are_counted_and_named(tmp_path: Path, suffix: str) -> None:
    random_images(tmp_path)
    (tmp_path / "img/3.jpg").unlink()
    rows = [*ROWS, {"path": "nowhere/x.jpg", "label": "cat"}]
    with pytest.raises(ValueError, match=r"2 of 11 files do not exist in .*'img/3.jpg' \(row 4\), 'nowhere/x.jpg'"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))


@EVERY
def test_unknown_columns_are_listed(tmp_path: Path, suffix: str) -> None:
    random_images(tmp_path)
    rows = [{"where": row["path"], "label": row["label"]} for row in ROWS]
    with pytest.raises(
        ValueError, match=r"no image column; expected one of path, file, image, filename, got 'where', 'label'"
    ):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))
    rows = [{"path": row["path"], "breed": row["label"]} for row in ROWS]
    with pytest.raises(ValueError, match=r"no label column; expected one of label, class, .* got 'path', 'breed'"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))


@EVERY
def test_labels_that_occur_only_in_val_are_rejected(tmp_path: Path, suffix: str) -> None:
    random_images(tmp_path)
    rows = [row | {"split": "train"} for row in ROWS] + [{"path": "img/1.jpg", "label": "owl", "split": "val"}]
    with pytest.raises(ValueError, match="val has 'owl', which train lacks"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))


@EVERY
def test_rows_without_a_label_are_rejected(tmp_path: Path, suffix: str) -> None:
    random_images(tmp_path)
    rows = [row | {"label": None} if i in (2, 5) else row for i, row in enumerate(ROWS)]
    with pytest.raises(ValueError, match="2 of 10 rows have no label; first rows: 3, 6"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))
    words = ["train"] * 6 + ["val"] * 2 + ["test"] * 2
    rows = [
        row | {"split": word} | ({"label": None} if word == "test" else {})
        for row, word in zip(ROWS, words, strict=True)
    ]
    data = open_data(str(write(tmp_path / f"t{suffix}", rows)))
    assert data.test is None
    assert "the test split has no labels and is ignored" in data.note


@EVERY
def test_unknown_split_is_rejected(tmp_path: Path, suffix: str) -> None:
    random_images(tmp_path)
    rows = [row | {"split": "fold1"} for row in ROWS]
    with pytest.raises(ValueError, match="column 'split' must contain train, val or test, got 'fold1'"):
        open_data(str(write(tmp_path / f"t{suffix}", rows)))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", "path,label\n", "no labelled images"),
        ("t.csv", "path,label\na.jpg,cat,3\n", "row 1 has 3 columns, but the header has 2"),
        ("t.jsonl", '{"path": "a.jpg", "label": "cat"}\n{"path": ', "line 2 is not valid JSON"),
        ("t.jsonl", "[" * 100_000, "line 1 is nested too deeply"),
        ("t.jsonl", "[1, 2]\n", "line 1 must be a JSON object"),
        ("t.jsonl", '{"path": "a.jpg", "label": ["cat", "dog"]}\n', "must contain a single path or label"),
        ("t.parquet", "nothing", "cannot be read as Parquet"),
    ],
)
def test_invalid_tables_are_rejected(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        open_data(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_semicolons_and_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    random_images(tmp_path)
    lines = ["path;label", *(f"{row['path']};{row['label']}" for row in ROWS)]
    (tmp_path / "t.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    assert open_data(str(tmp_path / "t.csv")).classes == ("cat", "dog")


pa = pytest.importorskip("pyarrow")

NAMES = ["zebra", "ant", "bee"]


def table(  # type: ignore[no-untyped-def]
    start: int,
    count: int,
    image: str = "image",
    label: str = "label",
    struct: bool = True,
    names: list[str] | None = NAMES,
):
    """Write a table like the datasets library: images as {bytes, path}, label indices, class names in metadata."""
    numbers = range(start, start + count)
    cells = [os.urandom(50 + 13 * i % 97) if i % 7 else f"image {i}".encode() for i in numbers]
    cells = [f"image {i} ".encode() + cell for i, cell in zip(numbers, cells, strict=True)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if struct else pa.binary()
    values = [{"bytes": cell, "path": None} for cell in cells] if struct else cells
    made = pa.table({"id": list(numbers), image: pa.array(values, kind), label: [i % 3 for i in numbers]})
    if names:
        features = {label: {"names": names, "_type": "ClassLabel"}, image: {"_type": "Image"}}
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    return made, cells


def test_parquet_folder_converted_by_the_hub(tmp_path: Path) -> None:
    for part, count in (("train", 9), ("test", 6)):
        (tmp_path / "default" / part).mkdir(parents=True)
        pq.write_table(table(0, count)[0], tmp_path / "default" / part / "0000.parquet")
    data = open_data(str(tmp_path))
    assert (len(data.train), len(data.val)) == (9, 6)


@pytest.mark.parametrize("struct", [True, False])
@pytest.mark.parametrize(("image", "label"), [("image", "label"), ("img", "fine_label"), ("scan", "species")])
def test_images_stored_in_the_table(tmp_path: Path, struct: bool, image: str, label: str) -> None:
    made, cells = table(0, 30, image, label, struct)
    pq.write_table(made, tmp_path / "t.parquet", row_group_size=4)
    data = open_data(str(tmp_path / "t.parquet"))
    assert data.classes == tuple(NAMES)
    assert contents(data.train) | contents(data.val) == {cell: NAMES[i % 3] for i, cell in enumerate(cells)}
    assert data.train.name(0) == "t.parquet[0]"


def test_table_is_unpacked_once_and_again_after_changes(tmp_path: Path, cache: Path) -> None:
    for count in (30, 60):
        made, cells = table(0, count)
        pq.write_table(made, tmp_path / "t.parquet")
        open_data(str(tmp_path / "t.parquet"))
        packed = {path: path.stat().st_mtime_ns for path in cache.rglob("*.bin")}
        data = open_data(str(tmp_path / "t.parquet"))
        assert contents(data.train) | contents(data.val) == {cell: NAMES[i % 3] for i, cell in enumerate(cells)}
        assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.bin")} == packed
    assert len(packed) == 2
    assert not list(cache.rglob("*.part*"))


def test_folder_of_parquet_files(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    expected: dict[bytes, str] = {}
    for n in range(2):
        made, cells = table(30 * n, 30)
        expected |= {cell: NAMES[(30 * n + i) % 3] for i, cell in enumerate(cells)}
        pq.write_table(made, tmp_path / "data" / f"train-0000{n}-of-00002.parquet")
    pq.write_table(table(60, 9)[0], tmp_path / "data" / "validation-00000-of-00001.parquet")
    data = open_data(str(tmp_path))
    assert contents(data.train) == expected
    assert len(data.val) == 9
    (tmp_path / "data" / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(ValueError, match="only 1 of 2 files of the train split"):
        open_data(str(tmp_path))


def test_labels_without_names(tmp_path: Path) -> None:
    pq.write_table(table(0, 30, names=None)[0], tmp_path / "t.parquet")
    assert open_data(str(tmp_path / "t.parquet")).classes == ("0", "1", "2")


def test_hidden_test_labels_and_unused_classes(tmp_path: Path) -> None:
    made, _ = table(0, 12, names=[*NAMES, "never"])
    split = pa.array(["train"] * 6 + ["val"] * 3 + ["test"] * 3)
    hidden = pa.array([i % 3 if i < 9 else -1 for i in range(12)])
    made = made.set_column(2, "label", hidden).append_column("split", split)
    pq.write_table(made, tmp_path / "t.parquet")
    data = open_data(str(tmp_path / "t.parquet"))
    assert data.test is None
    assert data.classes == (*NAMES, "never")
    assert "no labels and is ignored" in data.note
    assert "1 of 4 classes have no images" in data.note


def test_label_problems_are_raised_before_unpacking(tmp_path: Path, cache: Path) -> None:
    made, _ = table(0, 12)
    one = made.set_column(2, "label", pa.array([1] * 12))
    pq.write_table(one, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="only one class, 'ant'"):
        open_data(str(tmp_path / "t.parquet"))
    beyond = made.set_column(2, "label", pa.array([7] * 12))
    pq.write_table(beyond, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="label '7' is not one of the 3 classes"):
        open_data(str(tmp_path / "t.parquet"))
    assert not list(cache.rglob("*.bin"))


def test_row_without_an_image_is_rejected(tmp_path: Path) -> None:
    made, cells = table(0, 12, struct=False)
    pq.write_table(made.set_column(1, "image", pa.array([*cells[:-1], None], pa.binary())), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="row 12 of column 'image'"):
        open_data(str(tmp_path / "t.parquet"))


def test_error_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(0, 30)[0], tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"requires pyarrow: pip install .vitreous\[data\]"):
        open_data(str(tmp_path / "t.parquet"))
