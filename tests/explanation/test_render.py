import numpy as np

from vitreous.explanation.render import LABEL, scaled, sheet, tile_for
from vitreous.report.colours import css, heat, paint, signed


def lightness(table: np.ndarray) -> np.ndarray:
    """CIE L*, a measure that the tables were not made with."""
    linear = np.where(table <= 0.04045, table / 12.92, ((table + 0.055) / 1.055) ** 2.4)
    y = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


def test_lightness_rises_evenly() -> None:
    steps = np.diff(lightness(heat())[::16])
    assert (steps > 0).all()
    assert steps.max() < 2.5 * np.median(steps)
    assert lightness(heat())[0] < 8
    assert lightness(heat())[-1] > 92


def test_signs_are_alike_in_lightness_and_apart_in_colour() -> None:
    table = signed()
    np.testing.assert_allclose(lightness(table), lightness(table)[::-1], atol=6)
    assert lightness(table).argmax() in (127, 128)
    assert table[0, 2] > table[0, 0]
    assert table[-1, 0] > table[-1, 2]


def test_paint_and_css_agree() -> None:
    ends = paint(np.array([0.0, 1.0, np.nan, 7.0]), heat())
    assert (ends[0] == ends[2]).all()
    assert (ends[1] == ends[3]).all()
    assert f"#{bytes(ends[0]).hex()}" in css(heat())


def test_scaling() -> None:
    assert scaled(np.array([0.0, 0.0])).tolist() == [0, 0]
    assert scaled(np.array([3.0, 3.0])).tolist() == [1, 1]
    assert scaled(np.array([1.0, 3.0]), from_zero=False).tolist() == [0, 1]
    assert scaled(np.array([-1.0, 1.0])).tolist() == [0, 1]


def test_tiles_keep_the_aspect() -> None:
    assert tile_for((4, 4), 100) == (100, 100)
    assert tile_for((37, 20), 20) == (20, 11)
    assert tile_for((1, 3), 9) == (3, 9)


def test_a_sheet_has_tiles_names_and_no_ground() -> None:
    one, other = np.full((2, 3, 3), 10, dtype=np.uint8), np.full((2, 3, 3), 200, dtype=np.uint8)
    plain = np.asarray(sheet([[one, other], [other]], (20, 30)))
    assert plain.shape == (46, 66, 4)
    assert plain[0, 0].tolist() == [10, 10, 10, 255]
    assert plain[45, 0].tolist() == plain[0, 65].tolist() == [200, 200, 200, 255]
    assert plain[45, 65, 3] == 0
    named = np.asarray(sheet([[one, other], [other, one]], (20, 30), ["layer 0", "layer 1"], ["a", "b"]))
    left = named.shape[1] - 66
    assert named.shape[0] == 46 + 24
    assert left > 30
    written = named[24:44, : left - 10]
    assert written[..., 3].any()
    assert (written[written[..., 3] == 255][:, :3] == LABEL).all()
