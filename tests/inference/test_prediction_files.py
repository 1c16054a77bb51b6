import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest
import torch

from vitreous.common.checks import BadValue
from vitreous.inference.prediction_files import write, writer_for
from vitreous.inference.predictions import Columns, Embedding, Prediction
from vitreous.model.top_labels import Label

CAT = Prediction("a/cat.jpg", (Label("cat", 3, 0.75), Label("dog, small", 1, 0.25)))
DOG = Prediction("dog\udce9.png", (Label("犬 [bold]", 0, 0.5), Label("line\nbreak", 2, 0.125)))
BAD = Prediction("bad.jpg", error="the file is empty")
PREDICTIONS = [BAD, CAT, DOG]
VECTORS = [
    Embedding("a", torch.tensor([1.0, 0.1])),
    Embedding("b", error="broken"),
    Embedding("c", torch.tensor([3, -4.0])),
]
ENDINGS = [".json", ".jsonl", ".csv", ".parquet"]

AS_JSON = [
    {"path": "bad.jpg", "error": "the file is empty"},
    {
        "path": "a/cat.jpg",
        "predictions": [
            {"label": "cat", "index": 3, "probability": 0.75},
            {"label": "dog, small", "index": 1, "probability": 0.25},
        ],
    },
    {
        "path": "dog?.png",
        "predictions": [
            {"label": "犬 [bold]", "index": 0, "probability": 0.5},
            {"label": "line\nbreak", "index": 2, "probability": 0.125},
        ],
    },
]


def test_json_is_a_list(tmp_path: Path) -> None:
    write(PREDICTIONS, tmp_path / "x.json", Columns(top=2))
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert json.loads(text) == AS_JSON
    assert len(text.splitlines()) == 5  # one object per line, as in .jsonl
    write([], tmp_path / "x.json", Columns(top=2))
    assert json.loads((tmp_path / "x.json").read_text()) == []


def test_json_lines(tmp_path: Path) -> None:
    write(PREDICTIONS, tmp_path / "x.JSONL", Columns(top=2))
    lines = (tmp_path / "x.JSONL").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == AS_JSON


def test_csv_has_a_row_for_each_image(tmp_path: Path) -> None:
    write(PREDICTIONS, tmp_path / "x.csv", Columns(top=2))
    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["path", "label", "probability", "label_2", "probability_2", "error"],
        ["bad.jpg", "", "", "", "", "the file is empty"],
        ["a/cat.jpg", "cat", "0.75", "dog, small", "0.25", ""],
        ["dog?.png", "犬 [bold]", "0.5", "line\nbreak", "0.125", ""],
    ]


def test_parquet(tmp_path: Path) -> None:
    write(PREDICTIONS, tmp_path / "x.parquet", Columns(top=2))
    rows = pyarrow.parquet.read_table(tmp_path / "x.parquet").to_pylist()
    empty = {"label": None, "index": None, "probability": None, "predictions": None}
    assert rows[0] == {"path": "bad.jpg", "error": "the file is empty", **empty}
    for row, expected in zip(rows[1:], AS_JSON[1:], strict=True):
        assert row == {**expected, **expected["predictions"][0], "error": None}  # type: ignore[dict-item]


def test_parquet_is_written_in_row_groups(tmp_path: Path) -> None:
    write((Prediction(str(i), CAT.predictions) for i in range(2500)), tmp_path / "x.parquet", Columns(top=2))
    file = pyarrow.parquet.ParquetFile(tmp_path / "x.parquet")
    assert file.metadata.num_row_groups == 3
    assert file.read()["path"].to_pylist() == [str(i) for i in range(2500)]
    write([], tmp_path / "x.parquet", Columns(top=2))
    assert pyarrow.parquet.read_table(tmp_path / "x.parquet").num_rows == 0


def test_embeddings(tmp_path: Path) -> None:
    for ending in ENDINGS:
        write(VECTORS, tmp_path / f"x{ending}", Columns(width=2))
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert table.schema.field("embedding").type == pyarrow.list_(pyarrow.float32(), 2)
    tenth = torch.tensor(0.1).item()
    assert table["embedding"].to_pylist() == [[1.0, tenth], None, [3.0, -4.0]]
    assert table["error"].to_pylist() == [None, "broken", None]
    listed = json.loads((tmp_path / "x.json").read_text())
    assert listed == [
        {"path": "a", "embedding": [1.0, tenth]},
        {"path": "b", "error": "broken"},
        {"path": "c", "embedding": [3, -4]},
    ]
    assert (tmp_path / "x.csv").read_text().split() == [
        "path,feature_0,feature_1,error",
        f"a,1.0,{tenth},",
        "b,,,broken",
        "c,3.0,-4.0,",
    ]


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interrupted_run_keeps_the_previous_file(tmp_path: Path, ending: str) -> None:
    def broken() -> Iterator[Prediction]:
        for _ in range(2000):
            yield CAT
        raise RuntimeError("power cut")

    path = tmp_path / f"x{ending}"
    path.write_text("before")
    with pytest.raises(RuntimeError, match="power cut"):
        write(broken(), path, Columns(top=2))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_name_is_checked_before_the_first_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never() -> Iterator[Prediction]:
        raise AssertionError("read")
        yield

    wanted = r"one of .json, .jsonl, .csv, .parquet \(did you mean '.csv'\?\)"
    with pytest.raises(BadValue, match=wanted):
        write(never(), tmp_path / "x.cvs", Columns(top=2))
    (tmp_path / "x.csv").mkdir()
    with pytest.raises(OSError, match="is not a file"):
        write(never(), tmp_path / "x.csv", Columns(top=2))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r'pip install "vitreous\[data\]"'):
        writer_for("x.parquet")
