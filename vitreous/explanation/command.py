"""`vitreous explain`: from a checkpoint and a picture to figures, a report, and a few numbers in the terminal."""

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

import vitreous
from vitreous.common.atomic_files import atomic_file
from vitreous.common.json_files import read_json_object
from vitreous.common.terminal import console as standard_output
from vitreous.common.text import SafeConsole
from vitreous.explanation import figures
from vitreous.explanation.explain_report import Findings, write_page
from vitreous.explanation.maps import MAPS, DrawnMap, draw_map, peak, put_to_the_test
from vitreous.explanation.methods import METHODS
from vitreous.explanation.study import Study, open_model, open_study, which_methods
from vitreous.report.metric_text import duration
from vitreous.report.png import is_written_here
from vitreous.report.style import can_draw

NONE = "none"
PAGE, NUMBERS = "report.html", "numbers.json"
FIGURES = tuple(f"{name}.png" for name in ("seen", "pca_foreground", *METHODS))
KEYS = {"class", "predictions", "faithfulness", "attention_distance", "lens", "left_out"}  # of numbers.json


def explain_files(
    checkpoint: Path,
    image: str,
    out: Path,
    target: str | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    query: Sequence[int] = (),
    methods: Sequence[str] = (),
    image_size: Sequence[int] = (),
    batch_size: int = 32,
    device: str = "auto",
) -> Findings:
    began = time.perf_counter()
    picture = None if image == NONE else Path(image).expanduser()
    if picture is not None and picture.is_dir():
        raise ValueError(f"{image!r} is a folder, but explain takes one picture")
    if picture is not None and not picture.is_file():
        raise ValueError(f"there is no picture {image!r}; `{NONE}` asks for the figures that need none")
    check_output(out)
    model = open_model(checkpoint, image_size, device)
    wanted, left_out = which_methods(model, picture is not None, methods)
    study = open_study(model, picture, out, target, layers, heads, query, batch_size)
    out.mkdir(parents=True, exist_ok=True)
    with SafeConsole(stderr=True).status("looking inside ...") as status:  # seen on a terminal only
        found = examine(study, wanted, lambda method: status.update(f"{method} ..."))
    found.left_out = left_out | found.left_out if not methods else found.left_out
    who = checkpoint.resolve().parent.name if checkpoint.name in ("best", "last") else checkpoint.name
    title = f"{who}: what it has learned" if picture is None else f"{picture.name}, seen by {who}"
    facts = _facts(study, checkpoint, image, time.perf_counter() - began)
    with atomic_file(out / NUMBERS) as aside:  # before the page, which check_output knows by it
        aside.write_text(json.dumps(numbers(study, found), indent=2))
    page = write_page(study, found, title, facts, shlex.join(["vitreous", *sys.argv[1:]]))
    _say(study, found, [*found.paths, out / NUMBERS, page])
    return found


def check_output(out: Path) -> None:
    """Refuse a folder with files that would be replaced, unless they are of an earlier explanation.

    One that was killed has left figures, but neither numbers nor page.
    """
    taken = [name for name in (PAGE, NUMBERS, *FIGURES) if os.path.lexists(out / name)]
    if NUMBERS in taken and _has_numbers(out / NUMBERS):
        return
    if foreign := [name for name in taken if name not in FIGURES or not is_written_here(out / name)]:
        raise ValueError(
            f"{out} already has {foreign[0]}, which explain would replace: choose another --out, or delete it"
        )


def _has_numbers(file: Path) -> bool:
    """True if a file is the numbers.json of an explanation."""
    try:
        return read_json_object(file).keys() >= KEYS
    except ValueError:
        return False


def examine(study: Study, wanted: Sequence[str], begin: Callable[[str], None] = lambda method: None) -> Findings:
    """Draw what is wanted; `begin` is told of each before it is drawn."""
    found = Findings()
    maps: dict[str, DrawnMap] = {}
    if study.image is not None:
        found.seen = [figures.seen_figure(study)]
        for name in MAPS:
            if name in wanted:
                begin(name)
                maps[name] = draw_map(study, name)
        found.maps = {name: one.figure for name, one in maps.items()}
    for method in wanted:
        begin(method)
        match method:
            case "faithfulness":
                if maps:
                    found.faithfulness, found.figures[method] = put_to_the_test(study, maps)
            case "heads":
                found.figures[method] = figures.head_figures(study)
            case "distance":
                found.distance, found.figures[method] = figures.distance_figures(study)
            case "similarity":
                best = next(iter(maps.values()), None)
                centre = (study.model.config.grid[0] // 2, study.model.config.grid[1] // 2)
                place = study.query or (peak(best.values) if best else centre)
                found.figures[method] = figures.similarity_figures(study, place)
            case "pca":
                found.figures[method] = figures.pca_figures(study)
            case "lens":
                found.lens, found.figures[method] = figures.lens_figures(study)
            case "position":
                reason, found.figures[method] = figures.position_figures(study)
                found.left_out |= {method: reason} if reason else {}
            case "filters":
                found.figures[method] = figures.filter_figures(study)
    if not can_draw() and {"faithfulness", "distance", "lens"} & set(wanted):
        found.left_out["charts"] = "matplotlib is missing: pip install vitreous[plot]"
    return found


def numbers(study: Study, found: Findings) -> dict[str, object]:
    """For programs: what the report says in figures."""
    distance = found.distance
    return {
        "class": None if study.target is None else study.label(study.target),
        "predictions": [vars(label) for label in study.predictions],
        "faithfulness": {
            key: {"deletion": one.deletion, "insertion": one.insertion} for key, one in found.faithfulness.items()
        },
        "attention_distance": {} if distance is None else dict(zip(study.layers, distance.tolist(), strict=True)),
        "lens": [vars(row) for row in found.lens],
        "left_out": found.left_out,
    }


def _facts(study: Study, checkpoint: Path, image: str, seconds: float) -> dict[str, str]:
    config = study.model.config
    prefix = {"class token": config.class_token, "distillation token": config.distillation_token}
    special = [word for word, there in prefix.items() if there]
    special += [f"{config.registers} registers"] if config.registers else []
    return {
        "checkpoint": str(checkpoint),
        "picture": image,
        "model": f"{config.depth} layers of {config.num_heads} heads, width {config.width}; patches of "
        f"{config.patch_stride[0]} x {config.patch_stride[1]} pixels, {config.grid[0]} x {config.grid[1]} of them at "
        f"{config.image_size[0]} x {config.image_size[1]}; {', '.join(special) or 'patches only'}",
        "device": str(next(study.model.parameters()).device),
        "time": duration(seconds),
        "version": f"Vitreous {vitreous.__version__}",
    }


def _say(study: Study, found: Findings, paths: Sequence[Path]) -> None:
    console = standard_output()
    if study.predictions:
        table = Table("class", "probability", box=None)
        for label in study.predictions:
            about = "  <- explained" if label.index == study.target else ""
            table.add_row(label.label, f"{label.probability:.4f}{about}")
        console.print(table)
        assert study.target is not None
        if study.target not in [label.index for label in study.predictions]:
            console.print(f"explained: {study.label(study.target)}")
    if found.faithfulness:
        table = Table("map", "deletion (low is good)", "insertion (high is good)", box=None)
        for key, one in found.faithfulness.items():
            table.add_row(key, f"{one.deletion:.3f}", f"{one.insertion:.3f}")
        console.print()
        console.print(table)
    if found.left_out:
        console.print()
        for reason, kinds in found.missing:
            console.print(f"left out: {kinds} ({reason})", soft_wrap=True)
    console.print()
    for path in paths:
        console.print(f"wrote {path}", soft_wrap=True)
