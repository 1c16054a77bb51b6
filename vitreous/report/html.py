"""The words a report is written in: elements, tables, figures and pictures of one HTML file that needs nothing else.

A plain string is escaped wherever it enters a page; only `Html`, which the functions here return, is not. So a class
called `<script>` is shown, not run, without anyone having to think of it; a policy in the head forbids scripts and
requests altogether.
"""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from jaxtyping import UInt8
from PIL import Image
from torch import Tensor

from vitreous.report.plots import as_array

VOID = frozenset({"img", "meta", "br"})
TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
THUMBNAIL, TINY = 224, 64  # pixels: larger pictures are shrunk; smaller ones are shown as the squares they are

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #24292f; --soft: #59636e; --line: #d8dee4; --card: #f6f8fa;
  --accent: #1764ab; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #141414; --ink: #e4e6e8; --soft: #9da5ae; --line: #34383d; --card: #1e2022; --accent: #79b8f3; }
  .plot img { filter: invert(0.92) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 2rem 1rem 4rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif; }
h1 { margin: 0; font-size: 1.7rem; line-height: 1.25; }
h2 { margin: 3rem 0 0.75rem; padding-top: 1rem; border-top: 1px solid var(--line); font-size: 1.2rem; }
p { max-width: 44rem; margin: 0.5rem 0; }
a { color: var(--accent); }
bdi { overflow-wrap: anywhere; }
.soft, figcaption, caption { color: var(--soft); }
nav { margin-top: 1.5rem; font-size: 0.9rem; line-height: 1.9; }
nav a { display: inline-block; margin-right: 1rem; text-decoration: none; white-space: nowrap; }
.headline { display: flex; flex-wrap: wrap; gap: 0.75rem; margin: 1.5rem 0 0; }
.headline div { flex: 1 0 auto; min-width: 7.5rem; padding: 0.8rem 1rem; background: var(--card);
  border-radius: 0.5rem; }
