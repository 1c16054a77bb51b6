"""The pictures of a run: curves, confusion, calibration, and grids of what the model saw and got wrong."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from vitreous.report.metric_text import label, value
from vitreous.report.style import ACCENT, GREY, INK, PALE, drawing, percent, plain, readable, shades
from vitreous.tasks.classification_metrics import Calibration, Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_NUMBERS, MOST_NAMES, MOST_CLASSES = 30, 60, 2000  # classes up to which a confusion matrix has them, or is drawn
FEW = 10  # pictures below which a bin of the calibration plot proves little

# ---- Curves ----------------------------------------------------------------------------------------------------------


def curves(path: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Loss, quality and learning rate over the run, from the rows of metrics.jsonl; the best evaluation is marked.

    A row has `epoch` or `step` or both, and any of `loss`, `top1`, `miou`, `lr` (of training, also with `train_` before
    them) and `val_loss`, `val_top1`, `val_miou`.
    """
    where = _axis(history)
    panels = {key: _series(history, where, key) for key in ("loss", "top1", "miou", "lr")}
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
            figure.text(0.5, 0.5, "nothing was measured", ha="center", color=GREY)


def _panel(
    axes: "Axes", key: str, where: str, training: Mapping[float, float], validation: Mapping[float, float]
) -> None:
    plain(axes, title=label(key), x=where)
    _line(axes, training, GREY if key != "lr" else INK, "training")
    _line(axes, validation, ACCENT, "validation")
    places, values = [*training, *validation], [*training.values(), *validation.values()]
    if key in ("top1", "miou"):
        percent(axes, "y")
    else:
        axes.set_ylim(min(0.0, *values), 1.05 * max(values) or 1.0)
    if key == "lr":
        axes.yaxis.set_major_formatter("{x:g}" if max(values) >= 1e-3 else "{x:.1e}")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", integer=True, nbins=6)
    if min(places) == max(places):  # one point stands in the middle
        axes.set_xlim(places[0] - 1, places[0] + 1)


