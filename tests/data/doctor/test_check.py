import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.common.checks import BadValue
from vitreous.data.doctor.check import check, run_check
from vitreous.data.doctor.findings import Entry

RANDOM = np.random.default_rng(0)


def draw(path: Path, mode: str = "RGB", size: tuple[int, int] = (50, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RANDOM.integers(0, 256, (size[1], size[0], 3), np.uint8)).convert(mode).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for part, count in (("train", 6), ("val", 2)):
        for name in ("cat", "dog"):
            for i in range(count):
                draw(root / part / name / f"{i}.png")
    return root


def test_a_healthy_folder(pets: Path) -> None:
    report = check(str(pets))
    assert report.problems == 0
    assert report.counts == {"train": {"cat": 6, "dog": 6}, "val": {"cat": 2, "dog": 2}}
    assert report.sizes == ((40, 50),) * 3
    assert (report.unreadable, report.leaks, report.conflicts, report.duplicates, report.odd) == ([], [], [], [], {})
    assert "no problems" in str(report)


def test_everything_wrong_at_once(pets: Path) -> None:
    (pets / "train/cat/0.png").write_bytes((pets / "train/cat/0.png").read_bytes()[:100])
    (pets / "train/dog/0.png").write_text("no picture")
    shutil.copy(pets / "train/cat/1.png", pets / "val/cat/copy.png")
    shutil.copy(pets / "train/cat/2.png", pets / "train/dog/copy.png")
    shutil.copy(pets / "train/dog/3.png", pets / "train/dog/copy3.png")
    draw(pets / "train/dog/grey.png", "L")
    draw(pets / "train/dog/tiny.png", size=(8, 9))
    (pets / "train/owl").mkdir()
    draw(pets / "val/fox/1.png")
    report = check(str(pets))
    assert {entry.name for entry, _ in report.unreadable} == {"train/cat/0.png", "train/dog/0.png"}
    assert all(reason for _, reason in report.unreadable)
    assert [[entry.name for entry in group] for group in report.leaks] == [["train/cat/1.png", "val/cat/copy.png"]]
    assert [[entry.label for entry in group] for group in report.conflicts] == [["cat", "dog"]]
    assert [[entry.name for entry in group] for group in report.duplicates] == [
        ["train/dog/3.png", "train/dog/copy3.png"]
    ]
    assert report.odd["grey"] == [Entry("train", "dog", "train/dog/grey.png")]
    assert [entry.name for entry in report.odd["smaller than 32 pixels"]] == ["train/dog/tiny.png"]
    assert any("'train/owl' is an empty class" in problem for problem in report.label_problems)
    assert any("val has 'fox', which train lacks" in problem for problem in report.label_problems)
    assert report.problems == 2 + 2 + 1 + 1
    text = str(report)
    for word in (
        "train/cat/0.png",
        "leak: train/cat/1.png (cat, in train) = val/cat/copy.png (cat, in val)",
        "6 problems",
        "grey: 1",
    ):
        assert word in text


def test_a_leak_that_is_a_conflict_too_is_one_problem(pets: Path) -> None:
    shutil.copy(pets / "train/cat/1.png", pets / "val/dog/copy.png")
    report = check(str(pets))
    assert len(report.leaks) == len(report.conflicts) == report.problems == 1


def test_copies_that_a_split_would_tear_apart(tmp_path: Path) -> None:
    for name in "ab":
        draw(tmp_path / name / "0.png")
        for i in range(1, 10):
            shutil.copy(tmp_path / name / "0.png", tmp_path / name / f"{i}.png")
    report = check(str(tmp_path))
    assert {entry.part for group in report.leaks for entry in group} == {"train", "val"}
    assert report.problems == 2


def test_a_class_too_small_to_split_is_a_problem_and_not_the_end(tmp_path: Path) -> None:
    draw(tmp_path / "a/1.png")
    draw(tmp_path / "b/1.png")
    draw(tmp_path / "b/2.png")
    report = check(str(tmp_path))
    assert report.counts == {"all": {"a": 1, "b": 2}}
    assert len(report.label_problems) == 1
    assert report.label_problems[0].startswith("'a' has one picture only")


def test_a_file_that_vanished(pets: Path) -> None:
    (pets / "train/cat/0.png").unlink()
    (pets / "train/cat/0.png").symlink_to(pets / "nowhere.png")
    ((entry, reason),) = check(str(pets)).unreadable
    assert (entry.name, reason) == ("train/cat/0.png", "No such file or directory")


def test_arrays(tmp_path: Path) -> None:
    x = RANDOM.integers(0, 256, (20, 40, 40, 3), np.uint8)
    y = np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    report = check(str(tmp_path / "a.npz"))
    assert [[entry.name for entry in group] for group in report.leaks] == [["a/train[0]", "a/test[0]"]]


def test_the_command(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pets / "train/dog/0.png").write_text("no picture")
    sheet = pets.parent / "out" / "sheet.png"
    assert run_check(str(pets), None, sheet, as_json=True) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["problems"] == 1
    assert answer["unreadable"][0]["name"] == "train/dog/0.png"
    assert answer["unreadable"][0]["part"] == "train"
    assert answer["sizes"]["median"] == [40, 50]
    assert answer["contact_sheet"] == str(sheet)
    with Image.open(io.BytesIO(sheet.read_bytes())) as image:
        assert image.format == "PNG"
    assert run_check(str(pets), None, pets.parent / "new" / "[red].png", as_json=False) == 1
    out = capsys.readouterr().out
    assert "unreadable: train/dog/0.png (dog, in train)" in out
    assert "new/[red].png" in out
    assert (pets.parent / "new" / "[red].png").is_file()


def test_a_sheet_that_is_no_png_is_refused_before_a_picture_is_read(pets: Path) -> None:
    with pytest.raises(BadValue, match=r"sheet.txt', but must be the name of a file that ends in .png"):
        run_check(str(pets), None, pets.parent / "sheet.txt", as_json=False)
    assert not (pets.parent / "sheet.txt").exists()


def test_a_part_that_is_the_only_one_is_not_named(tmp_path: Path) -> None:
    draw(tmp_path / "a/1.png")
    draw(tmp_path / "b/1.png")
    draw(tmp_path / "b/2.png", "L")
    assert "grey: 1, such as b/2.png (b)" in str(check(str(tmp_path)))


def test_names_of_classes_are_whole_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = " ".join(["a very long name"] * 12)
    for name in (long, "b"):
        for i in range(3):
            draw(tmp_path / name / f"{i}.png")
    run_check(str(tmp_path), None, None, as_json=False)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if long in line]
    assert rows[0][-2:] == ["2", "1"]  # with its numbers beside it


def test_many_classes_and_imbalance_are_told_shortly(tmp_path: Path) -> None:
    counts = np.concatenate([np.full(49, 3), [40]])
    labels = np.repeat(np.arange(50), counts)
    np.savez(tmp_path / "a.npz", x=RANDOM.integers(0, 256, (len(labels), 4, 4), np.uint8), y=labels)
    report = check(str(tmp_path / "a.npz"))
    text = str(report)
    assert report.balance == ("49", 32, "0", 2)
    assert "imbalance: '49' has 32 pictures, '0' has 2" in text
    assert "50 classes" in text
    assert len(text.splitlines()) < 25
