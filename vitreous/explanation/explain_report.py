"""Writes the figures of an explanation as PNG files, and report.html with all figures, captions and tables.

Charts require matplotlib. Without it, the report contains only the tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from vitreous.common.checks import Size
from vitreous.explanation import draw
from vitreous.explanation.attention_and_logit_lens import distances
from vitreous.explanation.draw import Canvas
from vitreous.explanation.methods import MAPS, MapName
from vitreous.explanation.pca_and_similarity import FilterComponents, PositionSimilarity, filter_images
from vitreous.explanation.result import Explanation
from vitreous.explanation.rollout_relevance_occlusion import Faithfulness
from vitreous.model.base_config import ModelConfig
from vitreous.model.options import AttentionPool
from vitreous.report.colours import css, heat, paint, signed
from vitreous.report.html import Html, bar, code, definitions, details, inner, items, name, plot, table, tag
from vitreous.report.html import sections_page as page_of
from vitreous.report.plots import ACCENT, GREY, PALE, can_draw, drawing, percent, plain, readable, write_png

SHEET = 1150  # approximate width in pixels
MOST_POSITIONS = 10  # maximum rows and columns in the position sheet
LINES = (ACCENT, "#c4500c", "#2c8a4b", "#8a4fb5", "#b0416b", GREY)  # colours of curves; they also differ in lightness

Drawn = tuple[str, str, np.ndarray | Image.Image]  # title, caption, and an overlay or a sheet


@dataclass(frozen=True)
class Figure:
    """PNG file with a title and caption."""

    path: Path
    title: str
    caption: str
    kind: Literal["map", "sheet", "chart"]


def draw_figures(
    result: Explanation, config: ModelConfig, canvas: Canvas | None, folder: Path
) -> dict[str, list[Figure]]:
    """Write the figures of all computed results. Return them by method; the key "seen" is the input image."""
    found: dict[str, list[Figure]] = {}

    def write(method: str, drawn: Drawn, name: str = "") -> None:
        title, caption, image = drawn
        path, is_map = folder / f"{name or method}.png", isinstance(image, np.ndarray)
        write_png(Image.fromarray(image) if isinstance(image, np.ndarray) else image, path, optimize=True)
        found.setdefault(method, []).append(Figure(path, title, caption, "map" if is_map else "sheet"))

    if canvas is not None:
        write("seen", ("Model input", _input_caption(canvas), draw.patches(canvas)))
        for method, values in result.maps.items():
            image = draw.signed_overlay(canvas, values) if method == "occlusion" else draw.overlay(canvas, values)
            write(method, (*_map_text(result, config, method), image))
        for name, drawn in _pca(result, canvas):
            write("pca", drawn, name)
        if result.similarity is not None:
            write("similarity", _similarity(result, result.similarity, canvas))
    if result.head_maps is not None:
        write("heads", _heads(result, result.head_maps, config))
    if result.position is not None and result.position.values is not None:
        write("position", _positions(result.position, result.position.values.numpy(), config.map_grid))
    if result.filters is not None:
        write("filters", _filters(result.filters))
    if can_draw():
        if result.faithfulness:
            found["faithfulness"] = [_faithfulness_chart(folder / "faithfulness.png", result)]
        if result.distance is not None:
            uniform = float(distances(config.map_grid, config.map_stride).mean())
            found["distance"] = [_distance_chart(folder / "distance.png", result.layers, result.distance, uniform)]
        if _has_lens(result):
            found["lens"] = [_lens_chart(folder / "lens.png", result)]
    return found


# ---- Image overlays --------------------------------------------------------------------------------------------------


def _input_caption(canvas: Canvas) -> str:
    (gh, gw), (h, w) = canvas.grid, canvas.image_size
    caption = f"The model receives {h} x {w} pixels (height x width), divided into {gh} x {gw} patches."
    rows, columns = canvas.region.pixels()
    if (rows.stop - rows.start, columns.stop - columns.start) != canvas.pixels.shape[:2]:
        caption += " The dimmed area is cropped and does not reach the model."
    return caption


def _map_text(result: Explanation, config: ModelConfig, name: MapName) -> tuple[str, str]:
    """Return the title and caption of a map."""
    match name:
        case "relevance" if not result.maps[name].any():
            return "Relevance", f"The map is empty: no patch has positive relevance for “{result.label}”."
        case "relevance":
            return "Relevance", (
                f"Evidence for “{result.label}”: attention that raises the score of this class, accumulated over all "
                "layers. The map is specific to this class."
            )
        case "occlusion":
            low, high = float(result.maps[name].min()), float(result.maps[name].max())
            return "Occlusion", (
                "A window slides over the image and masks the pixels inside it. Masking red areas makes "
                f"“{result.label}” less likely ({_points(high)}); masking blue areas makes it more likely "
                f"({_points(-low)})."
            )
        case "rollout":
            return "Attention rollout", (
                "Attention multiplied through all layers, including residual connections. It shows where information "
                "can come from and is the same for every class."
            )
        case "attention":
            query = "attention pooling" if isinstance(config.pool, AttentionPool) else _attending(config)
            return "Attention, last layer", (
                f"Attention weights of {query}, averaged over heads. They show where the model gathers information, "
                "but not why."
            )


def _attending(config: ModelConfig) -> str:
    return "the class token" if config.class_token else "all patches (mean)"


def _points(change: float) -> str:
    """Format a change in probability as a phrase for a caption."""
    if change <= 0:
        return "no such areas here"
    return f"by up to {100 * change:.1f} percentage points" if change >= 0.001 else "by less than 0.1 percentage points"


def _similarity(result: Explanation, maps: np.ndarray, canvas: Canvas) -> Drawn:
    place, layers = result.similarity_to, result.similarity_layers
    drawn = [draw.marked(canvas, draw.overlay(canvas, values, from_zero=False), place) for values in maps]
    lowest = ", ".join(
        f"{values.min():.2f} after layer {layer + 1}" for values, layer in zip(maps, layers, strict=True)
    )
    caption = (
        f"Cosine similarity of each patch to the framed patch (row {place[0] + 1}, column {place[1] + 1}). Early "
        f"layers reflect appearance and position, late layers meaning. The lowest similarity is {lowest}."
    )
    height, width = canvas.pixels.shape[:2]
    stacked = width > 1.6 * height  # stack wide images vertically
    scale = min(SHEET / (2 if stacked else len(layers)) / width, 1)
    tile, names = (round(height * scale), round(width * scale)), [f"after layer {layer + 1}" for layer in layers]
    if stacked:
        return "Similar patches", caption, draw.sheet([[image] for image in drawn], tile, rows=names, smooth=True)
    return "Similar patches", caption, draw.sheet([drawn], tile, columns=names, smooth=True)


def _pca(result: Explanation, canvas: Canvas) -> Iterator[tuple[str, Drawn]]:
    if result.pca is not None:
        layer = f"layer {result.layers[-1] + 1}" if result.layers else "the last layer"
        caption = (
            f"First three principal components of the patch features after {layer}, shown as red, "
            "green and blue. Patches of similar colour have similar features; the colours themselves have no meaning."
        )
        yield "pca", ("PCA of patch features", caption, draw.coloured(canvas, result.pca))
    if result.pca_foreground is not None:
        kept = 1 - float(np.isnan(result.pca_foreground[..., 0]).mean())
        caption = (
            f"Thresholding the first component selects the foreground ({kept:.0%} of the patches), and a second PCA "
            "colours it. With self-supervised models such as DINOv2, this often separates the object from the "
            "background without labels."
        )
        image = draw.coloured(canvas, result.pca_foreground)
        yield "pca_foreground", ("PCA of the foreground", caption, image)


# ---- Sheets ----------------------------------------------------------------------------------------------------------


def _heads(result: Explanation, maps: np.ndarray, config: ModelConfig) -> Drawn:
    tile = draw.tile_for(config.map_grid, min(max(SHEET // len(result.heads) - 6, 24), 104))
    rows = [f"layer {layer + 1}" for layer in result.layers]
    columns = [f"head {head + 1}" if tile[1] >= 56 else str(head + 1) for head in result.heads]
    tiles = [[paint(draw.scaled(values), heat()) for values in layer if not np.isnan(values).any()] for layer in maps]
    query = _attending(config)
    if result.query is not None:
        query = f"the patch in row {result.query[0] + 1}, column {result.query[1] + 1}"
    caption = (
        f"Attention weights of {query} for each layer (rows) and head (columns). Each map has its own colour scale, "
        "from zero (dark) to its largest weight (bright)."
    )
    if config.num_prefix_tokens:
        caption += " Attention to class and register tokens is not shown."
    if any(shape.keys < shape.tokens for shape in config.attention_shapes):
        caption += " Patches attend only to the patches of their window, and grow where patches are merged."
    return "Attention heads", caption, draw.sheet(tiles, tile, rows, columns)


def _positions(position: PositionSimilarity, values: np.ndarray, grid: Size) -> Drawn:
    gh, gw = values.shape[:2]
    rows, columns = (
        np.unique(np.linspace(0, side - 1, min(side, MOST_POSITIONS)).round().astype(int)) for side in (gh, gw)
    )
    most = np.abs(values).max()
    tiles = [[paint(values[y, x] / max(most, 1e-12) / 2 + 0.5, signed()) for x in columns] for y in rows]
    some = f" Only some of the {gh} x {gw} positions are shown." if (len(rows), len(columns)) != (gh, gw) else ""
    text = (
        position.text
        if (gh, gw) == grid
        else f"{position.text} The positions are those of a window of the first layer."
    )
    caption = (
        f"{text} Each tile compares one position with all positions, as in Figure 7 (centre) of the paper. Red is "
        f"positive, blue is negative, and the strongest colour corresponds to {most:.2f}.{some}"
    )
    tile = draw.tile_for((gh, gw), 860 // max(len(rows), len(columns)))
    return "Position similarity" if position.bounded else "Position bias", caption, draw.sheet(tiles, tile, gap=4)


def _filters(filters: FilterComponents) -> Drawn:
    tiles, columns = filter_images(filters.patterns), 7
    caption = (
        f"First {len(tiles)} principal components of {filters.source}, as in Figure 7 (left) of the paper. They "
        f"explain {float(filters.variance.sum()):.0%} of the variance. Grey is zero. Trained filters look like "
        "stripes, edges and colour blobs; noise indicates too little training."
    )
    rows = [list(tiles[i : i + columns]) for i in range(0, len(tiles), columns)]
    return "Patch filters", caption, draw.sheet(rows, draw.tile_for((tiles.shape[1], tiles.shape[2]), 96))


# ---- Charts ----------------------------------------------------------------------------------------------------------


def _faithfulness_chart(path: Path, result: Explanation) -> Figure:
    with drawing(path, 8.4, 3.3) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        plain(left, title="deletion", x="patches masked", y="probability of the class")
        plain(right, title="insertion", x="patches revealed")
        colours = iter(LINES)
        for name, test in result.faithfulness.items():
            style = {"color": GREY, "linestyle": (0, (4, 3))} if name == "random" else {"color": next(colours)}
            left.plot(test.fractions, test.deletion_curve, linewidth=1.6, **style)
            right.plot(test.fractions, test.insertion_curve, linewidth=1.6, label=name, **style)
        for axes in (left, right):
            axes.set(xlim=(0, 1), ylim=(-0.02, 1.02))
            percent(axes, "x")
            percent(axes, "y")
        right.legend(frameon=False, labelcolor="linecolor", loc="center left", bbox_to_anchor=(1.01, 0.5))
    caption = (
        "Left: patches are masked in order of importance; a good map makes the probability fall early. Right: patches "
        "are revealed on a blurred image in the same order; a good map makes the probability rise early. Grey: random "
        "order."
    )
    return Figure(path, "Deletion and insertion", caption, "chart")


def _distance_chart(path: Path, layers: list[int], pixels: np.ndarray, uniform: float) -> Figure:
    with drawing(path, 6.6, 3.6) as figure:
        axes = figure.add_subplot()
        plain(axes, x="layer", y="mean attention distance (pixels)")
        axes.axhline(uniform, color=GREY, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            "uniform attention to all patches", (1, uniform), (-4, 3), xycoords=("axes fraction", "data"),
            textcoords="offset points", color=GREY, fontsize=8, ha="right", va="bottom",
        )  # fmt: skip
        numbers = [layer + 1 for layer in layers]
        axes.plot(numbers, np.nanmean(pixels, axis=1), color=PALE, linewidth=2, zorder=1)
        for layer, row in zip(numbers, pixels, strict=True):
            axes.scatter([layer] * len(row), row, 26, color=ACCENT, alpha=0.75, linewidth=0, zorder=2)
        axes.set_ylim(0, 1.12 * max(float(np.nanmax(pixels)), uniform))
        axes.set_xticks(numbers[:: -(-len(numbers) // 16)])
    caption = (
        "Each dot is the mean distance over which one head attends, for this image, in pixels of the model input (as "
        "in Figure 7, right, of the paper). Heads with low values attend locally, like a convolution; heads with high "
        "values attend globally."
    )
    return Figure(path, "Attention distance", caption, "chart")


def _lens_chart(path: Path, result: Explanation) -> Figure:
    with drawing(path, 6.6, 3.4) as figure:
        axes, layers = figure.add_subplot(), [row.layer + 1 for row in result.lens]
        plain(axes, x="after layer", y="probability")
        for colour, (name, curve) in zip(LINES, result.lens_curves.items(), strict=False):
            axes.plot(layers, curve, color=colour, linewidth=1.8, marker="o", markersize=4, label=readable(name))
        axes.set_ylim(-0.02, 1.02)
        percent(axes, "y")
        axes.set_xticks(layers[:: -(-len(layers) // 16)])
        axes.legend(frameon=False, labelcolor="linecolor", loc="center left", bbox_to_anchor=(1.01, 0.5))
    caption = (
        "Logit lens: the final norm and head are applied to the tokens after each layer. The head was trained on the "
        "last layer only, so predictions of early layers are rough."
    )
    if len(result.lens) < len(result.layers):
        caption += " Layers before the last merging of patches are missing, because their tokens have another width."
    return Figure(path, "Prediction after each layer", caption, "chart")


# ---- Report ----------------------------------------------------------------------------------------------------------

WARNING = (
    "Attention is not attribution. Bright areas of an attention map or rollout show where the model gathers "
    "information. They do not necessarily explain the prediction, and they are the same for every class."
)
BETTER = " Relevance and occlusion explain one class, and occlusion measures the model's output directly."
TESTED = " The test below shows how faithful each map is for this image."
SCALES = {"map": 1.0, "sheet": 0.8, "chart": 0.6}  # charts are rendered for high-density screens

Figures = Mapping[str, Sequence[Figure]]


def write_report(
    result: Explanation, figures: Figures, path: Path, title: str, facts: Mapping[str, str], command: str
) -> None:
    subtitle = "Explanation of a prediction" if "seen" in figures else "Figures of the weights"
    skipped = [f"{', '.join(methods)}: {reason}" for reason, methods in result.skipped_by_reason().items()]
    sections = [
        ("Prediction" if result.predictions else "Image", _prediction(result, figures)),
        ("Importance maps", _maps(result, figures)),
        ("Faithfulness of the maps", _tests(result, figures)),
        ("Attention by layer", _drawn(figures, "heads", "distance")),
        ("Patch features", _drawn(figures, "pca", "similarity")),
        ("Prediction by layer", _lens(result, figures)),
        ("Learned weights", _drawn(figures, "position", "filters")),
        ("Skipped methods", [items(skipped)] if skipped else []),
        ("Details", [definitions(facts.items(), "facts"), code(command)]),
    ]
    page = page_of(title, sections, tag("p", subtitle, class_="soft"))
    path.write_text(page, encoding="utf-8", errors="replace")


def _prediction(result: Explanation, figures: Figures) -> list[Html]:
    if "seen" not in figures:
        return []
    if result.predictions:
        rows = [
            (name(label.label), inner(bar(label.probability), tag("span", f"{label.probability:.1%}")))
            for label in result.predictions
        ]
        explained = tag("p", "Explained class: ", tag("b", name(str(result.label))))
        prediction = tag("div", table(["class", "probability"], rows), explained)
    else:
        prediction = tag("p", "The model has no classification head; it only computes features.")
    return [tag("div", *map(_figure, figures["seen"]), prediction, class_="side")]


def _maps(result: Explanation, figures: Figures) -> list[Html]:
    if not result.maps:
        return []
    words = WARNING + (BETTER if "relevance" in result.maps or "occlusion" in result.maps else "")
    words += TESTED if result.faithfulness else ""
    heats, signs = (tag("span", class_="scale", style=f"background: {css(colours())}") for colours in (heat, signed))
    scales = [tag("p", "Heat maps: low", heats, "high", class_="soft")]
    if "occlusion" in result.maps:
        scales.append(tag("p", "Occlusion: more likely if masked", signs, "less likely if masked", class_="soft"))
    return [tag("p", words, class_="note"), *_drawn(figures, *MAPS), *scales]


def _tests(result: Explanation, figures: Figures) -> list[Html]:
    if not result.faithfulness:
        return []
    random = result.faithfulness["random"]
    rows = [
        (name(key), _verdict(test, random) if key != "random" else "", f"{test.deletion:.3f}", f"{test.insertion:.3f}")
        for key, test in result.faithfulness.items()
    ]
    words = (
        "Area under each curve. Deletion should be low, insertion high, and both better than random. Compare maps "
        "over many images; the result for a single image is not conclusive."
    )
    numbers = table(["map", "", "deletion", "insertion"], rows, text_columns=2, caption=words)
    return [*_drawn(figures, "faithfulness"), numbers]


def _verdict(test: Faithfulness, random: Faithfulness) -> str:
    better = (test.deletion < random.deletion) + (test.insertion > random.insertion)
    return ("worse than random", "mixed", "better than random")[better]


def _has_lens(result: Explanation) -> bool:
    """True if there is more to show than the prediction after the last layer, the only one that some Swins can read."""
    return len(result.lens) > 1 or len(result.lens) == len(result.layers) > 0


def _lens(result: Explanation, figures: Figures) -> list[Html]:
    if not _has_lens(result):
        return []
    rows = [
        (str(row.layer + 1), name(row.label), f"{row.probability:.1%}", f"{row.of_target:.1%}") for row in result.lens
    ]
    columns = ["after layer", "prediction", "probability", "probability of the explained class"]
    return [*_drawn(figures, "lens"), details("Values for each layer", table(columns, rows, text_columns=2))]


def _drawn(figures: Figures, *methods: str) -> list[Html]:
    """Place maps side by side. Stack sheets and charts below them."""
    drawn = [figure for method in methods for figure in figures.get(method, ())]
    maps = [_figure(figure) for figure in drawn if figure.kind == "map"]
    sheets = [_figure(figure) for figure in drawn if figure.kind != "map"]
    return [*([tag("div", *maps, class_="maps")] if maps else []), *sheets]


def _figure(figure: Figure) -> Html:
    return plot(figure.path, figure.title, figure.caption, figure.title, figure.kind, SCALES[figure.kind])
