"""Links, history and focus: the view survives reloading, going back, skipping to the image and refused images."""

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from browser.actions import answered, attention, bars, drop, expect_legend, hover, sample_image, sent

pytestmark = pytest.mark.xdist_group("browser")


def dropped(open_page: Any, url: str, data: bytes) -> Any:
    page = open_page(url)
    drop(page, data)
    answered(page)
    return page


def test_skipping_to_the_image_keeps_it(open_page: Any, site: str) -> None:
    page = dropped(open_page, site, sample_image())
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    expect(page.locator(".pane:not(.empty)")).to_have_count(1)
    assert "image=" in page.url


def test_a_link_restores_patch_class_and_erased_patches_of_a_dropped_image(open_page: Any, site: str) -> None:
    data = sample_image(seed=5)
    id = sent(site, data)["id"]
    page = open_page(f"{site}/#model=birds&image={id}&map=relevance&at=0.5625,0.5833&class=3&erased=9-11")
    drop(page, data)
    answered(page)
    expect(page.locator(".map-title")).to_have_text("relevance · plover")
    expect(page.locator(".answer")).to_contain_text("filled with the mean colour: 3")
    page.locator("[data-map=attention]").click()
    expect(page.locator(".map-title")).to_contain_text("patch in row 4, column 5")
    expect(page.locator("#notice")).to_be_hidden()


def test_another_image_than_that_of_the_link_gets_a_notice(open_page: Any, site: str) -> None:
    id = sent(site, sample_image(seed=5))["id"]
    page = open_page(f"{site}/#image={id}&map=similarity&at=0.5,0.5&erased=9-11")
    drop(page, sample_image(seed=6))
    answered(page)
    expect(page.get_by_role("alert")).to_contain_text("not the image of the link")
    expect(page.locator(".map-title")).to_have_text("similarity · class token · layer 3")
    assert "erased" not in page.url


def test_a_reload_keeps_a_dropped_image(open_page: Any, site: str) -> None:
    page = dropped(open_page, site, sample_image(seed=8))
    page.locator("[data-map=similarity]").click()
    page.wait_for_url(re.compile("map=similarity"))
    before = bars(page)
    page.reload()
    answered(page)
    expect(page.locator(".map-title")).to_contain_text("similarity")
    assert bars(page) == before


STORED = """([ages]) => new Promise((resolve) => {
  const request = indexedDB.open("vitreous");
  request.onsuccess = () => {
    const store = request.result.transaction("images", "readwrite").objectStore("images");
    for (const age of ages) store.put({ id: `${age}`, blob: new Blob(), time: Date.now() - age * 3600_000 });
    store.getAllKeys().onsuccess = ({ target }) => { request.result.close(); resolve(target.result); };
  };
})"""


@pytest.mark.slow
def test_stored_images_are_removed_after_a_day_or_when_there_are_many(open_page: Any, site: str) -> None:
    page = dropped(open_page, site, sample_image(seed=8))
    count = f"async (count) => (await ({STORED})([[]])).length === count"
    page.wait_for_function(count, arg=1)
    assert len(page.evaluate(STORED, [[25, 23, 40]])) == 4  # hours
    page.reload()
    page.wait_for_function(count, arg=2)
    assert "23" in page.evaluate(STORED, [[]])  # and the dropped image
    page.evaluate(STORED, [[*range(1, 12)]])
    page.reload()
    page.wait_for_function(count, arg=8)
    assert {*map(str, range(1, 8))} < set(page.evaluate(STORED, [[]]))


def test_back_returns_to_the_image_before_and_then_to_the_start(open_page: Any, site: str) -> None:
    page = dropped(open_page, site, sample_image(seed=8))
    hover(page, 2, 3)
    page.locator(".picture").click()
    expect(page.locator(".map-title")).to_contain_text("patch in row")
    title, first = page.locator(".map-title").inner_text(), bars(page)
    page.locator(".quick").first.click()
    page.wait_for_url(re.compile("image=balloon"))
    expect(page.locator(".map-title")).to_contain_text("class token")
    page.go_back()
    expect(page.locator(".map-title")).to_have_text(title)
    assert bars(page) == first
    page.go_back()
    expect(page.locator(".dropzone")).to_be_visible()
    page.go_forward()
    expect(page.locator(".map-title")).to_have_text(title)


