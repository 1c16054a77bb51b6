"""Elements of a report: one HTML file that loads nothing else.

Plain strings are escaped wherever they enter a page; only `Html`, which the functions here return, is not. A policy in
the head forbids scripts and requests.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Literal

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vitreous.report.plots import as_array

STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
VOID = frozenset({"img", "meta", "br"})
TYPES = {"png": "png", "jpg": "jpeg", "jpeg": "jpeg", "webp": "webp", "svg": "svg+xml"}  # by the end of the file name
THUMBNAIL, TINY = 224, 64  # pixels: larger images are shrunk; smaller ones are shown with visible pixels


class Html(str):
    """Text that is already HTML."""


def inner(*children: str) -> Html:
    """Join children; plain strings are escaped."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """An element. A trailing underscore is dropped from attribute names, as in `class_`; others become hyphens.

    >>> tag("p", "1 < 2 ", tag("b", "yes"), class_="soft")
    '<p class="soft">1 &lt; 2 <b>yes</b></p>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"' for key, text in attributes.items())
    return Html(f"<{name}{written}>" + ("" if name in VOID else f"{inner(*children)}</{name}>"))


def document(title: str, *body: str) -> str:
    """A whole page."""
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
    """A page with a header, links to its sections, and the sections; empty ones are skipped."""
    filled = [(heading, parts, _anchor(heading)) for heading, parts in sections if parts]
    links = [tag("a", heading, href=f"#{anchor}") for heading, _, anchor in filled]
    body = [tag("section", tag("h2", heading, id=anchor), *parts) for heading, parts, anchor in filled]
    top = tag("header", tag("h1", title), *header)
    return document(title, top, tag("nav", *links), tag("main", *body))


def _anchor(heading: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in heading.lower()).strip("-")


def name(text: str) -> Html:
    """The name of a class or a file, isolated from the text direction around it."""
    return tag("bdi", text)


def definitions(pairs: Iterable[tuple[str, str]], kind: str) -> Html:
    """Terms and their values as a list of class `kind`."""
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
    """A table whose first column names the row; the first `text_columns` are text, the others numbers."""

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
    """A number from 0 to 1 as a length."""
    return tag("span", tag("i", style=f"width: {fraction:.1%}"), class_="bar")


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
    """An embedded image file with title and caption at `scale` of its size. Charts are inverted on dark pages."""
    format = TYPES.get(path.suffix.lower().removeprefix("."))
    if format is None:
        raise ValueError(f"{path.name} cannot be put into a report: use one of {', '.join(TYPES)}")
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
    """A grid of images: small ones as exact PNG with visible pixels, large ones as JPEG thumbnails."""
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