def best_row(history: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The evaluation with the highest quality; of equal ones, or where there is only a loss, that with the least."""

    def loss(row: Mapping[str, Any]) -> float:
        return row["val_loss"] if is_number(row.get("val_loss")) else math.inf

    for key in ("val_top1", "val_miou"):
        if rows := [row for row in history if is_number(row.get(key))]:
            return max(rows, key=lambda row: (row[key], -loss(row)))
    return min((row for row in history if is_number(row.get("val_loss"))), key=loss, default=None)


def _axis(history: Sequence[Mapping[str, Any]]) -> str:
    """Epochs, unless rows of different steps share them, as whole numbers do within an epoch."""
    epochs, steps = ([row[key] for row in history if is_number(row.get(key))] for key in ("epoch", "step"))
    shared = len(epochs) < len(history) or len(set(epochs)) < len(set(steps))
    return "step" if shared and len(steps) == len(history) else "epoch"


def _series(
    history: Sequence[Mapping[str, Any]], where: str, key: str
) -> tuple[dict[float, float], dict[float, float]]:
    """What was measured in training and in evaluation; where a step was done twice, the later."""
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
    if many:  # single steps are noise: pale, under their running average
        axes.plot(x, y, color=PALE, linewidth=0.8)
        width = len(x) // 50
        y = np.convolve(np.pad(y, (width // 2, width - 1 - width // 2), mode="edge"), np.ones(width) / width, "valid")
    axes.plot(x, y, color=color, linewidth=1.6, label=name, marker="o" if len(x) <= 25 else None, markersize=3)


# ---- Figures of an evaluation ----------------------------------------------------------------------------------------


def confusion(path: Path, evaluation: Evaluation) -> None:
    """Rows are the true classes. Colour is the share of the row; the numbers, where they fit, are pictures."""
    counts = evaluation.confusion().numpy()
    n = len(counts)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    numbers, names = n <= MOST_NUMBERS, n <= MOST_NAMES
    cell = 0.36 if n > 12 else 0.5
    side = max(cell * n, 2.0) if numbers else 8.5
    words = [readable(evaluation.name(index), str(index), 18) for index in range(n)] if names else []
    margin = 0.4 + 0.075 * max((len(word) for word in words), default=4)
    with drawing(path, side + margin + 1.1, side + margin) as figure:
        from matplotlib.colors import PowerNorm

        axes = figure.add_subplot()
        # Single mistakes must show beside a full diagonal, so the scale spends more of itself on small shares.
        image = axes.imshow(shares, cmap=shades(), norm=PowerNorm(0.5, 0, 1), interpolation="auto")
        plain(axes, x="predicted", y="true")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        if names:
            small = 9 if numbers else 7
            axes.set_xticks(range(n), words, rotation=0 if max(map(len, words)) * n < 40 else 90, fontsize=small)
            axes.set_yticks(range(n), words, fontsize=small)
            for line in range(1, n):
                axes.axhline(line - 0.5, color="white", linewidth=1)
                axes.axvline(line - 0.5, color="white", linewidth=1)
        for row, column in np.argwhere(counts) if numbers else ():
            text = f"{counts[row, column]:,}"
            size = min(9.0, 100 * cell / len(text))
            color = "white" if shares[row, column] > 0.25 else INK
            axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)
        bar = figure.colorbar(image, ax=axes, shrink=0.6, aspect=30, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_ticks([0, 0.05, 0.25, 0.5, 1])
        percent(bar.ax, "y")
        bar.ax.tick_params(length=0)
        bar.set_label("share of the true class")


def calibration(path: Path, bins: Calibration) -> None:
    """How often answers were right, against how sure they were; below, how many answers were how sure.

    Bins of fewer than 10 pictures are hollow.
    """
    used = (bins.counts > 0).numpy()
    edges, counts = bins.edges.numpy(), bins.counts.numpy()
    sure, right = bins.confidence.numpy()[used], bins.accuracy.numpy()[used]
    with drawing(path, 5.2, 5.4) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
        plain(above, title=f"calibration error {value('ece', bins.ece)}", y="how often it was right")
        above.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        above.text(0.08, 0.1, "perfect", rotation=45, rotation_mode="anchor", transform_rotates_text=True, color=GREY)
        above.vlines(sure, np.minimum(sure, right), np.maximum(sure, right), color=PALE, linewidth=5)
        few = counts[used] < FEW
        above.scatter(sure[~few], right[~few], 60, color=ACCENT, zorder=3, clip_on=False)
        above.scatter(sure[few], right[few], 25, facecolor="white", edgecolor=GREY, zorder=3, clip_on=False)
        above.set(xlim=(0, 1), ylim=(0, 1))
        plain(below, x="how sure the model was", y="pictures")
        below.bar(edges[:-1], counts, np.diff(edges) * 0.92, align="edge", color=GREY)
        percent(above, "y")
        percent(below, "x")


# ---- Grids of pictures -----------------------------------------------------------------------------------------------


def grid(
    path: Path,
    pictures: Sequence[UInt8[Tensor, "_ _ _"]],
    captions: Sequence[str],
    columns: int = 8,
    width: float = 1.3,
) -> None:
    """Pictures in rows, `width` inches each, with a caption below."""
    columns = min(columns, max(len(pictures), 1))
    rows = max(-(-len(pictures) // columns), 1)
    lines = max((caption.count("\n") + 1 for caption in captions), default=1)
    tallest = max((picture.shape[1] / picture.shape[2] for picture in pictures), default=0.2)
    high, wide = 0.92 * width * min(tallest, 2), 0.92 * width  # of a picture; its caption and a gap come below it
    below = 0.15 * lines + 0.15
    across, down = columns * width, rows * (high + below)
    with drawing(path, across, down, layout=None) as figure:
        for index, (picture, caption) in enumerate(zip(pictures, captions, strict=True)):
            row, column = divmod(index, columns)
            bottom = down - (row + 1) * (high + below) + below
            axes = figure.add_axes((column * width / across, bottom / down, wide / across, high / down))
            small = max(picture.shape[1:]) < 64
            axes.imshow(as_array(picture), cmap="gray", vmin=0, vmax=255, interpolation="nearest" if small else "auto")
            axes.set_axis_off()
            axes.text(0.5, -0.06, caption, transform=axes.transAxes, ha="center", va="top", fontsize=8)
        if not pictures:
            figure.text(0.5, 0.5, "none", ha="center", va="center", color=GREY)


def as_array(picture: UInt8[Tensor, "c h w"]) -> np.ndarray:
    """[h, w] of one channel, [h, w, 3] of three; of any other number the first one or three."""
    channels = 3 if picture.shape[0] >= 3 else 1
    array: np.ndarray = picture[:channels].permute(1, 2, 0).contiguous().cpu().numpy()
    return array if channels == 3 else array[:, :, 0]
