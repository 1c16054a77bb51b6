"""Style of plots: two greys and one accent colour on white, in the font that matplotlib ships.

matplotlib is imported when something is drawn, and used without pyplot, so that no global state remains.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitreous.common.fonts import CJK
from vitreous.report.png import SOFTWARE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, PALE, ACCENT = "#24292f", "#6e7781", "#d8dee4", "#1764ab"
DPI = 150


def can_draw() -> bool:
    """True if matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def require() -> None:
    if not can_draw():
        raise ValueError("plots need matplotlib: pip install vitreous[plot]")


@contextmanager
def drawing(
    path: Path, width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Iterator["Figure"]:
    """Yield an empty figure of `width` x `height` inches; save it when the block ends."""
    require()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "font.family": list(_families()),
        "font.size": 10,
        "text.color": INK,
        "text.parse_math": False,  # a class may be called $x$
        "text.usetex": False,
        "axes.grid": False,
        "axes.facecolor": "white",
        "axes.labelcolor": GREY,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # in names that no installed font can draw
        figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.1, metadata={"Software": SOFTWARE})


def plain(axes: "Axes", title: str = "", x: str = "", y: str = "") -> None:
    """Set labels, and remove the frame above and to the right."""
    if title:
        axes.set_title(title, loc="left", fontsize=10.5, fontweight="bold", pad=9)
    axes.set(xlabel=x, ylabel=y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(color=PALE)


def percent(axes: "Axes", side: str) -> None:
    from matplotlib.ticker import PercentFormatter

    getattr(axes, f"{side}axis").set_major_formatter(PercentFormatter(1))


@cache
def _families() -> tuple[str, ...]:
    """Font families; a glyph is taken from the first that has it.

    DejaVu Sans comes with matplotlib, so that plots have the same size and line breaks on every machine.
    """
    require()
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ("DejaVu Sans", *(name for name in CJK if name in installed))


@cache
def _glyphs() -> frozenset[int]:
    """Code points that the fonts can draw."""
    from matplotlib.font_manager import FontProperties, fontManager, get_font

    fonts = (get_font(fontManager.findfont(FontProperties(family=[name]))) for name in _families())
    return frozenset().union(*(font.get_charmap() for font in fonts))


def readable(text: str, instead: str = "", longest: int = 22) -> str:
    """Shorten a name to one line that the fonts can draw, or replace it by `instead`."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if not text or not set(map(ord, text)) <= _glyphs():
        text = instead or "".join(char if ord(char) in _glyphs() else "·" for char in text)
    if len(text) <= longest:
        return text
    end = longest // 3  # similar names often differ at the end
    return text[: longest - 1 - end] + "…" + text[-end:]
