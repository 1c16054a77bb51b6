"""`vitreous data check`: output and exit code."""

import json
from pathlib import Path

import pytest
from PIL import Image

from command_line import CommandLine
from images import encoded, smooth
from vitreous.cli.data import data


def run(root: Path, out: Path | None = None, as_json: bool = False) -> int:
    try:
        data("check", str(root), out=out, json=as_json)
    except SystemExit as status:
        return int(str(status.code))
    return 0


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for number, name in enumerate(("cat", "dog")):
            for i in range(3):
                path = tmp_path / "pets" / split / name / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encoded(smooth(40, 50, seed=100 * number + 10 * len(split) + i)))
    return tmp_path / "pets"


def test_exit_code_is_one_with_problems_and_zero_without(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(pets) == 0
    assert "no problems" in capsys.readouterr().out
    (pets / "train/dog/0.png").write_text("not an image")
    assert run(pets, pets.parent / "new" / "[red].png") == 1
    out = capsys.readouterr().out
    assert "unreadable: train/dog/0.png" in out
    assert "new/[red].png" in out
    assert (pets.parent / "new" / "[red].png").is_file()


def test_an_empty_class_folder_is_a_problem(pets: Path, command: CommandLine) -> None:
    (pets / "train" / "cow").mkdir()
    done = command("data", "check", pets)
    assert done.returncode == 1
    assert "no problems" not in done.stdout


def test_json(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (pets / "train/dog/0.png").write_text("not an image")
    sheet = pets.parent / "out" / "sheet.png"
    assert run(pets, sheet, as_json=True) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == 1
    assert report["unreadable"][0]["name"] == "train/dog/0.png"
    assert report["unreadable"][0]["split"] == "train"
    assert report["sizes"]["median"] == [40, 50]
    assert report["contact_sheet"] == str(sheet)
    with Image.open(sheet) as image:
        assert image.format == "PNG"


def test_long_class_names_are_whole_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = " ".join(["a very long name"] * 12)
    for number, name in enumerate((long, "b")):
        (tmp_path / name).mkdir()
        for i in range(3):
            (tmp_path / name / f"{i}.png").write_bytes(encoded(smooth(40, 50, seed=10 * number + i)))
    run(tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if long in line]
    assert rows[0][-2:] == ["2", "1"]  # with its numbers beside it
