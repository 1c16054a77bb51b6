"""How the pictures of a run look: two greys and one accent colour on white, in the font that matplotlib ships.

matplotlib is imported where something is drawn; its Figure is used without pyplot, so nothing global is left behind.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vitreous.common.fonts import CJK
from vitreous.common.text import single_spaced
from vitreous.inference.mask_images import SOFTWARE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

INK, GREY, PALE, ACCENT = "#24292f", "#6e7781", "#d8dee4", "#1764ab"
DPI = 150


def can_draw() -> bool:
    """Whether matplotlib is there."""
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
    """An empty figure, `width` x `height` inches, that is saved when the block ends."""
    require()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    look: dict[Any, Any] = {
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
    with mpl.rc_context(look), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # of names no font here has; the page has them all
        figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.1, metadata={"Software": SOFTWARE})


def plain(axes: "Axes", title: str = "", x: str = "", y: str = "") -> None:
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
def shades() -> "Colormap":
    """From nearly white to the accent's darkest, in even steps of Oklab, where equal distances look equal."""
    from matplotlib.colors import ListedColormap

    ends = np.array([[0.97, 0.0, -0.003], [0.36, -0.035, -0.105]])
    steps = np.linspace(0, 1, 256)[:, None]
    return ListedColormap(from_oklab(ends[0] * (1 - steps) + ends[1] * steps))


def from_oklab(lab: np.ndarray) -> np.ndarray:
    """Lightness, green to red, blue to yellow: as red, green and blue from 0 to 1; what a screen lacks is clipped."""
    to_lms = np.array(
        [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.291485548]]
    )
    to_rgb = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.707614701],
        ]
    )
    linear = ((lab @ to_lms.T) ** 3 @ to_rgb.T).clip(0, 1)
    return np.asarray(np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055))


@cache
def _families() -> tuple[str, ...]:
    """Font families, best first; a glyph is taken from the first that has it.

    DejaVu Sans comes with matplotlib, so a plot has the same size and line breaks on every machine.
    """
    require()
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ("DejaVu Sans", *(name for name in CJK if name in installed))


@cache
def _glyphs() -> frozenset[int]:
    """Every character that the fonts can draw."""
    from matplotlib.font_manager import FontProperties, fontManager, get_font

    fonts = (get_font(fontManager.findfont(FontProperties(family=[name]))) for name in _families())
    return frozenset().union(*(font.get_charmap() for font in fonts))


def readable(text: str, instead: str = "", longest: int = 22) -> str:
    """A name as a plot can show it: on one line, short, and `instead` where no font has its letters."""
    text = single_spaced(text)
    if not text or not set(map(ord, text)) <= _glyphs():
        text = instead or "".join(char if ord(char) in _glyphs() else "·" for char in text)
    if len(text) <= longest:
        return text
    end = longest // 3  # names that begin alike often differ at the end
    return text[: longest - 1 - end] + "…" + text[-end:]
