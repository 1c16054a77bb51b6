"""Fonts for names that Pillow's own font has no letters for, where the machine has such fonts."""

from functools import cache
from typing import TYPE_CHECKING

from PIL import ImageFont

if TYPE_CHECKING:
    from matplotlib.font_manager import FontManager

CJK = (
    *(
        "Noto Sans CJK SC",
        "Noto Sans CJK JP",
        "Noto Sans SC",
        "Noto Sans JP",
        "Source Han Sans SC",
        "Source Han Sans CN",
    ),
    *("PingFang SC", "Hiragino Sans GB", "Hiragino Sans", "Heiti SC", "Microsoft YaHei", "SimHei", "Yu Gothic"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Arial Unicode MS"),
    *("Noto Sans CJK KR", "Noto Sans KR", "Apple SD Gothic Neo", "Malgun Gothic"),
)
OTHERS = ("DejaVu Sans",)  # Greek, Cyrillic and more; matplotlib brings it along
SIZE = 12

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


def font_for(text: str) -> Font | None:
    """A font that has every letter of the text; None where no such font is found.

    Finding fonts is matplotlib's work: without it, only Western European letters can be drawn.
    """
    if all(ord(letter) < 256 for letter in text):
        return ImageFont.load_default()
    return next((font for font, letters in _installed() if set(map(ord, text)) <= letters), None)


@cache
def _installed() -> list[tuple[Font, frozenset[int]]]:
    """Fonts that are here, the best first, and the letters that each has."""
    try:
        from matplotlib.font_manager import fontManager, get_font
    except ImportError:
        return []
    files = _files(fontManager)
    there = [files[name] for name in (*OTHERS, *CJK) if name in files]
    return [(ImageFont.truetype(file, SIZE), frozenset(get_font(file).get_charmap())) for file in there]


def _files(manager: "FontManager") -> dict[str, str]:
    """The upright one of ordinary weight of each family."""
    plain = (one for one in manager.ttflist if one.style == "normal" and one.weight in (400, "normal", "regular"))
    return {one.name: one.fname for one in plain}
