"""HTML reports: metric formatting, HTML elements, and the report of a training run."""

import base64
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal, NamedTuple

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vitreous.common.text import duration
from vitreous.report import plots
from vitreous.report.plots import as_array, can_draw, readable

# ---- Metric formatting -----------------------------------------------------------------------------------------------

# Keys in metrics.json and metrics.jsonl, with the display name, and True for fractions (shown as percentages).
NAMES = {
    "top1": ("top-1", True), "top5": ("top-5", True), "miou": ("mean IoU", True),
    "map": ("mAP", True), "f1": ("F1", True), "f1_micro": ("F1 (all labels)", True),
    "mae": ("mean absolute error", False), "rmse": ("RMSE", False), "r2": ("R²", False),
    "pixel_accuracy": ("pixel accuracy", True), "boundary_f": ("boundary F", True), "knn": ("k-NN", True),
    "linear": ("linear probe", True), "fewshot": ("few-shot", True), "ece": ("calibration error", True),
    "balanced_accuracy": ("balanced accuracy", True), "pseudo_labelled": ("pseudo labelled", True),
    "loss": ("loss", False), "lr": ("learning rate", False), "images_per_second": ("images/s", False),
    "seconds": ("time", False), "count": ("images", False),
}  # fmt: skip
# "val_top1" is the metric "top1" on the validation split.
SPLITS = {"train_": "training ", "val_": "validation ", "test_": "test "}


def label(key: str) -> str:
    """Return the display name of the metric `key`, including its split."""
    split, base = _split(key)
    return split + NAMES.get(base, (base.replace("_", " "), False))[0]


def value(key: str, number: float | str) -> str:
    """Format a value of the metric `key`, e.g. as a percentage, a duration or a rounded number."""
    if isinstance(number, str):
        return number
    base = _split(key)[1]
    if not math.isfinite(number):
        return str(number)
    if base == "seconds":
        return duration(number)
    if NAMES.get(base, ("", False))[1]:
        return f"{number:.1%}"
    if isinstance(number, int) or abs(number) >= 100:
        return f"{number:,.0f}"
    if base == "lr" or 0 < abs(number) < 0.001:
        return f"{number:.1e}"
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.3f}"


def percent(fraction: float | None) -> str:
    """Format a fraction as a percentage. None becomes a dash."""
    return "-" if fraction is None else f"{fraction:.1%}"


def _split(key: str) -> tuple[str, str]:
    """Separate the split name from the metric, e.g. ("validation ", "top1") for "val_top1"."""
    for prefix, split in SPLITS.items():
        if key.startswith(prefix):
            return split, key.removeprefix(prefix)
    return "", key


# ---- HTML elements ---------------------------------------------------------------------------------------------------

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
VOID = frozenset({"img", "meta", "br"})
TYPES = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "webp": "webp", "svg": "svg+xml"}  # keys: file suffixes
THUMBNAIL, TINY = 224, 64  # pixels; larger images are shrunk to THUMBNAIL, and images below TINY are enlarged


class Html(str):
    """HTML markup. Unlike plain strings, it is not escaped."""


def inner(*children: str) -> Html:
    """Join children into HTML, escaping plain strings."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """Create an element. In attribute names, a trailing `_` is dropped (`class_`), and any other `_` becomes a hyphen.

    >>> tag("p", "1 < 2 ", tag("b", "yes"), class_="soft")
    '<p class="soft">1 &lt; 2 <b>yes</b></p>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"' for key, text in attributes.items())
    return Html(f"<{name}{written}>" + ("" if name in VOID else f"{inner(*children)}</{name}>"))


