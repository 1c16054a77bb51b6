"""`vitreous data check`: output and exit code."""

import json
from pathlib import Path

import pytest
from PIL import Image

import vitreous
from command_line import CommandLine
from images import encoded, smooth
from vitreous.cli.data import data
from vitreous.common.checks import BadValue


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


def test_checkpoint_adds_its_findings(pets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = {"depth": 1, "width": 32, "num_heads": 2, "mlp_width": 32}
    checkpoint, page = pets.parent / "encoder", pets.parent / "out" / "page.html"
    vitreous.save(vitreous.create("ViT-Lite-6/4", num_classes=0, image_size=16, overrides=tiny), checkpoint)
    copy = Image.open(pets / "train/cat/0.png").resize((80, 64))
    copy.save(pets / "val/cat/copy.png")
    with pytest.raises(SystemExit) as status:
        data("check", str(pets), checkpoint=checkpoint, device="cpu", out=page, json=True)
    assert status.value.code == 1
    record = json.loads(capsys.readouterr().out)["suspicions"]
    [leak] = record["near_leaks"]
    assert {sample["name"] for sample in leak["samples"]} == {"train/cat/0.png", "val/cat/copy.png"}
    assert record["page"] == str(page)
    assert page.read_text().count("<img") >= 2
    with pytest.raises(SystemExit):
        data("check", str(pets), checkpoint=checkpoint, device="cpu")
    out = capsys.readouterr().out
    assert "near duplicate" in out
    assert "label errors" in out


def test_page_needs_a_checkpoint(pets: Path) -> None:
    with pytest.raises(BadValue, match="checkpoint"):
        run(pets, pets.parent / "page.html")


def test_long_class_names_are_whole_in_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = " ".join(["a very long name"] * 12)
    for number, name in enumerate((long, "b")):
        (tmp_path / name).mkdir()
        for i in range(3):
            (tmp_path / name / f"{i}.png").write_bytes(encoded(smooth(40, 50, seed=10 * number + i)))
    run(tmp_path)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if long in line]
    assert rows[0][-2:] == ["2", "1"]  # with its numbers beside it


def test_tables_of_labels_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(10):
        (tmp_path / f"{i}.png").write_bytes(encoded(smooth(40, 50, seed=i % 9)))  # the last one is a copy of the first
    labels = ["a;b", "b", "a", "a", "b", "b", "a;b", "a", "b", "a"]
    (tmp_path / "labels.csv").write_text("path,labels\n" + "".join(f"{i}.png,{x}\n" for i, x in enumerate(labels)))
    with pytest.raises(SystemExit):
        data("check", str(tmp_path / "labels.csv"), task="multilabel")
    out = capsys.readouterr().out
    counted = [line.split() for line in out.splitlines() if "2 classes" in line]
    assert sum(map(int, counted[0][2:])) == 10  # images, not labels
    assert "label conflict" in out
    (tmp_path / "numbers.csv").write_text("path,size\n" + "".join(f"{i}.png,{i}\n" for i in range(9)))
    data("check", str(tmp_path / "numbers.csv"), task="regress", target=("size",))
    assert "no problems found" in capsys.readouterr().out
    with pytest.raises(BadValue, match="--task"):
        data("check", str(tmp_path / "numbers.csv"), target=("size",))
