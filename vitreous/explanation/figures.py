"""What is not a single map over the picture: heads side by side, distances, likeness, colours, places, filters."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.explanation import render
from vitreous.explanation.capture import attention_from, layout_of, on_grid
from vitreous.explanation.charts import distance_chart, lens_chart
from vitreous.explanation.distance import attention_distance, distances
from vitreous.explanation.filters import as_pictures, filter_components
from vitreous.explanation.position import position_similarity
from vitreous.explanation.study import TOP, Figure, Study
from vitreous.explanation.tokens import foreground, logit_lens, pca_colours, token_similarity
from vitreous.report.colours import heat, paint, signed
from vitreous.report.style import can_draw

SHEET = 1150  # pixels across, about
MOST_PLACES = 10  # down and across, of a sheet of places
FEWEST_INSIDE = 8  # patches of a foreground below which its components say nothing


def seen_figure(study: Study) -> Figure:
    _, canvas = study.pictured
    gh, gw = canvas.grid
    h, w = canvas.image_size
    caption = f"The model is shown {h} x {w} pixels (height x width), cut into {gh} x {gw} patches."
    rows, columns = canvas.seen.pixels()
    if (rows.stop - rows.start, columns.stop - columns.start) != canvas.pixels.shape[:2]:
        caption += " What is dimmed is cut off before: whatever is there plays no part."
    return Figure(study.write("seen", render.patches(canvas)), "What the model sees", caption)


def head_figures(study: Study) -> list[Figure]:
    """Attention of every layer and head that was asked for, side by side."""
    image, _ = study.pictured
    rows = attention_from(study.model, image, study.query, study.layers)[:, 0, study.heads]
    maps = on_grid(rows, layout_of(study.model, image)).cpu().numpy()
    tile = render.tile_for(maps.shape[2:], min(max(SHEET // len(study.heads) - 6, 24), 104))
    picture = render.sheet(
        [[paint(render.scaled(one), heat()) for one in layer] for layer in maps],
        tile,
        [f"layer {layer}" for layer in study.layers],
        [f"head {head}" if tile[1] >= 56 else str(head) for head in study.heads],
    )
    if study.query is not None:
        who = f"the patch in row {study.query[0]}, column {study.query[1]} looks"
    else:
        who = "the class token looks" if study.model.config.class_token else "patches look, on average"
    caption = (
        f"Where {who}, in each layer (rows, counted from 0) and head (columns). Each map has a scale of its own, "
        "from nothing (dark) to its largest weight (bright); what goes to class and register tokens is not shown."
    )
    return [Figure(study.write("heads", picture), "Every head", caption, "sheet")]


# ---- Distance --------------------------------------------------------------------------------------------------------


def distance_figures(study: Study) -> tuple[Float[Tensor, "layers heads"], list[Figure]]:
    image, canvas = study.pictured
    found = attention_distance(study.model, image, study.layers).cpu()
    if not can_draw():
        return found, []
    path = study.folder / "distance.png"
    distance_chart(path, study.layers, found.numpy(), float(distances(canvas.grid, canvas.patch_stride).mean()))
    caption = (
        "Each dot is a head: how far away, on average, the patches are that a patch takes from (the paper's Figure 7, "
        "right), here for this one picture, in pixels of the model's input. Low dots look around themselves, as a "
        "convolution does; high ones see the whole picture."
    )
    return found, [Figure(path, "How far attention reaches", caption, "chart")]


# ---- Tokens ----------------------------------------------------------------------------------------------------------


def similarity_figures(study: Study, place: Size) -> list[Figure]:
    """How alike a patch is to all others, after a few of the layers."""
    image, canvas = study.pictured
    chosen = [
        study.layers[i] for i in np.linspace(0, len(study.layers) - 1, min(len(study.layers), 4)).round().astype(int)
    ]
    maps = token_similarity(study.model, image, place, chosen)[:, 0].cpu().numpy()
    drawn = [render.marked(canvas, render.overlay(canvas, one, from_zero=False), place) for one in maps]
    least = ", ".join(f"{one.min():.2f} after layer {layer}" for one, layer in zip(maps, chosen, strict=True))
    caption = (
        f"How alike every patch is to the framed one (row {place[0]}, column {place[1]}), by the cosine of what the "
        "model holds of them: after the first layers alike in look and place, after the last in meaning. Dark is the "
        f"least alike: {least}."
    )
    height, width = canvas.pixels.shape[:2]
    names = [f"after layer {layer}" for layer in chosen]
    below = width > 1.6 * height  # wide ones stand below each other
    scale = min(SHEET / (2 if below else len(chosen)) / width, 1)
    tile = (round(height * scale), round(width * scale))
    if below:
        picture = render.sheet([[one] for one in drawn], tile, rows=names, smooth=True)
    else:
        picture = render.sheet([drawn], tile, columns=names, smooth=True)
    return [Figure(study.write("similarity", picture), "What is like this patch", caption, "sheet")]


@torch.no_grad()
def pca_figures(study: Study) -> list[Figure]:
    image, canvas = study.pictured
    patches = study.model.intermediate(image, [study.layers[-1]])[0].patches[0]
    everywhere = render.coloured(canvas, pca_colours(patches, canvas.grid).cpu().numpy())
    drawn = [
        Figure(
            study.write("pca", everywhere),
            "Patch features as colours",
            f"The three directions in which patches differ most, after layer {study.layers[-1]}, as red, green and "
            "blue: what has one colour is of one kind to the model. The colours themselves mean nothing.",
        )
    ]
    _, inside = foreground(patches, canvas.grid)
    if int(inside.sum()) < FEWEST_INSIDE:
        return drawn
    object_only = pca_colours(patches, canvas.grid, inside).cpu().numpy()
    caption = (
        f"The first direction alone parts the patches in two ({float(inside.float().mean()):.0%} are kept: the side "
        "that is less at the border), and the kept ones are coloured anew. In a self-supervised model such as DINOv2 "
        "this often cuts out the object, though nobody taught it to."
    )
    path = study.write("pca_foreground", render.coloured(canvas, object_only, inside.cpu().numpy()))
    return [*drawn, Figure(path, "The same, without the background", caption)]


@dataclass(frozen=True)
class LensRow:
    """What the head would answer after a layer."""

    layer: int
    label: str
    probability: float
    of_target: float


def lens_figures(study: Study) -> tuple[list[LensRow], list[Figure]]:
    image, _ = study.pictured
    assert study.target is not None
    shares = logit_lens(study.model, image, study.layers)[:, 0].softmax(dim=-1).cpu()
    rows = [
        LensRow(layer, study.label(int(one.argmax())), float(one.max()), float(one[study.target]))
        for layer, one in zip(study.layers, shares, strict=True)
    ]
    if not can_draw():
        return rows, []
    told = dict.fromkeys([study.target, *shares[-1].topk(min(TOP, shares.shape[1])).indices.tolist()])
    path = study.folder / "lens.png"
    lens_chart(path, study.layers, {study.label(index): shares[:, index].tolist() for index in told})
    caption = (
        "The final norm and the head, put on the tokens after every layer: what the answer would be if the model "
        "stopped there. The head was trained on the last layer only, so early answers are its guess in the dark."
    )
    return rows, [Figure(path, "What it would answer after each layer", caption, "chart")]


# ---- Without a picture -----------------------------------------------------------------------------------------------


def position_figures(study: Study) -> tuple[str, list[Figure]]:
    """In words why there is none, or the figure."""
    found = position_similarity(study.model)
    if found.values is None:
        return found.words, []
    gh, gw = study.model.config.grid
    down, across = (
        np.unique(np.linspace(0, side - 1, min(side, MOST_PLACES)).round().astype(int)) for side in (gh, gw)
    )
    values = found.values.numpy()
    most = np.abs(values).max()
    tiles = [[paint(values[y, x] / max(most, 1e-12) / 2 + 0.5, signed()) for x in across] for y in down]
    picture = render.sheet(tiles, render.tile_for((gh, gw), 860 // max(len(down), len(across))), gap=4)
    skipped = f" Not all of {gh} x {gw} places have a tile." if (len(down), len(across)) != (gh, gw) else ""
    caption = (
        f"{found.words} A tile stands where its place is in the picture, and shows it for that place and all "
        f"places: red is above zero, blue below; full colour is {most:.2f} (the paper's Figure 7, centre).{skipped}"
    )
    return "", [Figure(study.write("position", picture), "What it knows of places", caption, "sheet")]


def filter_figures(study: Study) -> list[Figure]:
    found = filter_components(study.model)
    pictures = as_pictures(found.patterns)
    pictures = pictures[:, :3] if pictures.shape[1] >= 3 else pictures[:, :1].expand(-1, 3, -1, -1)
    tiles = (pictures.permute(0, 2, 3, 1).numpy() * 255).round().astype(np.uint8)
    columns = 7
    h, w = tiles.shape[1:3]
    rows = [list(tiles[i : i + columns]) for i in range(0, len(tiles), columns)]
    picture = render.sheet(rows, render.tile_for((h, w), 96))
    caption = (
        f"The {len(tiles)} patterns that make up most of {found.words} (principal components, the first one first; the "
        f"paper's Figure 7, left): {float(found.shares.sum()):.0%} of its variance. Grey is zero. Plausible ones look "
        "like stripes, edges and blobs of colour; nothing but noise means little training."
    )
    return [Figure(study.write("filters", picture), "What a patch is looked at with", caption, "sheet")]
