from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from PIL import Image

from vitreous.common import fonts
from vitreous.common.checks import BadValue
from vitreous.common.fonts import font_for
from vitreous.data.doctor import check_data
from vitreous.data.doctor.contact_sheet import CAPTION, GAP, THUMB, contact_sheet, write_sheet
from vitreous.data.sources.base import ArraySource

# One colour per class.
COLOURS = np.array([[250, 0, 0], [0, 250, 0], [0, 0, 250]], np.uint8)


def source(labels: list[int], size: tuple[int, int] = (20, 20)) -> ArraySource:
    images = np.broadcast_to(COLOURS[labels][:, None, None, :], (len(labels), *size, 3)).copy()
    return ArraySource(images, np.array(labels), ("red", "green", "blue"), "x")


def test_sheet_has_a_row_per_class() -> None:
    sheet = contact_sheet({"train": source([0] * 20 + [1] * 3), "val": source([1, 2])})
    pixels = np.asarray(sheet)
    for row, (label, count) in enumerate([(0, 8), (1, 4), (2, 1)]):
        y = GAP + row * (THUMB + CAPTION + GAP) + CAPTION + THUMB // 2
        for place in range(8):
            x = GAP + place * (THUMB + GAP) + THUMB // 2
            expected = COLOURS[label] if place < count else [255, 255, 255]
            assert pixels[y, x].tolist() == list(expected)
        caption = pixels[y - THUMB // 2 - CAPTION : y - THUMB // 2]
        assert (caption < 128).any()  # the caption is drawn


def test_long_images_keep_their_aspect_ratio() -> None:
    sheet = np.asarray(contact_sheet({"train": source([0, 1, 2], size=(10, 40))}))
    red = (sheet == COLOURS[0]).all(axis=-1)
    rows, columns = np.flatnonzero(red.any(axis=1)), np.flatnonzero(red.any(axis=0))
    assert len(columns) == THUMB
    assert len(rows) == THUMB // 4


def test_dark_16_bit_images_are_shown_in_their_value_range(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(2):
            Image.fromarray(np.full((40, 40), 4000 + i, np.uint16)).save(tmp_path / "data" / name / f"{i}.png")
    sheet = tmp_path / "sheet.png"
    check_data(str(tmp_path / "data"), contact_sheet=sheet)
    pixels = np.asarray(Image.open(sheet).convert("L"))
    assert ((pixels > 240) & (pixels < 255)).mean() > 0.1
    assert (pixels < 30).mean() < 0.05


@pytest.mark.parametrize("classes", [1, 20, 21, 300])
def test_any_number_of_classes_works(tmp_path: Path, classes: int) -> None:
    names = tuple(f"class {i} 猫" for i in range(classes))
    images = np.zeros((classes, 4, 4, 1), np.uint8)
    parts = {"train": ArraySource(images, np.arange(classes), names, "x")}
    with Image.open(write_sheet(parts, tmp_path / "new" / "sheet.png")) as sheet:
        dark = (np.asarray(sheet).max(axis=-1) == 0).sum()
    assert dark >= classes * THUMB**2


def test_unreadable_images_are_skipped() -> None:
    broken = source([0, 1, 2])
    broken.image = lambda index: b"nothing"  # type: ignore[method-assign]
    assert contact_sheet({"train": broken}).width > 0


@pytest.mark.parametrize("name", ["sheet.txt", "sheet", "sheet.jpg"])
def test_only_one_png_file_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadValue, match=f"{name}', but must be a .png file name"):
        write_sheet({"train": source([0, 1, 2])}, tmp_path / name)
    assert not list(tmp_path.iterdir())


def caption(name: str) -> np.ndarray:
    one = ArraySource(np.zeros((1, 4, 4, 1), np.uint8), np.array([0]), (name,), "x")
    return np.asarray(contact_sheet({"train": one}))[: GAP + CAPTION]


def test_cyrillic_names_use_matplotlibs_bundled_font() -> None:
    assert (caption("кошка") != caption("class 0")).any()


def test_chinese_names_are_drawn_if_a_font_supports_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = font_manager.FontManager()
    manager.ttflist = [font for font in manager.ttflist if font.name not in fonts.CJK]
    monkeypatch.setattr(font_manager, "fontManager", manager)

    def captions() -> list[np.ndarray]:
        fonts._installed.cache_clear()
        return [caption(name) for name in ("猫", "狗", "class 0")]

    cat, dog, number = captions()
    assert (cat == number).all()
    assert (dog == number).all()
    manager.addfont(font_with(tmp_path / "cjk.ttf", fonts.CJK[0], "猫狗 (),0123456789"))
    cat, dog, number = captions()
    fonts._installed.cache_clear()
    assert (cat != dog).any()
    assert (cat != number).any()


def font_with(path: Path, family: str, letters: str) -> Path:
    """Create a font whose glyphs are bars of different heights."""
    builder = FontBuilder(1000)
    names = [".notdef", *(f"glyph{i}" for i in range(len(letters)))]
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord(letter): f"glyph{i}" for i, letter in enumerate(letters)})
    glyphs = {}
    for height, name in enumerate(names, start=2):
        pen = TTGlyphPen(None)
        pen.moveTo((100, 0))
        for corner in ((100, 40 * height), (900, 40 * height), (900, 0)):
            pen.lineTo(corner)
        pen.closePath()
        glyphs[name] = pen.glyph()
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(names, (1000, 100)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": family, "styleName": "Regular"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(path)
    return path


def test_class_names_without_a_font_become_numbers() -> None:
    assert font_for("\U0010fffd") is None  # a private-use character that no font contains
