"""`vitreous data check` of a folder with masks."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.doctor.check import check_masks, run_check
from vitreous.data.masks.folders import has_masks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pictures of 8 x 8: half of each is of class 1, a quarter of class 2, and a quarter ignored."""
    rng = np.random.default_rng(0)
    for index in range(10):
        part = "train" if index < 6 else "val"
        for kind in ("images", "masks"):
            (tmp_path / "set" / kind / part).mkdir(parents=True, exist_ok=True)
        mask = np.full((8, 8), 1, np.uint8)
        mask[4:, :4], mask[4:, 4:] = 2, 255
        if index == 0:
            mask[mask == 2] = 1
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
            tmp_path / f"set/images/{part}/{index}.png"
        )
        Image.fromarray(mask).save(tmp_path / f"set/masks/{part}/{index}.png")
    (tmp_path / "set" / "classes.txt").write_text("1 [cat]\n2 dog\n")
    return tmp_path / "set"


def test_every_class_is_counted_in_pictures_and_in_pixels(folder: Path) -> None:
    report = check_masks(folder)
    assert report.count == 0
    assert report.classes == ("[cat]", "dog")
    assert report.cover is not None
    train, val = report.cover["train"], report.cover["val"]
    assert (train.pictures, val.pictures) == ([6, 5], [4, 4])
    assert val.shares == pytest.approx([2 / 3, 1 / 3])
    assert train.shares == pytest.approx([(32 * 5 + 48) / 288, 80 / 288])
    assert (train.ignored, val.ignored) == (0.25, 0.25)


def test_what_is_wrong_is_named_and_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "masks/train/3.png").unlink()
    Image.fromarray(np.full((8, 8), 7, np.uint8)).save(folder / "masks/train/4.png")
    assert run_check(str(folder), None, None, as_json=True) == 2
    record = json.loads(capsys.readouterr().out)
    assert record["problems"] == 2
    assert record["mask_problems"][0].startswith("1 of 10 pictures has no mask: 'images/train/3.png'")
    assert "7 (in 1 mask)" in record["mask_problems"][1]


def test_the_same_picture_in_two_parts_is_a_leak(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "images/val/6.png").write_bytes((folder / "images/train/0.png").read_bytes())
    assert run_check(str(folder), None, None, as_json=False) == 1
    out = capsys.readouterr().out
    assert "leak: images/train/0.png (picture, in train) = images/val/6.png" in out
    assert "[cat]" in out
    assert "1 problem" in out


def test_a_class_that_train_lacks_is_a_problem_with_its_share(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for index in range(6):
        Image.fromarray(np.full((8, 8), 1, np.uint8)).save(folder / f"masks/train/{index}.png")
    assert run_check(str(folder), None, None, as_json=True) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["problems"] == 1
    assert record["mask_problems"][0].startswith("val has 'dog' (33.3% of its pixels), which no mask of train has")
    run_check(str(folder), None, None, as_json=False)
    out = capsys.readouterr().out
    assert "val has 'dog' (33.3% of its pixels)" in out
    assert "1 problem" in out


def test_smoothed_masks_are_a_problem_and_no_table_of_grey_levels(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "classes.txt").unlink()
    for index, path in enumerate(sorted((folder / "masks").glob("*/*.png"))):
        Image.fromarray(((np.arange(64) + 25 * index) % 256).astype(np.uint8).reshape(8, 8)).save(path)
    assert run_check(str(folder), None, None, as_json=False) == 1
    out = capsys.readouterr().out
    assert "they look smoothed" in out
    assert len(out.splitlines()) < 5


def test_a_folder_of_classes_has_no_masks(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plain" / "cat").mkdir(parents=True)
    assert has_masks(folder)
    assert not has_masks(tmp_path / "plain")
    assert not has_masks(tmp_path / "nowhere")
