"""Data of every kind that changes between a run's start and its resumption."""

import csv
import gzip
import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.open import open_data, open_masked
from vitreous.data.sources.base import DataSet, Source
from vitreous.tasks.semi import Consistency
from vitreous.training import SemiSupervised, TrainConfig
from vitreous.training.run_folder import DataRecord, resume_data

CLASSES = ("cat", "dog")


def png(seed: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make_folder(root: Path, names: list[int]) -> str:
    shutil.rmtree(root / "set", ignore_errors=True)
    for name in names:
        write(root / "set" / CLASSES[name % 2] / f"{name:03d}.png", png(name))
    return str(root / "set")


def make_parts(root: Path, names: list[int]) -> str:
    shutil.rmtree(root / "set", ignore_errors=True)
    for name in names:
        part = "val" if name % 10 > 7 else "train"
        write(root / "set" / part / CLASSES[name % 2] / f"{name:03d}.png", png(name))
    return str(root / "set")


def make_table(root: Path, names: list[int]) -> str:
    make_folder(root, names)
    with open(root / "table.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "label"])
        table.writerows((f"set/{CLASSES[name % 2]}/{name:03d}.png", CLASSES[name % 2]) for name in names)
    return str(root / "table.csv")


def make_shards(root: Path, names: list[int]) -> str:
    with tarfile.open(root / "set.tar", "w") as tar:
        for name in names:
            for ending, content in (("png", png(name)), ("cls", str(name % 2).encode())):
                member = tarfile.TarInfo(f"{name:03d}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return str(root / "set.tar")


def make_arrays(root: Path, names: list[int]) -> str:
    images = np.stack([np.full((8, 8, 3), name, np.uint8) for name in names])
    np.savez(root / "set.npz", images=images, labels=np.array(names) % 2)
    return str(root / "set.npz")


def make_masks(root: Path, names: list[int]) -> str:
    shutil.rmtree(root / "set", ignore_errors=True)
    for name in names:
        write(root / "set" / "images" / f"{name:03d}.png", png(name))
        write(root / "set" / "masks" / f"{name:03d}.png", b"")
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) % 2).save(
            root / "set" / "masks" / f"{name:03d}.png"
        )
    return str(root / "set")


Make = Callable[[Path, list[int]], str]
KINDS: list[Make] = [make_folder, make_parts, make_table, make_shards, make_arrays, make_masks]
NAMED = [kind for kind in KINDS if kind is not make_arrays]


def opened(root: Path, make: Make, names: list[int]) -> tuple[DataSet, tuple[str, ...]]:
    spec = make(root, names)
    data = open_masked(spec) if make is make_masks else open_data(spec)
    return data, data.mask_classes if make is make_masks else data.classes


def recorded(root: Path, data: DataSet, classes: tuple[str, ...]) -> DataRecord:
    DataRecord.of(data, classes).write(root / "data.json.gz")
    return DataRecord.read(root / "data.json.gz")


@pytest.mark.parametrize("make", KINDS)
def test_unchanged_data_is_accepted(make: Make, tmp_path: Path) -> None:
    before = recorded(tmp_path, *opened(tmp_path, make, list(range(40))))
    data, classes = opened(tmp_path, make, list(range(40)))
    assert resume_data(data, before, classes, allow_change=False) is data


@pytest.mark.parametrize("make", NAMED)
@pytest.mark.parametrize("names", [list(range(1, 40)), list(range(41)), list(range(1, 42))])
def test_additions_and_removals_keep_the_split(make: Make, names: list[int], tmp_path: Path) -> None:
    before = recorded(tmp_path, *opened(tmp_path, make, list(range(40))))
    data, classes = opened(tmp_path, make, names)
    with pytest.raises(ValueError, match=r"changed .*\(1 sample (added|removed).*--allow-data-change"):
        resume_data(data, before, classes, allow_change=False)
    now = DataRecord.of(resume_data(data, before, classes, allow_change=True), classes)
    assert len(now.names()) == len(names)
    for split, other in (("train", "val"), ("val", "train")):
        assert not now.names(split) & before.names(other)
    # Accepted changes are recorded: the next resume finds the same data in the same split.
    again, _ = opened(tmp_path, make, names)
    assert DataRecord.of(resume_data(again, now, classes, allow_change=False), classes) == now


@pytest.mark.parametrize("names", [list(range(1, 40)), list(range(42)), [*range(2, 40), 0, 1]])
def test_samples_identified_by_index_are_rejected(names: list[int], tmp_path: Path) -> None:
    before = recorded(tmp_path, *opened(tmp_path, make_arrays, list(range(40))))
    data, classes = opened(tmp_path, make_arrays, names)
    if len(names) == 40:  # the same labels in the same places; pixels are not compared
        assert resume_data(data, before, classes, allow_change=False) is data
        return
    with pytest.raises(ValueError, match="only by their index"):
        resume_data(data, before, classes, allow_change=True)


def test_a_file_moved_from_train_to_val_is_rejected(tmp_path: Path) -> None:
    before = recorded(tmp_path, *opened(tmp_path, make_parts, list(range(40))))
    (tmp_path / "set/train/cat/000.png").rename(tmp_path / "set/val/cat/000.png")
    data = open_data(str(tmp_path / "set"))
    with pytest.raises(ValueError, match="1 training sample would be used for evaluation"):
        resume_data(data, before, data.classes, allow_change=True)


def test_a_row_moved_from_train_to_val_is_rejected(tmp_path: Path) -> None:
    make_folder(tmp_path, list(range(10)))
    table, rows = tmp_path / "table.csv", ["path,label,split"]
    rows += [f"set/{CLASSES[i % 2]}/{i:03d}.png,{CLASSES[i % 2]},{'val' if i > 7 else 'train'}" for i in range(10)]
    table.write_text("\n".join(rows))
    data = open_data(str(table))
    before = recorded(tmp_path, data, data.classes)
    table.write_text("\n".join(rows).replace("002.png,cat,train", "002.png,cat,val"))
    data = open_data(str(table))
    with pytest.raises(ValueError, match=r"1 sample moved to val.*1 training sample would be used"):
        resume_data(data, before, data.classes, allow_change=True)


@pytest.mark.parametrize("allow", [True, False])
def test_other_labels_and_classes_are_rejected(allow: bool, tmp_path: Path) -> None:
    names = list(range(40))
    before = recorded(tmp_path, *opened(tmp_path, make_table, names))
    table = tmp_path / "table.csv"
    text = table.read_text()
    for changed, message in (
        (text.replace("000.png,cat", "000.png,dog"), "relabelled"),
        (text.replace(",cat", ",tiger"), "classes removed: 'cat', classes added: 'tiger'"),
        (text.replace("000.png,cat", "000.png,ant").replace("002.png,cat", "002.png,ant"), "classes added: 'ant'"),
    ):
        table.write_text(changed)
        data = open_data(str(table))
        with pytest.raises(ValueError, match=message):
            resume_data(data, before, data.classes, allow)


def with_unlabelled(data: Path, unlabelled: Path) -> DataSet:
    return Consistency.open_data(TrainConfig(data=data, semi_supervised=SemiSupervised(unlabelled)), None)


def names_of(source: Source | None) -> set[str]:
    assert source is not None
    return {source.name(index) for index in range(len(source))}


def test_unlabelled_images_of_the_data_keep_its_split(tmp_path: Path) -> None:
    """New images change the random split, which must not make validation images unlabelled training images."""
    data = Path(make_folder(tmp_path, list(range(40))))
    started = with_unlabelled(data, data)
    before = recorded(tmp_path, started, CLASSES)
    make_folder(tmp_path, list(range(48)))
    drawn = with_unlabelled(data, data)
    assert names_of(drawn.unlabelled) & names_of(started.val)
    resumed = resume_data(drawn, before, CLASSES, allow_change=True)
    assert names_of(resumed.val) == names_of(started.val)
    assert names_of(resumed.unlabelled) == names_of(resumed.train)


def test_unlabelled_images_of_other_data_may_have_the_same_names(tmp_path: Path) -> None:
    make_folder(tmp_path, list(range(20)))
    more, table = Path(make_folder(tmp_path / "more", list(range(10, 20)))), tmp_path / "set" / "table.csv"
    rows = [f"{CLASSES[i % 2]}/{i:03d}.png,{CLASSES[i % 2]},{'val' if i > 7 else 'train'}" for i in range(12)]
    table.write_text("\n".join(["path,label,split", *rows[:10]]))
    before = recorded(tmp_path, with_unlabelled(table, more), CLASSES)
    table.write_text("\n".join(["path,label,split", *rows]))
    (more / "cat" / "018.png").unlink()
    now = with_unlabelled(table, more)
    with pytest.raises(ValueError, match=r"\(2 samples added, such as .*, 1 sample removed from --unlabelled"):
        resume_data(now, before, CLASSES, allow_change=False)
    assert len(resume_data(now, before, CLASSES, allow_change=True).val) == 4


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no gzip",
        b"\x1f\x8b\x08\x00cut",
        gzip.compress(b"{}", mtime=0)[:-1],
        gzip.compress(bytes(1 << 28), mtime=0),
    ],
    ids=["empty", "no gzip", "cut header", "cut", "bomb"],
)
def test_a_damaged_record_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.json.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"data\.json\.gz"):
        DataRecord.read(tmp_path / "data.json.gz")