def test_a_link_to_another_model_is_explained(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#model=fishes&image=balloon")
    answered(page)
    expect(page.get_by_role("alert")).to_contain_text("fishes")
    expect(page.locator("select.model")).to_have_value("birds")


def test_an_example_chosen_by_keyboard_leaves_the_focus_on_the_image(open_page: Any, site: str) -> None:
    page = open_page(site)
    page.locator(".card").first.focus()
    page.keyboard.press("Enter")
    answered(page)
    expect(page.locator(".picture")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".map-title")).to_contain_text("patch in row")
    page.locator("select.model").focus()
    page.keyboard.press("ArrowDown")
    page.wait_for_url(re.compile("model=bare"))
    expect(page.locator("select.model")).to_be_focused()


def test_a_refused_image_leaves_the_view(open_page: Any, site: str, watch: Any) -> None:
    watch.expected = ("status of 413",)
    page = dropped(open_page, site, sample_image())
    hover(page, 2, 3)
    page.locator(".picture").click()
    expect(page.locator(".map-title")).to_contain_text("patch in row")
    title, before = page.locator(".map-title").inner_text(), bars(page)
    answer = {"error": {"code": "body_too_large", "message": "the request body is larger than 1 byte"}}
    page.route("**/v1/images?*", lambda route: route.fulfill(status=413, json=answer))
    drop(page, sample_image(seed=2))
    expect(page.get_by_role("alert")).to_contain_text("too large for this server")
    expect(page.locator(".map-title")).to_have_text(title)
    assert bars(page) == before


def test_a_layer_is_loaded_once_the_server_is_back(open_page: Any, site: str, watch: Any) -> None:
    watch.expected = ("ERR_CONNECTION_REFUSED",)
    page = open_page(site)
    down = [True]
    page.route("**/attention/0?*", lambda route: route.abort("connectionrefused") if down[0] else route.continue_())
    drop(page, sample_image())
    answered(page)
    page.get_by_role("gridcell", name="Layer 1, head 2").click()
    expect(page.locator(".caption")).to_contain_text("not responding")
    down[0] = False
    weights = attention(site, sent(site, sample_image())["id"], layer=0)
    expect_legend(page, weights[1, 0, 1:].max())
    expect(page.locator(".caption")).not_to_contain_text("not responding")


def contrast(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    """Contrast ratio of WCAG 2."""

    def luminance(colour: tuple[int, ...]) -> float:
        parts = [part / 255 for part in colour[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_selected_position_has_a_visible_frame(open_page: Any, site: str, scheme: str) -> None:
    """The frame lies in the gap around the tile, which has the colour of the page."""
    page = dropped(open_page, f"{site}/#tab=position", sample_image())
    page.emulate_media(color_scheme=scheme)
    page.locator(".mosaic").wait_for()
    hover(page, 2, 3)
    expect(page.locator(".aside")).to_contain_text("Row 3, column 4")
    tile, mosaic = (page.locator(part).bounding_box() for part in (".tile", ".mosaic"))
    assert tile["x"] - mosaic["x"] == pytest.approx(mosaic["width"] * 3 / 8, abs=2)
    assert tile["y"] - mosaic["y"] == pytest.approx(mosaic["height"] * 2 / 6, abs=2)
    colours = page.evaluate(
        "[getComputedStyle(document.querySelector('.tile')).outlineColor,"
        " getComputedStyle(document.body).backgroundColor]"
    )
    assert contrast(*(tuple(map(int, re.findall(r"\d+", colour))) for colour in colours)) > 3


def test_long_labels_can_be_read(open_page: Any, site: str) -> None:
    page = open_page(site)
    long = "great northern diver with a very long name, Gavia immer immer immer"

    def answer(route: Any) -> None:
        reply = route.fetch()
        found = reply.json()
        found["predictions"][0]["label"] = long
        route.fulfill(response=reply, json=found)

    page.route("**/v1/images?*", answer)
    drop(page, sample_image())
    answered(page)
    label = page.locator(".bar .label").first
    expect(label).to_have_text(long)
    assert label.evaluate(
        "(node) => node.scrollWidth <= node.clientWidth && node.scrollHeight <= node.clientHeight + 1"
    )
