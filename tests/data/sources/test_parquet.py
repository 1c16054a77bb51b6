import json
import os
import sys
from pathlib import Path

import pytest

from vitreous.data.open import open_data
from vitreous.data.sources.base import Source

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

NAMES = ["zebra", "ant", "bee"]


def table(  # type: ignore[no-untyped-def]
    start: int,
    count: int,
    image: str = "image",
    label: str = "label",
    struct: bool = True,
    names: list[str] | None = NAMES,
):
    """As the hub's library writes it: pictures as {bytes, path}, labels as indices, their names in the metadata."""
    numbers = range(start, start + count)
    cells = [os.urandom(50 + 13 * i % 97) if i % 7 else f"picture {i}".encode() for i in numbers]
    cells = [f"picture {i} ".encode() + cell for i, cell in zip(numbers, cells, strict=True)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())]) if struct else pa.binary()
    values = [{"bytes": cell, "path": None} for cell in cells] if struct else cells
    made = pa.table({"id": list(numbers), image: pa.array(values, kind), label: [i % 3 for i in numbers]})
    if names:
        features = {label: {"names": names, "_type": "ClassLabel"}, image: {"_type": "Image"}}
        made = made.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    return made, cells


def contents(source: Source) -> dict[bytes, str]:
    return {bytes(source.picture(i)): source.classes[source.labels[i]] for i in range(len(source))}


def test_a_folder_as_the_hub_converts_it(tmp_path: Path) -> None:
    for part, count in (("train", 9), ("test", 6)):
        (tmp_path / "default" / part).mkdir(parents=True)
        pq.write_table(table(0, count)[0], tmp_path / "default" / part / "0000.parquet")
    data = open_data(str(tmp_path))
    assert (len(data.train), len(data.val)) == (9, 6)


@pytest.mark.parametrize("struct", [True, False])
@pytest.mark.parametrize(("image", "label"), [("image", "label"), ("img", "fine_label"), ("scan", "species")])
def test_pictures_in_the_table(tmp_path: Path, struct: bool, image: str, label: str) -> None:
    made, cells = table(0, 30, image, label, struct)
    pq.write_table(made, tmp_path / "t.parquet", row_group_size=4)
    data = open_data(str(tmp_path / "t.parquet"))
    assert data.classes == tuple(NAMES)
    assert contents(data.train) | contents(data.val) == {cell: NAMES[i % 3] for i, cell in enumerate(cells)}
    assert data.train.name(0) == "t.parquet[0]"


def test_it_is_unpacked_once_and_again_when_it_changes(tmp_path: Path, cache: Path) -> None:
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


def test_a_folder_of_parquet_files(tmp_path: Path) -> None:
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
    with pytest.raises(ValueError, match="only 1 of 2 files of train are there"):
        open_data(str(tmp_path))


def test_labels_without_names(tmp_path: Path) -> None:
    pq.write_table(table(0, 30, names=None)[0], tmp_path / "t.parquet")
    assert open_data(str(tmp_path / "t.parquet")).classes == ("0", "1", "2")


def test_hidden_labels_and_unused_classes(tmp_path: Path) -> None:
    made, _ = table(0, 12, names=[*NAMES, "never"])
    split = pa.array(["train"] * 6 + ["val"] * 3 + ["test"] * 3)
    hidden = pa.array([i % 3 if i < 9 else -1 for i in range(12)])
    made = made.set_column(2, "label", hidden).append_column("split", split)
    pq.write_table(made, tmp_path / "t.parquet")
    data = open_data(str(tmp_path / "t.parquet"))
    assert data.test is None
    assert data.classes == (*NAMES, "never")
    assert "no labels and is left out" in data.note
    assert "1 of 4 classes have no pictures" in data.note


def test_problems_are_told_before_anything_is_unpacked(tmp_path: Path, cache: Path) -> None:
    made, _ = table(0, 12)
    one = made.set_column(2, "label", pa.array([1] * 12))
    pq.write_table(one, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="'ant' as its only class"):
        open_data(str(tmp_path / "t.parquet"))
    beyond = made.set_column(2, "label", pa.array([7] * 12))
    pq.write_table(beyond, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="a label is '7', but there are 3 classes"):
        open_data(str(tmp_path / "t.parquet"))
    assert not list(cache.rglob("*.bin"))


def test_a_row_without_a_picture(tmp_path: Path) -> None:
    made, cells = table(0, 12, struct=False)
    pq.write_table(made.set_column(1, "image", pa.array([*cells[:-1], None], pa.binary())), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="row 12 of column 'image' holds no picture"):
        open_data(str(tmp_path / "t.parquet"))


def test_without_pyarrow_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(table(0, 30)[0], tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install vitreous\[data\]"):
        open_data(str(tmp_path / "t.parquet"))