.headline dt { color: var(--soft); font-size: 0.85rem; }
.headline dd { margin: 0; font-size: 1.5rem; font-weight: 600; line-height: 1.3; white-space: nowrap; }
.headline div:first-child dd { color: var(--accent); }
.facts { display: grid; grid-template-columns: max-content 1fr; gap: 0.35rem 1.5rem; margin: 0 0 1rem; }
.facts dt { color: var(--soft); }
.facts dd { margin: 0; overflow-wrap: anywhere; }
.side { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; align-items: flex-start; }
.side > * { max-width: 100%; }
.scroll { overflow-x: auto; }
.scroll + .scroll { margin-top: 1.2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: 0.5rem; }
th, td { padding: 0.3rem 1.2rem 0.3rem 0; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { font-weight: 400; }
thead th { color: var(--soft); font-size: 0.85rem; vertical-align: bottom; }
th:first-child, td.text, th.text { text-align: left; white-space: normal; }
.bar { display: inline-block; width: 7rem; height: 0.6rem; border-radius: 0.3rem; background: var(--line); }
.bar + span { display: inline-block; min-width: 4.2rem; }
.bar i { display: block; height: 100%; border-radius: 0.3rem; background: var(--accent); }
figure { margin: 0.75rem 0; }
figcaption { max-width: 44rem; margin-top: 0.4rem; font-size: 0.9rem; }
.drawn { max-width: min(100%, max(var(--width, 100%), 20rem)); }
.plot { overflow-x: auto; }
.plot img { display: block; max-width: 100%; height: auto; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(7rem, 1fr)); gap: 1rem 0.75rem; padding: 0; }
.grid figure { margin: 0; font-size: 0.85rem; line-height: 1.35; }
.photos { grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
.grid figcaption { font-size: inherit; overflow-wrap: anywhere; }
.grid b { color: var(--ink); font-weight: 600; }
.grid small { display: -webkit-box; overflow: hidden; -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.grid img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; border-radius: 0.25rem;
  background: var(--card); }
.tiny img { image-rendering: pixelated; }
pre { margin: 0.5rem 0; padding: 0.7rem 1rem; overflow-x: auto; background: var(--card); border-radius: 0.5rem;
  font: 0.875rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
summary { cursor: pointer; color: var(--accent); }
ul { max-width: 50rem; padding-left: 1.2rem; }
li { margin: 0.25rem 0; overflow-wrap: anywhere; }
footer { margin-top: 4rem; color: var(--soft); font-size: 0.85rem; }
@media (max-width: 40rem) {
  .plot img { max-width: none; width: calc(var(--width) * 0.75); min-width: min(100%, var(--width)); }
  .facts { grid-template-columns: 1fr; gap: 0; }
  .facts dd { margin-bottom: 0.6rem; }
  .grid { grid-template-columns: repeat(auto-fill, minmax(5.5rem, 1fr)); }
  .photos { grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); }
  .bar { display: none; }
  th, td { padding-right: 0.8rem; }
}
@media print {
  :root { --ground: #fff; --ink: #000; --soft: #444; --line: #bbb; --card: #f4f4f4; --accent: #1764ab; }
  .plot img { filter: none; }
  body { max-width: none; padding: 0; font-size: 0.8rem; }
  nav { display: none; }
  h2, caption { break-after: avoid; }
  figure, tr, pre, .headline { break-inside: avoid; }
}
"""


class Html(str):
    """Text that is HTML already."""


def inner(*children: str) -> Html:
    """Children one after the other, escaped where they are plain strings."""
    return Html("".join(child if isinstance(child, Html) else escape(child) for child in children))


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """An element. `class_` is the attribute class, and so on for other words that Python keeps for itself.

    >>> tag("p", "1 < 2 ", tag("b", "yes"), class_="soft")
    '<p class="soft">1 &lt; 2 <b>yes</b></p>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(text)}"' for key, text in attributes.items())
    return Html(f"<{name}{written}>" + ("" if name in VOID else f"{inner(*children)}</{name}>"))


def document(title: str, *body: str, style: str = "") -> str:
    """A whole page; `style` is CSS that only it needs."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", title),
        tag("style", Html(STYLE + style)),
    )
    return "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n"


def name(text: str) -> Html:
    """The name of a class or a file: whatever direction it is written in, it does not turn what stands around it."""
    return tag("bdi", text)


def definitions(pairs: Iterable[tuple[str, str]], kind: str) -> Html:
    """Names and what they stand for."""
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
    """The first column names the row; the first `text_columns` are text, the others numbers."""

    def cell(kind: str, index: int, text: str, **attributes: str) -> Html:
        return tag(kind, text, **attributes, **({"class_": "text"} if index < text_columns else {}))

    head = tag("tr", *(cell("th", index, text, scope="col") for index, text in enumerate(columns)))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(cell("td", index, text) for index, text in enumerate(row) if index))
        for row in rows
    ]
    title = [tag("caption", caption)] if caption else []
    return tag("div", tag("table", *title, tag("thead", head), tag("tbody", *body)), class_="scroll")


def bar(share: float) -> Html:
    """A number from 0 to 1 as a length."""
    return tag("span", tag("i", style=f"width: {share:.1%}"), class_="bar")


def embedded(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def plot(path: Path, alt: str, caption: str) -> Html:
    """A picture file with a caption, inside the page. It is drawn for screens of about twice the usual density."""
    kind = TYPES.get(path.suffix.lower())
    if kind is None:
        raise ValueError(f"{path.name} cannot be put into a report: use one of {', '.join(TYPES)}")
    content = path.read_bytes()
    size: dict[str, str] = {}
    style: dict[str, str] = {}
    if kind != "image/svg+xml":
        with Image.open(io.BytesIO(content)) as image:
            width = round(image.width * 0.6)
            size = {"width": str(width), "height": str(round(image.height * 0.6))}
            style = {"style": f"--width: {width}px"}
    picture = tag("img", src=embedded(content, kind), alt=alt, **size)
    return tag("figure", tag("div", picture, class_="plot"), tag("figcaption", caption), class_="drawn", **style)


def photos(pictures: Sequence[UInt8[Tensor, "_ _ _"]], alts: Sequence[str], captions: Sequence[str]) -> Html:
    """A grid of pictures: small ones exactly, with visible pixels; large ones as JPEG thumbnails."""
    tiny = all(max(picture.shape[1:]) < TINY for picture in pictures)
    shown = []
    for picture, alt, caption in zip(pictures, alts, captions, strict=True):
        image, buffer = Image.fromarray(as_array(picture)), io.BytesIO()
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        image.save(buffer, "PNG" if tiny else "JPEG", quality=88, optimize=True)
        source = embedded(buffer.getvalue(), "image/png" if tiny else "image/jpeg")
        shown.append(tag("figure", tag("img", src=source, alt=alt), tag("figcaption", caption)))
    return tag("div", *shown, class_="grid tiny" if tiny else "grid photos")
