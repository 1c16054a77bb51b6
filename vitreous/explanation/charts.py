"""Figures with axes: how far heads look, what the head would say after each layer, how maps fare when put to the test.

They need matplotlib; without it, the numbers remain in the report's tables.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from vitreous.explanation.faithfulness import Faithfulness
from vitreous.report.style import ACCENT, GREY, PALE, drawing, percent, plain, readable

LINES = (ACCENT, "#c4500c", "#2c8a4b", "#8a4fb5", "#b0416b", GREY)  # one colour for each curve, apart in lightness too


def distance_chart(path: Path, layers: Sequence[int], pixels: np.ndarray, uniform: float) -> None:
    """A dot for each head, [layers, heads], and the distance that attention to everything alike would have."""
    with drawing(path, 6.6, 3.6) as figure:
        axes = figure.add_subplot()
        plain(axes, x="layer", y="mean attention distance, pixels")
        axes.axhline(uniform, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            "attention to all alike", (1, uniform), (-4, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", color=GREY, fontsize=8, ha="right", va="bottom",
        )  # fmt: skip
        axes.plot(layers, pixels.mean(axis=1), color=PALE, linewidth=2, zorder=1)
        for layer, row in zip(layers, pixels, strict=True):
            axes.scatter([layer] * len(row), row, 26, color=ACCENT, alpha=0.75, linewidth=0, zorder=2)
        axes.set_ylim(0, 1.12 * max(float(pixels.max()), uniform))
        axes.set_xticks(layers if len(layers) <= 16 else layers[:: -(-len(layers) // 16)])


def lens_chart(path: Path, layers: Sequence[int], curves: Mapping[str, Sequence[float]]) -> None:
    """The probability of some classes, after each layer."""
    with drawing(path, 6.6, 3.4) as figure:
        axes = figure.add_subplot()
        plain(axes, x="after layer", y="probability")
        for colour, (name, curve) in zip(LINES, curves.items(), strict=False):
            axes.plot(layers, curve, color=colour, linewidth=1.8, marker="o", markersize=4, label=readable(name))
        axes.set_ylim(-0.02, 1.02)
        percent(axes, "y")
        axes.set_xticks(layers if len(layers) <= 16 else layers[:: -(-len(layers) // 16)])
        axes.legend(frameon=False, labelcolor="linecolor", loc="center left", bbox_to_anchor=(1.01, 0.5))


def faithfulness_chart(path: Path, found: Mapping[str, Faithfulness]) -> None:
    """Deletion on the left, insertion on the right; random order is grey."""
    with drawing(path, 8.4, 3.3) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        plain(left, title="taking patches away", x="patches taken away", y="probability of the class")
        plain(right, title="showing patches", x="patches shown")
        colours = iter(LINES)
        for name, one in found.items():
            random = name == "random"
            style = {
                "color": GREY if random else next(colours),
                "linestyle": (0, (4, 3)) if random else "-",
                "linewidth": 1.6,
            }
            left.plot(one.shares, one.deletion_curve, **style)
            right.plot(one.shares, one.insertion_curve, label=name, **style)
        for axes in (left, right):
            axes.set(xlim=(0, 1), ylim=(-0.02, 1.02))
            percent(axes, "x")
            percent(axes, "y")
        right.legend(frameon=False, labelcolor="linecolor", loc="center left", bbox_to_anchor=(1.01, 0.5))
