import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitreous.report import html as page


class Reader(HTMLParser):
    """Elements, attributes and text of a page, as a browser parses them."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in page.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "elements are nested"

    def handle_data(self, data: str) -> None:
        self.text += data


def images_of(html: str) -> list[Image.Image]:
    sources = [attributes["src"] or "" for tag, attributes in Reader(html).elements if tag == "img"]
    return [Image.open(io.BytesIO(base64.b64decode(source.split(",", 1)[1]))) for source in sources]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00")))
def test_any_text_is_escaped(text: str) -> None:
    for element in (page.tag("p", text), page.name(text), page.code(text), page.items([text])):
        read = Reader(element)
        assert read.text == text
        assert len(read.elements) <= 2
    assert Reader(page.tag("img", alt=text)).elements == [("img", {"alt": text})]


def test_html_is_not_escaped_twice() -> None:
    inside = page.tag("b", "<")
    assert page.tag("p", inside, "<") == "<p><b>&lt;</b>&lt;</p>"


def test_a_document_is_complete_and_loads_nothing() -> None:
    html = page.document("a <title>", page.tag("p", "hello"))
    read = Reader(html)
    assert html.startswith("<!doctype html>")
    assert ("html", {"lang": "en"}) in read.elements
    assert ("meta", {"charset": "utf-8"}) in read.elements
    policies = [attributes["content"] for tag, attributes in read.elements if "http-equiv" in attributes]
    assert policies == ["default-src 'none'; img-src data:; style-src 'unsafe-inline'"]
    assert not re.search(r"https?:|url\(|@import", html)
    assert {tag for tag, _ in read.elements} == {"html", "head", "meta", "title", "style", "body", "p"}


def test_every_colour_is_defined_for_dark_pages_and_print() -> None:
    light, dark, printed = re.findall(r":root \{([^}]*)\}", page.STYLE)
    names = [set(re.findall(r"--\w+", block)) for block in (light, dark, printed)]
    assert names[0] == names[1] == names[2]
    assert set(re.findall(r"var\((--\w+)", page.STYLE)) <= names[0] | {"--width", "--aspect"}


def test_a_page_links_its_sections_and_skips_empty_ones() -> None:
    sections = [("One & two", [page.tag("p", "text")]), ("Empty", []), ("Three", [page.tag("p", "more")])]
    read = Reader(page.sections_page("title", sections, page.tag("p", "subtitle")))
    links = [attributes["href"] for tag, attributes in read.elements if tag == "a"]
    assert links == [f"#{attributes['id']}" for tag, attributes in read.elements if tag == "h2"]
    assert len(links) == 2
    assert "Empty" not in read.text


def test_tables_name_their_rows_and_columns() -> None:
    read = Reader(page.table(["class", "pictures"], [["<a>", "1"], ["b", "2"]], caption="all"))
    scopes = [attributes.get("scope") for tag, attributes in read.elements if tag == "th"]
    assert scopes == ["col", "col", "row", "row"]
    assert [tag for tag, _ in read.elements].count("td") == 2
    assert read.text == "allclasspictures<a>1b2"


def test_small_images_are_embedded_exactly() -> None:
    sample_image = torch.randint(256, (1, 8, 8), dtype=torch.uint8)
    (image,) = images_of(page.photos([sample_image], ["a digit"], ["7"]))
    assert (np.asarray(image) == sample_image[0].numpy()).all()


def test_large_images_become_thumbnails() -> None:
    y, x = torch.meshgrid(torch.linspace(0, 255, 900), torch.linspace(0, 255, 1200), indexing="ij")
    sample_image = torch.stack([x, y, (x + y) / 2]).byte()
    html = page.photos([sample_image], ["a slope"], ["slope"])
    (image,) = images_of(html)
    assert image.size == (224, 168)
    assert len(html) < 40_000
    corners = np.asarray(image)[[0, 0, -1, -1], [0, -1, 0, -1]].astype(int)
    assert np.abs(corners - [[0, 0, 0], [255, 0, 127], [0, 255, 127], [255, 255, 255]]).max() < 20


def test_plots_are_embedded_with_their_size(tmp_path: Path) -> None:
    Image.new("RGB", (100, 50), "red").save(tmp_path / "x.png")
    html = page.plot(tmp_path / "x.png", 'an "alt"', "what it shows")
    (image,) = images_of(html)
    assert image.size == (100, 50)
    ((_, attributes),) = [element for element in Reader(html).elements if element[0] == "img"]
    assert (attributes["alt"], attributes["width"], attributes["height"]) == ('an "alt"', "60", "30")


def test_vector_graphics_are_embedded_and_other_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "x.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>')
    html = page.plot(tmp_path / "x.svg", "a drawing", "caption")
    assert "data:image/svg+xml;base64," in html
    assert "script" not in {tag for tag, _ in Reader(html).elements}
    (tmp_path / "x.html").write_text("<p>")
    with pytest.raises(ValueError, match=r"x\.html cannot be embedded"):
        page.plot(tmp_path / "x.html", "", "")
