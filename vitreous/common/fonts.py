"""Finds installed fonts for text that Pillow's default font cannot render."""

from functools import cache

from PIL import ImageFont

CJK = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP"),
    *("Source Han Sans SC", "Source Han Sans CN"),
    *("PingFang SC", "Hiragino Sans GB", "Hiragino Sans", "Heiti SC", "Microsoft YaHei", "SimHei", "Yu Gothic"),
    *("WenQuanYi Micro Hei", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Arial Unicode MS"),
    *("Noto Sans CJK KR", "Noto Sans KR", "Apple SD Gothic Neo", "Malgun Gothic"),
)
OTHERS = ("DejaVu Sans",)  # Greek, Cyrillic and more; included in matplotlib
SIZE = 12

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


def font_for(text: str) -> Font | None:
    """Return a font with glyphs for all characters in `text`, or None if there is no such font.

    Characters outside Latin-1 require matplotlib.
    """
    if all(ord(letter) < 256 for letter in text):
        return ImageFont.load_default()
    return next((font for font, letters in _installed() if set(map(ord, text)) <= letters), None)


@cache
def _installed() -> list[tuple[Font, frozenset[int]]]:
    """Return the installed fonts in order of preference, each with the code points that it can draw."""
    try:
        from matplotlib.font_manager import fontManager, get_font
    except ImportError:
        return []
    regular = (400, "normal", "regular")
    fonts = (font for font in fontManager.ttflist if font.style == "normal" and font.weight in regular)
    files = {font.name: font.fname for font in fonts}
    installed = [files[name] for name in (*OTHERS, *CJK) if name in files]
    return [(ImageFont.truetype(file, SIZE), frozenset(get_font(file).get_charmap())) for file in installed]
