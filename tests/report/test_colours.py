import numpy as np
import pytest

from vitreous.report.colours import css, heat, paint, shades, signed


def lightness(table: np.ndarray) -> np.ndarray:
    """CIE L*, which was not used to create the tables."""
    linear = np.where(table <= 0.04045, table / 12.92, ((table + 0.055) / 1.055) ** 2.4)
    y = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


def test_lightness_rises_evenly() -> None:
    steps = np.diff(lightness(heat())[::16])
    assert (steps > 0).all()
    assert steps.max() < 2.5 * np.median(steps)
    assert lightness(heat())[0] < 8
    assert lightness(heat())[-1] > 92


def test_positive_and_negative_colours_have_equal_lightness() -> None:
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


def test_shades_are_perceptually_uniform() -> None:
    steps = -np.diff(lightness(shades()(np.linspace(0, 1, 21))[:, :3]))
    assert lightness(shades()(np.array([0.0, 1.0]))[:, :3]).round().tolist() == pytest.approx([97, 25], abs=5)
    assert steps.min() > 0.8 * steps.mean()
    assert steps.max() < 1.2 * steps.mean()
