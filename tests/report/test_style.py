import sys
from pathlib import Path

import pytest

from vitreous.report import plots as style


def test_every_character_shown_has_a_glyph() -> None:
    for text in ("plain", "猫", "x猫", "🐱🐱", "naïve café", "a\x00b\n\tc", "\udcff", "Ω → β", "\U0010fffd"):
        for instead in ("", "class 3"):
            shown = style.readable(text, instead)
            assert set(map(ord, shown)) <= style._glyphs()
            assert "\n" not in shown
    assert style.readable("plain", "class 3") == "plain"
    assert style.readable("\U0010fffd", "class 3") == "class 3"  # for private use: no font has it


def test_long_names_keep_both_ends() -> None:
    one, two = (style.readable(f"a very long name of a class, number {i}", longest=20) for i in (1, 2))
    assert one != two
    assert len(one) == len(two) == 20


def test_error_without_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    assert not style.can_draw()
    with pytest.raises(ValueError, match=r"pip install \"vitreous\[plot\]\""), style.drawing(tmp_path / "x.png", 1, 1):
        pass