def document(title: str, *body: str) -> str:
    """Return a complete HTML page that loads no external resources."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n"


def sections_page(title: str, sections: Iterable[tuple[str, Sequence[Html]]], *header: Html) -> str:
    """Return a page with a header, links to the sections, and the sections. Empty sections are omitted."""
    filled = [
        (heading, parts, re.sub(r"[\W_]", "-", heading.lower()).strip("-")) for heading, parts in sections if parts
    ]
    links = [tag("a", heading, href=f"#{anchor}") for heading, _, anchor in filled]
    body = [tag("section", tag("h2", heading, id=anchor), *parts) for heading, parts, anchor in filled]
    top = tag("header", tag("h1", title), *header)
    return document(title, top, tag("nav", *links), tag("main", *body))


def name(text: str) -> Html:
    """Wrap a class or file name to isolate its text direction."""
    return tag("bdi", text)


def definitions(pairs: Iterable[tuple[str, str]], kind: str) -> Html:
    """Create a definition list with CSS class `kind`."""
    items = [(tag("dt", key), tag("dd", text)) for key, text in pairs]
    rows = [tag("div", *item) for item in items] if kind == "headline" else [inner(*item) for item in items]
    return tag("dl", *rows, class_=kind)


def items(texts: Iterable[str]) -> Html:
    return tag("ul", *(tag("li", text) for text in texts))


def code(text: str) -> Html:
    return tag("pre", tag("code", text))


def details(summary: str, *children: str) -> Html:
    return tag("details", tag("summary", summary), *children)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1, caption: str = "") -> Html:
    """Create a table with row headers in the first column. Columns after the first `text_columns` contain numbers."""

    def cell(kind: str, index: int, text: str, **attributes: str) -> Html:
        return tag(kind, text, **attributes, **({"class_": "text"} if index < text_columns else {}))

    head = tag("tr", *(cell("th", index, text, scope="col") for index, text in enumerate(columns)))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(cell("td", index, text) for index, text in enumerate(row) if index))
        for row in rows
    ]
    title = [tag("caption", caption)] if caption else []
    return tag("div", tag("table", *title, tag("thead", head), tag("tbody", *body)), class_="scroll")


def bar(fraction: float) -> Html:
    """Draw a number from 0 to 1 as a horizontal bar."""
    return tag("span", tag("i", style=f"width: {fraction:.1%}"), class_="bar")


def swatch(colour: str) -> Html:
    """Draw a square in a colour such as `#ff0000`."""
    return tag("i", class_="swatch", style=f"background: {colour}")


def legend(colours: Mapping[str, str]) -> Html:
    """Create a list of names, each with its colour."""
    return tag("ul", *(tag("li", swatch(colour), name(text)) for text, colour in colours.items()), class_="legend")


def embedded(content: bytes, format: str) -> str:
    return f"data:image/{format};base64,{base64.b64encode(content).decode()}"


def plot(
    path: Path,
    alt: str,
    caption: str,
    title: str = "",
    kind: Literal["map", "sheet", "chart"] = "chart",
    scale: float = 0.6,
) -> Html:
    """Embed an image file with a title and a caption, scaled by `scale`. Charts are inverted in dark mode."""
    format = TYPES.get(path.suffix.lower().removeprefix("."))
    if format is None:
        raise ValueError(f"{path.name} cannot be embedded in a report; supported image types are {', '.join(TYPES)}")
    content, size, style = path.read_bytes(), {}, {}
    if format != "svg+xml":
        with Image.open(io.BytesIO(content)) as image:
            width, aspect = round(image.width * scale), image.width / image.height
            size = {"width": str(width), "height": str(round(image.height * scale))}
            style = {"style": f"--width: {width}px; --aspect: {aspect:.2f}"}
    heading = [tag("h3", title)] if title else []
    drawn = tag("div", tag("img", src=embedded(content, format), alt=alt, **size), class_=kind)
    return tag("figure", *heading, drawn, tag("figcaption", caption), class_=f"drawn {kind}-figure", **style)


def photos(images: Sequence[UInt8[Tensor, "_ _ _"]], alts: Sequence[str], captions: Sequence[str]) -> Html:
    """Create a grid of thumbnails. They are lossless PNGs if all images are small, otherwise JPEGs."""
    tiny = all(max(image.shape[1:]) < TINY for image in images)
    shown = []
    for pixels, alt, caption in zip(images, alts, captions, strict=True):
        image, buffer = Image.fromarray(as_array(pixels)), io.BytesIO()
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        format = "png" if tiny else "jpeg"
        image.save(buffer, format, quality=88, optimize=True)
        source = embedded(buffer.getvalue(), format)
        shown.append(tag("figure", tag("img", src=source, alt=alt), tag("figcaption", caption)))
    return tag("div", *shown, class_="grid tiny" if tiny else "grid photos")


# ---- Report of a run -------------------------------------------------------------------------------------------------

MOST_UNREADABLE = 200


class Section(NamedTuple):
    """A heading and its content. Empty sections are not shown."""

    title: str
    content: Sequence[Html]


@dataclass(frozen=True)
class TaskReport:
    """Task-specific part of a run report."""

    summary: str  # one line for the terminal
    description: str  # task, number of classes, evaluated split
    headline: Mapping[str, float | str]  # main metrics, most important first: {"top1": 0.977, ...}
    sections: Sequence[Section] = ()


@dataclass(frozen=True)
class RunReport:
    """Contents of a run report."""

    title: str
    task: TaskReport
    commands: Sequence[str]  # the original command, followed by the resume commands
    facts: Mapping[str, str]  # model, parameters, data set, split, device, precision, time, images/s, seed, version
    history: Sequence[Mapping[str, Any]] = ()  # rows of metrics.jsonl
    config: Mapping[str, Any] | None = None
    unreadable: Sequence[str] = ()
    automatic: Sequence[str] = ()  # "batch_size = 64 (1,000 images on cpu)"
    next_commands: Sequence[str] = ()


def write_report(folder: Path, report: RunReport) -> Path:
    """Plot the training curves, write report.html and return its path. Without matplotlib, plots are omitted."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = json.dumps(report.config, indent=2, default=str, ensure_ascii=False)
    automatic = [tag("p", "Settings that were chosen automatically for this data:"), items(report.automatic)]
    sections = [
        Section("Run", _run(report)),
        Section("Curves", _curves(folder, report.history)),
        *report.task.sections,
        Section("Automatic choices", automatic if report.automatic else []),
        Section("Unreadable files", _unreadable(report.unreadable)),
        Section("Configuration", [] if report.config is None else [details("All settings (JSON)", code(settings))]),
        Section("Next steps", [code(command) for command in report.next_commands]),
    ]
    metrics = ((label(key), value(key, number)) for key, number in report.task.headline.items())
    subtitle = tag("p", report.task.description, class_="soft")
    page = sections_page(report.title, sections, subtitle, definitions(metrics, "headline"))
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8", errors="replace")  # file names may be invalid Unicode
    return path


