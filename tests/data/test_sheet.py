from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitreous.data.fonts import font_for
from vitreous.data.sheet import CAPTION, GAP, THUMB, contact_sheet, write_sheet
from vitreous.data.source import ArraySource
from vitreous.model.checks import BadValue

# Every class has its own colour.
COLOURS = np.array([[250, 0, 0], [0, 250, 0], [0, 0, 250]], np.uint8)


def source(labels: list[int], size: tuple[int, int] = (20, 20)) -> ArraySource:
    images = np.broadcast_to(COLOURS[labels][:, None, None, :], (len(labels), *size, 3)).copy()
    return ArraySource(images, np.array(labels), ("red", "green", "blue"), "x")


def test_a_row_for_every_class() -> None:
    sheet = contact_sheet({"train": source([0] * 20 + [1] * 3), "val": source([1, 2])})
    pixels = np.asarray(sheet)
    for row, (label, count) in enumerate([(0, 8), (1, 4), (2, 1)]):
        y = GAP + row * (THUMB + CAPTION + GAP) + CAPTION + THUMB // 2
        for place in range(8):
            x = GAP + place * (THUMB + GAP) + THUMB // 2
            expected = COLOURS[label] if place < count else [255, 255, 255]
            assert pixels[y, x].tolist() == list(expected)
        caption = pixels[y - THUMB // 2 - CAPTION : y - THUMB // 2]
        assert (caption < 128).any()  # something is written


def test_long_pictures_keep_their_shape() -> None:
    sheet = np.asarray(contact_sheet({"train": source([0, 1, 2], size=(10, 40))}))
    red = (sheet == COLOURS[0]).all(axis=-1)
    rows, columns = np.flatnonzero(red.any(axis=1)), np.flatnonzero(red.any(axis=0))
    assert len(columns) == THUMB
    assert len(rows) == THUMB // 4


@pytest.mark.parametrize("classes", [1, 20, 21, 300])
def test_any_number_of_classes_fits(tmp_path: Path, classes: int) -> None:
    names = tuple(f"class {i} 猫" for i in range(classes))
    images = np.zeros((classes, 4, 4, 1), np.uint8)
    parts = {"train": ArraySource(images, np.arange(classes), names, "x")}
    with Image.open(write_sheet(parts, tmp_path / "new" / "sheet.png")) as sheet:
        dark = (np.asarray(sheet).max(axis=-1) == 0).sum()
    assert dark >= classes * THUMB**2


def test_what_cannot_be_read_is_left_out() -> None:
    broken = source([0, 1, 2])
    broken.picture = lambda index: b"nothing"  # type: ignore[method-assign]
    assert contact_sheet({"train": broken}).width > 0


@pytest.mark.parametrize("name", ["sheet.txt", "sheet", "sheet.jpg"])
def test_a_sheet_is_a_png_and_nothing_else_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadValue, match=f"{name}', but must be the name of a file that ends in .png"):
        write_sheet({"train": source([0, 1, 2])}, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_names_in_other_scripts_are_written_where_a_font_has_them() -> None:
    """Two names of one length differ on the sheet, as they would not if both were told as a number."""

    def caption(name: str) -> np.ndarray:
        one = ArraySource(np.zeros((1, 4, 4, 1), np.uint8), np.array([0]), (name,), "x")
        return np.asarray(contact_sheet({"train": one}))[: GAP + CAPTION]

    assert (caption("кошка") != caption("class 0")).any()  # matplotlib brings a font that has these
    if font_for("猫狗") is None:
        pytest.skip("no font here has Chinese")
    assert (caption("猫") != caption("狗")).any()
    assert (caption("猫") != caption("class 0")).any()


def test_what_no_font_has_is_told_as_a_number() -> None:
    assert font_for("\U0010fffd") is None  # for private use, so that no font has it
