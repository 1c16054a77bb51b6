"""Accessibility of the page: languages, keyboard, phone, screen readers."""

import re
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import expect

from browser import draw_examples
from browser.actions import PAGE, answered, drop, sample_image, settled

pytestmark = pytest.mark.xdist_group("browser")


def serious_violations(page: Any) -> list[str]:
    """Serious and critical violations that axe-core finds, in light and dark mode."""
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for one in Axe().run(page).response["violations"]:
            if one["impact"] in ("serious", "critical"):
                found += [f"{scheme}: {one['id']}: {node['failureSummary']}: {node['html']}" for node in one["nodes"]]
    return found


def test_no_serious_violation(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#model=birds,bare", reduced_motion="reduce")
    settled(page)
    assert serious_violations(page) == []
    drop(page, sample_image())
    answered(page)
    page.get_by_role("button", name="Erase patches").first.click()
    page.get_by_role("tab", name="Logit lens").first.click()
    settled(page)
    assert serious_violations(page) == []
    page.get_by_role("button", name="Walk through").click()
    expect(page.locator("#walk[data-step]")).to_be_visible()
    page.keyboard.press("ArrowRight")
    page.locator("#walk summary").first.click()
    drop(page, b"?", "text/plain")
    expect(page.get_by_role("alert")).to_be_visible()
    assert serious_violations(page) == []


def test_the_theme_is_remembered(open_page: Any, site: str) -> None:
    page = open_page(site, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Switch between light and dark").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    page.locator("body[data-ready=yes]").wait_for()
    assert page.evaluate(ground) == dark


def test_the_keyboard_reaches_everything(open_page: Any, site: str) -> None:
    page = open_page(site)
    _tab_to(page, ".card")
    page.keyboard.press("Enter")
    answered(page)
    _tab_to(page, ".picture")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".map-title")).to_contain_text("patch in row 4, column 4")
    _tab_to(page, ".chip")
    page.keyboard.press("Enter")
    expect(page.locator(".map-title")).to_contain_text("class token")
    _tab_to(page, "[data-map=attention]")
    page.keyboard.press("ArrowDown")
    expect(page.locator(".map-title")).to_contain_text("similarity")
    page.keyboard.press("ArrowUp")
    _tab_to(page, ".answer .toggle")
    page.keyboard.press("Enter")
    page.locator(".picture").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Space")
    expect(page.locator(".answer")).to_contain_text("filled with the mean colour: 1")
    _tab_to(page, "[role=gridcell]")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".map-title")).to_contain_text("layer 2 · head 1")
    _tab_to(page, ".dot")
    page.keyboard.press("ArrowRight")
    expect(page.locator(".map-title")).to_contain_text("layer 3")
    _tab_to(page, "[role=tab]")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Filters")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".filters canvas").first).to_be_visible()


def _tab_to(page: Any, selector: str) -> None:
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
    pytest.fail(f"{selector} cannot be reached with Tab")


def test_the_whole_page_is_translated_to_chinese(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#model=birds,bare")
    drop(page, sample_image())
    answered(page)
    settled(page)
    names = {
        "Vitreous",
        "PCA",
        "English",
        "PNG",
        "GIF",
        "JPEG",
        "WebP",
        "MB",
        "ViT",
        "BiT",
        "Swin",
        "M",
        "k",
        "Esc",
        "Space",
        "Tab",
        "softmax",
        "HTTP",
        "API",
        "rollout",
        "logit",
        "lens",
    }
    labels = {
        "heron",
        "otter",
        "newt",
        "plover",
        "stoat",
        "wren",
        "birds",
        "bare",
        "pooled",
        "masks",
        "plain",
        "rotary",
        "swin",
        "png",
    }
    page.get_by_role("button", name="中文").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")
    settled(page)
    words = set(re.findall(r"[A-Za-z]{2,}", page.locator("body").inner_text()))
    assert words <= names | labels
    spoken = page.locator("body").evaluate(
        "(body) => [...body.querySelectorAll('[aria-label], [title], img[alt]')].flatMap("
        "(node) => ['aria-label', 'title', 'alt'].map((name) => node.getAttribute(name) ?? ''))"
    )
    spoken_text = " ".join(one for one in spoken if not one.startswith("/"))  # paths of checkpoints
    assert set(re.findall(r"[A-Za-z]{2,}", spoken_text)) <= names | labels
    page.reload()
    expect(page.locator("html")).to_have_attribute("lang", "zh-CN")


def test_both_languages_have_the_same_keys_and_placeholders(open_page: Any, site: str) -> None:
    page = open_page(site)
    tables = page.evaluate(
        "async () => [(await import('/page/text/en.js')).en, (await import('/page/text/zh.js')).zh].map((table) => "
        "Object.fromEntries(Object.entries(table).map(([key, text]) => [key, (text.match(/{\\w+}/g) ?? []).sort()])))"
    )
    assert tables[0] == tables[1]


def test_on_a_phone_all_parts_are_in_one_column(open_page: Any, site: str) -> None:
    page = open_page(site, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.locator(".card").first.tap()
    answered(page)
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    expect(page.get_by_role("button", name="Copy link")).to_be_visible()
    places = [page.locator(part).bounding_box() for part in (".picture", ".answer", ".matrix", ".distance", ".more")]
    tops = [place["y"] for place in places]
    assert tops == sorted(tops)
    assert all(place["x"] + place["width"] <= 390 for place in places)
    box = places[0]
    page.touchscreen.tap(box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.55)
    expect(page.locator(".map-title")).to_contain_text("patch in row")


@pytest.mark.parametrize("name", draw_examples.EXAMPLES)
def test_examples_equal_the_output_of_the_script(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare within the loss of WebP and of a coarser drawing; each file is small."""
    monkeypatch.setattr(draw_examples, "FINER", 1)
    path = PAGE / "examples" / f"{name}.webp"
    assert path.stat().st_size < 40_000
    drawn, kept = draw_examples.EXAMPLES[name](), Image.open(path).convert("RGB")
    assert drawn.size == kept.size
    quarter = (drawn.width // 4, drawn.height // 4)
    difference = np.asarray(drawn.resize(quarter), dtype=float) - np.asarray(kept.resize(quarter), dtype=float)
    assert np.abs(difference).mean() < 4


@pytest.mark.slow
def test_no_violation_at_three_widths_in_both_themes_and_languages(open_page: Any, site: str) -> None:
    """Of any impact: an image with its curves, a mask, and an error."""
    page = open_page(f"{site}/#model=birds&image=balloon&map=relevance&check=1", reduced_motion="reduce")
    answered(page)
    page.locator(".curves figure").first.wait_for()
    for width in (390, 820, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            found = [f"{one['id']}: {one['nodes'][0]['html']}" for one in Axe().run(page).response["violations"]]
            assert found == [], (width, scheme)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.locator("#language").click()  # the other language for the next combination
        page.locator("select.model").select_option("masks" if width == 390 else "birds")
        settled(page)
        drop(page, b"?", "text/plain")