def samples_section(
    folder: Path,
    images: UInt8[Tensor, "k c h w"],
    labels: Sequence[str] = (),
    classes: Sequence[str] = (),
    draw: bool = True,
) -> Section:
    """Return a section with augmented training images. With `draw`, also write samples.png."""
    labels = labels or [""] * len(images)
    if draw:
        plots.grid(folder / "samples.png", list(images), [class_caption(text, classes) for text in labels])
    text = "Training images after augmentation. If they are hard to recognise, the augmentation may be too strong."
    alts = [f"training image: {text}" for text in labels]
    return Section("Training images", [tag("p", text), photos(list(images), alts, [name(text) for text in labels])])


def figures_section(figures: Sequence[tuple[str, Path]]) -> Section:
    """Return a section that shows image files, given as (caption, path) pairs."""
    return Section("More figures", [plot(path, caption, caption, kind="sheet") for caption, path in figures])


def class_caption(text: str, classes: Sequence[str]) -> str:
    """Return a class name for a plot caption, or `class N` if the fonts cannot draw the name."""
    return readable(text, f"class {classes.index(text)}" if text in classes else "", 18)


def _run(report: RunReport) -> list[Html]:
    first, *resumed = report.commands
    content = [definitions(report.facts.items(), "facts"), tag("p", "Command:", class_="soft"), code(first)]
    if resumed:
        content += [tag("p", f"Resumed {len(resumed)} times:" if len(resumed) > 1 else "Resumed once:", class_="soft")]
        content += [code("\n".join(resumed))]
    return content


def _curves(folder: Path, history: Sequence[Mapping[str, Any]]) -> list[Html]:
    if not history:
        return []
    if not can_draw():
        return [tag("p", "Plots need matplotlib: ", tag("code", 'pip install "vitreous[plot]"'))]
    plots.curves(folder / "curves.png", history)
    best = plots.best_row(history)
    text = "Training metrics only; this run had no validation set."
    if best is not None:
        keys = [key for key in (*(f"val_{key}" for key in plots.BEST), "val_loss") if plots.is_number(best.get(key))]
        metrics = ", ".join(f"{label(key)} {value(key, best[key])}" for key in keys)
        axes = (f"{key} {best[key]:,.4g}" for key in ("epoch", "step") if plots.is_number(best.get(key)))
        text = (
            "Grey: training set. Blue: validation set. The dot marks the best evaluation, at "
            f"{next(axes, 'the marked point')}: {metrics}."
        )
    return [plot(folder / "curves.png", "Loss, metrics and learning rate during training", text)]


def _unreadable(names: Sequence[str]) -> list[Html]:
    if not names:
        return []
    text = f"{len(names):,} file{'s' * (len(names) != 1)} could not be read. Metrics exclude unreadable files."
    more = [tag("p", f"and {len(names) - MOST_UNREADABLE:,} more")] if len(names) > MOST_UNREADABLE else []
    return [tag("p", text), items(name(text) for text in names[:MOST_UNREADABLE]), *more]
