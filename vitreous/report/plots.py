"""Plot style, plots of a run, image grids and PNG files."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float, Int, UInt8
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from vitreous.common.atomic_files import atomic_file
from vitreous.common.fonts import CJK
from vitreous.report.colours import shades

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# ---- PNG files -------------------------------------------------------------------------------------------------------

SOFTWARE = "vitreous"


def write_png(image: Image.Image, path: Path, optimize: bool = False) -> None:
    """Write a PNG atomically, and mark it as written by Vitreous."""
    about = PngInfo()
    about.add_text("Software", SOFTWARE)
    with atomic_file(path) as temporary:
        image.save(temporary, "PNG", pnginfo=about, optimize=optimize)


def is_written_here(path: Path) -> bool:
    """Return True if a file is a PNG written by Vitreous."""
    try:
        with Image.open(path) as image:
            return image.info.get("Software") == SOFTWARE
    except OSError:
        return False


# ---- Style -----------------------------------------------------------------------------------------------------------

INK, GREY, PALE, ACCENT = "#24292f", "#6e7781", "#d8dee4", "#1764ab"
DPI = 150


def can_draw() -> bool:
    """Return True if matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def drawing(
    path: Path, width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Iterator["Figure"]:
    """Yield an empty figure of `width` x `height` inches. Save the figure when the block ends."""
    if not can_draw():
        raise ValueError('plots need matplotlib: pip install "vitreous[plot]"')
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "font.family": list(_families()),
        "font.size": 10,
        "text.color": INK,
        "text.parse_math": False,  # class names may contain $
        "text.usetex": False,
        "axes.grid": False,
        "axes.facecolor": "white",
        "axes.labelcolor": GREY,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # fonts may lack characters of class names
        figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
        FigureCanvasAgg(figure)
        yield figure
        # A grid of photos is 12% larger than with the default compression, but takes half the time.
        options: dict[str, Any] = {"metadata": {"Software": SOFTWARE}, "pil_kwargs": {"compress_level": 2}}
        figure.savefig(path, format="png", bbox_inches="tight", pad_inches=0.1, **options)


def plain(axes: "Axes", title: str = "", x: str = "", y: str = "") -> None:
    """Set the title and the axis labels, and hide the top and right spines."""
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
    """Return the font families for plots. The first ships with matplotlib, so layouts are the same on every machine."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ("DejaVu Sans", *(name for name in CJK if name in installed))


@cache
def _glyphs() -> frozenset[int]:
    """Return the code points that the plot fonts can draw."""
    from matplotlib.font_manager import FontProperties, fontManager, get_font

    fonts = (get_font(fontManager.findfont(FontProperties(family=[name]))) for name in _families())
    return frozenset().union(*(font.get_charmap() for font in fonts))


def readable(text: str, instead: str = "", longest: int = 22) -> str:
    """Format a name as one line of limited length. Return `instead` if the fonts cannot draw the name."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if not text or not set(map(ord, text)) <= _glyphs():
        text = instead or "".join(char if ord(char) in _glyphs() else "·" for char in text)
    if len(text) <= longest:
        return text
    end = longest // 3  # keep the end, where similar names often differ
    return text[: longest - 1 - end] + "…" + text[-end:]


MOST_NUMBERS, MOST_NAMES, MOST_CLASSES = 30, 60, 2000  # maximum number of classes to show counts, names, the plot
# Curve titles, and the metrics among them that select the best evaluation; all but R² are shown as percentages.
TITLES = {
    "loss": "loss", "top1": "top-1", "miou": "mean IoU", "map": "mAP", "mae": "mean absolute error",
    "r2": "R²", "lr": "learning rate",
}  # fmt: skip
BEST = ("top1", "miou", "map", "r2")
FEW = 10  # calibration bins with fewer images are drawn hollow

# ---- Curves ----------------------------------------------------------------------------------------------------------


def curves(path: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Plot loss, accuracy and learning rate from the rows of metrics.jsonl, and mark the best evaluation."""
    where = _axis(history)
    panels = {key: _series(history, where, key) for key in TITLES}
    panels = {key: series for key, series in panels.items() if any(series)}
    best = best_row(history)
    with drawing(path, 3.7 * max(len(panels), 1), 3.1) as figure:
        for index, (key, (training, validation)) in enumerate(panels.items()):
            axes = figure.add_subplot(1, len(panels), index + 1)
            _panel(axes, key, where, training, validation)
            if best is not None and (y := validation.get(best.get(where, math.nan))) is not None:
                axes.axvline(best[where], color=PALE, zorder=0)
                axes.plot([best[where]], [y], "o", color=ACCENT, markersize=6)
            if training and validation and not figure.axes[0].get_legend():
                axes.legend(frameon=False, loc="best", labelcolor="linecolor")
        if not panels:
            figure.text(0.5, 0.5, "no metrics", ha="center", color=GREY)


def _panel(
    axes: "Axes", key: str, where: str, training: Mapping[float, float], validation: Mapping[float, float]
) -> None:
    plain(axes, title=TITLES[key], x=where)
    _line(axes, training, GREY if key != "lr" else INK, "training")
    _line(axes, validation, ACCENT, "validation")
    places, values = [*training, *validation], [*training.values(), *validation.values()]
    if key in BEST and key != "r2":
        percent(axes, "y")
    elif key == "r2":
        axes.set_ylim(max(min(values), -1.0) - 0.05, 1.02)  # an untrained model can be arbitrarily bad
    else:
        axes.set_ylim(min(0.0, *values), 1.05 * max(values) or 1.0)
    if key == "lr":
        axes.yaxis.set_major_formatter("{x:g}" if max(values) >= 1e-3 else "{x:.1e}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", integer=True, nbins=6)
    if min(places) == max(places):  # centre a single point
        axes.set_xlim(places[0] - 1, places[0] + 1)


def best_row(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the row with the highest value of the first metric of BEST that occurs.

    Ties are broken in favour of the lower loss, then of the later row. If no row has such a metric, return the
    row with the lowest loss, or None if no row has a loss.
    """

    def loss(row: Mapping[str, Any]) -> float:
        return row["val_loss"] if is_number(row.get("val_loss")) else math.inf

    for key in (f"val_{metric}" for metric in BEST):
        if rows := [row for row in history if is_number(row.get(key))]:
            return max(reversed(rows), key=lambda row: (row[key], -loss(row)))
    return min((row for row in reversed(history) if is_number(row.get("val_loss"))), key=loss, default=None)


def _axis(history: Sequence[Mapping[str, Any]]) -> str:
    """Return `epoch`, or `step` if several rows have the same epoch."""
    epochs, steps = ([row[key] for row in history if is_number(row.get(key))] for key in ("epoch", "step"))
    shared = len(epochs) < len(history) or len(set(epochs)) < len(set(steps))
    return "step" if shared and len(steps) == len(history) else "epoch"


def _series(
    history: Sequence[Mapping[str, Any]], where: str, key: str
) -> tuple[dict[float, float], dict[float, float]]:
    """Return the training and validation values of the metric `key` by epoch or step. Later rows take precedence."""
    found: tuple[dict[float, float], dict[float, float]] = ({}, {})
    for row in history:
        for series, name in ((0, key), (0, f"train_{key}"), (1, f"val_{key}")):
            if is_number(row.get(name)) and is_number(row.get(where)):
                found[series][row[where]] = row[name]
    return found


def is_number(number: object) -> bool:
    return isinstance(number, int | float) and math.isfinite(number)


def _line(axes: "Axes", points: Mapping[float, float], color: str, name: str) -> None:
    x = sorted(points)
    y = np.array([points[place] for place in x])
    many = len(x) > 300
    if many:  # draw noisy steps in a pale colour, with a moving average on top
        axes.plot(x, y, color=PALE, linewidth=0.8)
        width = len(x) // 50
        y = np.convolve(np.pad(y, (width // 2, width - 1 - width // 2), mode="edge"), np.ones(width) / width, "valid")
    axes.plot(x, y, color=color, linewidth=1.6, label=name, marker="o" if len(x) <= 25 else None, markersize=3)


# ---- Evaluation ------------------------------------------------------------------------------------------------------


def precision_recall(path: Path, recall: Float[np.ndarray, "n"], precision: Float[np.ndarray, "n"]) -> None:
    """Plot precision against recall."""
    with drawing(path, 4.2, 3.4) as figure:
        axes = figure.add_subplot()
        plain(axes, x="recall", y="precision")
        axes.step([0, *recall], [precision[0], *precision], color=ACCENT, where="pre")
        axes.set(xlim=(0, 1.01), ylim=(0, 1.02))
        percent(axes, "x")
        percent(axes, "y")


Values = Mapping[str, Float[np.ndarray, "n"]]  # by target


def predictions(path: Path, truth: Values, predicted: Values) -> None:
    """Plot predicted against true values, one panel per target."""
    with drawing(path, 3.7 * len(truth), 3.6) as figure:
        for index, name in enumerate(truth):
            axes = figure.add_subplot(1, len(truth), index + 1)
            plain(axes, title=readable(name, f"target {index}"), x="true", y="predicted")
            ends = [min(truth[name].min(), predicted[name].min()), max(truth[name].max(), predicted[name].max())]
            axes.plot(ends, ends, color=PALE, zorder=0)
            _dots(axes, truth[name], predicted[name])


def residuals(path: Path, truth: Values, predicted: Values) -> None:
    """Plot predicted minus true values against true values, one panel per target."""
    with drawing(path, 3.7 * len(truth), 3.0) as figure:
        for index, name in enumerate(truth):
            axes = figure.add_subplot(1, len(truth), index + 1)
            plain(axes, title=readable(name, f"target {index}"), x="true", y="predicted - true")
            axes.axhline(0, color=PALE, zorder=0)
            _dots(axes, truth[name], predicted[name] - truth[name])


def _dots(axes: "Axes", x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]) -> None:
    few = len(x) <= 1000
    axes.plot(x, y, "o", color=ACCENT, alpha=0.5 if few else 0.2, markersize=4 if few else 2, markeredgewidth=0)


def confusion(path: Path, counts: Int[np.ndarray, "n n"], names: Sequence[str]) -> None:
    """Plot a confusion matrix. Rows are true classes; colours show fractions of the true class."""
    n = len(counts)
    fractions = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    numbers, named = n <= MOST_NUMBERS, n <= MOST_NAMES
    cell = 0.36 if n > 12 else 0.5
    side = max(cell * n, 2.0) if numbers else 8.5
    words = [readable(name, str(index), 18) for index, name in enumerate(names)] if named else []
    margin = 0.4 + 0.075 * max((len(word) for word in words), default=4)
    with drawing(path, side + margin + 1.1, side + margin) as figure:
        from matplotlib.colors import PowerNorm

        axes = figure.add_subplot()
        # The square root makes rare mistakes visible next to a strong diagonal.
        image = axes.imshow(fractions, cmap=shades(), norm=PowerNorm(0.5, 0, 1), interpolation="auto")
        plain(axes, x="predicted", y="true")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        if named:
            small = 9 if numbers else 7
            axes.set_xticks(range(n), words, rotation=0 if max(map(len, words)) * n < 40 else 90, fontsize=small)
            axes.set_yticks(range(n), words, fontsize=small)
            for line in range(1, n):
                axes.axhline(line - 0.5, color="white", linewidth=1)
                axes.axvline(line - 0.5, color="white", linewidth=1)
        for row, column in np.argwhere(counts) if numbers else ():
            text = f"{counts[row, column]:,}"
            size = min(9.0, 100 * cell / len(text))
            color = "white" if fractions[row, column] > 0.25 else INK
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)
        bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_ticks([0, 0.05, 0.25, 0.5, 1])
        percent(bar.ax, "y")
        bar.ax.tick_params(length=0)
        bar.set_label("fraction of the true class")


def calibration(
    path: Path,
    edges: Float[Tensor, "edges"],
    counts: Int[Tensor, "bins"],
    confidence: Float[Tensor, "bins"],
    accuracy: Float[Tensor, "bins"],
    ece: float,
) -> None:
    """Plot accuracy against confidence, and the number of images per bin. Bins with few images are drawn hollow."""
    used = counts > 0
    sure, right = confidence[used].numpy(), accuracy[used].numpy()
    with drawing(path, 5.2, 5.4) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        plain(above, title=f"calibration error {ece:.1%}", y="accuracy")
        above.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        above.text(0.08, 0.1, "perfect", rotation=45, rotation_mode="anchor", transform_rotates_text=True, color=GREY)
        above.vlines(sure, np.minimum(sure, right), np.maximum(sure, right), color=PALE, linewidth=5)
        few = (counts[used] < FEW).numpy()
        above.scatter(sure[~few], right[~few], 60, color=ACCENT, zorder=3, clip_on=False)
        above.scatter(sure[few], right[few], 25, facecolor="white", edgecolor=GREY, zorder=3, clip_on=False)
        above.set(xlim=(0, 1), ylim=(0, 1))
        plain(below, x="confidence", y="images")
        below.bar(edges[:-1].numpy(), counts.numpy(), edges.diff().numpy() * 0.92, align="edge", color=GREY)
        percent(above, "y")
        percent(below, "x")


# ---- Image grids -----------------------------------------------------------------------------------------------------


def grid(
    path: Path, images: Sequence[UInt8[Tensor, "_ _ _"]], captions: Sequence[str], columns: int = 8, width: float = 1.3
) -> None:
    """Draw an image grid with captions. Each column is `width` inches wide."""
    columns = min(columns, max(len(images), 1))
    rows = max(-(-len(images) // columns), 1)
    lines = max((caption.count("\n") + 1 for caption in captions), default=1)
    tallest = max((image.shape[1] / image.shape[2] for image in images), default=0.2)
    high, wide = 0.92 * width * min(tallest, 2), 0.92 * width  # image size in inches, without caption and gap
    below = 0.15 * lines + 0.15
    across, down = columns * width, rows * (high + below)
    with drawing(path, across, down, layout=None) as figure:
        axes = figure.add_axes((0, 0, 1, 1))  # in inches; one for each image would take longer than the images
        axes.set_axis_off()
        for index, (image, caption) in enumerate(zip(images, captions, strict=True)):
            row, column = divmod(index, columns)
            scale = min(wide / image.shape[2], high / image.shape[1])  # inches per pixel
            w, h = scale * image.shape[2], scale * image.shape[1]
            x, y = column * width + wide / 2, down - (row + 1) * (high + below) + below + high / 2
            axes.imshow(
                as_array(image),
                cmap="gray",
                vmin=0,
                vmax=255,
                interpolation="nearest" if max(image.shape[1:]) < 64 else "auto",
                extent=(x - w / 2, x + w / 2, y - h / 2, y + h / 2),
            )
            axes.text(x, y - 0.56 * h, caption, ha="center", va="top", fontsize=8)
        axes.set(xlim=(0, across), ylim=(0, down))
        if not images:
            figure.text(0.5, 0.5, "none", ha="center", va="center", color=GREY)


def as_array(image: UInt8[Tensor, "c h w"]) -> np.ndarray:
    """Return the first three channels as [h, w, 3] or, if there are fewer, the first channel as [h, w]."""
    channels = 3 if image.shape[0] >= 3 else 1
    array: np.ndarray = image[:channels].permute(1, 2, 0).contiguous().cpu().numpy()
    return array if channels == 3 else array[:, :, 0]
