import sys
from pathlib import Path

import numpy as np
import pytest

from vitreous.report import style as look


def test_shades_are_even_to_the_eye() -> None:
    """Lightness (CIELAB's L*, another space than the one they are made in) falls in nearly equal steps."""
    rgb = look.shades()(np.linspace(0, 1, 21))[:, :3]
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]
    lightness = 116 * np.cbrt(luminance) - 16
    steps = -np.diff(lightness)
    assert lightness[0] > 93
    assert lightness[-1] < 30
    assert steps.min() > 0.8 * steps.mean()
    assert steps.max() < 1.2 * steps.mean()


def test_every_character_shown_has_a_glyph() -> None:
    for text in ("plain", "猫", "x猫", "🐱🐱", "naïve café", "a\x00b\n\tc", "\udcff", "Ω → β", "\U0010fffd"):
        for instead in ("", "class 3"):
            shown = look.readable(text, instead)
            assert set(map(ord, shown)) <= look._glyphs()
            assert "\n" not in shown
    assert look.readable("plain", "class 3") == "plain"
    assert look.readable("\U0010fffd", "class 3") == "class 3"  # for private use: no font has it


def test_long_names_keep_both_ends() -> None:
    one, two = (look.readable(f"a very long name of a class, number {i}", longest=20) for i in (1, 2))
    assert one != two
    assert len(one) == len(two) == 20


def test_without_matplotlib_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    assert not look.can_draw()
    with pytest.raises(ValueError, match=r"pip install vitreous\[plot\]"), look.drawing(tmp_path / "x.png", 1, 1):
        pass
