"""The page shows the numbers of the server."""

import io
import json
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from browser.actions import (
    TIMES,
    answered,
    ask,
    attention,
    bars,
    drop,
    expect_legend,
    hover,
    paste,
    percents,
    pixels,
    sample_image,
    sent,
    settled,
)

pytestmark = pytest.mark.xdist_group("browser")


def looking(open_page: Any, site: str, data: bytes, address: str = "") -> Any:
    """A page with a dropped image."""
    page = open_page(f"{site}/{address}")
    drop(page, data)
    answered(page)
    return page


def test_a_dropped_image_has_the_predictions_of_the_api(open_page: Any, site: str) -> None:
    page = open_page(site)
    expect(page.locator(".dropzone")).to_be_visible()
    expect(page.locator(".card")).to_have_count(3)
    drop(page, sample_image())
    expect(page.locator(".bar")).to_have_count(5)
    api = json.loads(ask(f"{site}/v1/classify?top=5&model=birds", sample_image(), "image/png"))
    assert bars(page) == percents(api["predictions"])
    facts = page.locator(".facts").inner_text()
    assert f"128 {TIMES} 96" in facts
    assert f"3 layers {TIMES} 3 heads" in facts


def test_a_pasted_photograph_is_shown_upright(open_page: Any, site: str) -> None:
    """The photograph is stored sideways with an EXIF orientation."""
    turned = Image.Exif()
    turned[0x0112] = 6  # a quarter turn
    kept = io.BytesIO()
    Image.open(io.BytesIO(sample_image())).convert("RGB").save(kept, "JPEG", exif=turned)
    page = open_page(site)
    paste(page, kept.getvalue(), "image/jpeg")
    answered(page)
    box = page.locator(".picture").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(120 / 160, rel=0.01)
    api = json.loads(ask(f"{site}/v1/classify?top=5&model=birds", kept.getvalue(), "image/jpeg"))
    assert bars(page) == percents(api["predictions"])


def test_hovering_another_patch_shows_its_attention(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image())
    weights = attention(site, sent(site, sample_image())["id"], layer=2).mean(axis=0)
    expect_legend(page, weights[0, 1:].max())  # the query is the class token
    before = pixels(page)
    for row, column in ((1, 2), (4, 6)):
        hover(page, row, column)
        expect(page.locator(".map-title")).to_contain_text(f"patch in row {row + 1}, column {column + 1}")
        expect_legend(page, weights[1 + row * 8 + column, 1:].max())
        assert pixels(page) != before
        before = pixels(page)
    page.mouse.move(5, 5)
    expect(page.locator(".map-title")).to_contain_text("class token")
    hover(page, 3, 3)
    page.mouse.down()
    page.mouse.up()
    hover(page, 0, 0)  # a pinned patch does not change
    expect(page.locator(".map-title")).to_contain_text("patch in row 4, column 4")


def test_the_matrix_and_the_plot_select_layer_and_head(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image())
    weights = [attention(site, sent(site, sample_image())["id"], layer) for layer in range(3)]
    page.get_by_role("gridcell", name="Layer 1, head 2").click()
    expect(page.locator(".map-title")).to_have_text("attention · class token · layer 1 · head 2")
    expect_legend(page, weights[0][1, 0, 1:].max())
    share = page.locator(".chip", has_text="class token").locator(".share").inner_text()
    assert share == f"{weights[0][1, 0, 0] * 100:.1f}%"
    page.get_by_role("button", name=re.compile("Layer 2, head 3: ")).click()
    expect(page.locator(".map-title")).to_have_text("attention · class token · layer 2 · head 3")
    expect_legend(page, weights[1][2, 0, 1:].max())
    expect(page.get_by_role("gridcell", name="Layer 2, head 3")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("map", ["rollout", "relevance", "occlusion"])
def test_maps_have_the_range_of_the_server(open_page: Any, site: str, map: str) -> None:
    page = looking(open_page, site, sample_image())
    page.locator(f"[data-map={map}]").click()
    expect(page.locator(".map-title")).to_contain_text(map)
    page.locator(".legend:not(.off)").wait_for()
    values = json.loads(ask(f"{site}/v1/images/{sent(site, sample_image())['id']}/map/{map}?model=birds"))["values"]
    most = np.abs(values).max() if map == "occlusion" else max(values)
    expect_legend(page, most)


def test_erasing_patches_updates_the_predictions(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image())
    whole = bars(page)
    page.get_by_role("button", name="Erase patches").click()
    hover(page, 2, 1)
    page.mouse.down()
    for column in (2, 3, 4):
        hover(page, 2, column)
    page.mouse.up()
    expect(page.locator(".answer")).to_contain_text("filled with the mean colour: 4")
    shown = sent(site, sample_image())
    classes = [one["index"] for one in shown["predictions"]]
    body = {"patches": [17, 18, 19, 20], "classes": classes}
    now = json.loads(ask(f"{site}/v1/images/{shown['id']}/masked?model=birds", body))["probabilities"]
    expected = {one["label"]: f"{now[str(one['index'])] * 100:.1f}%" for one in shown["predictions"]}
    assert expected != whole
    expect(page.locator(".bar .number").first).to_have_text(expected[shown["predictions"][0]["label"]])
    assert bars(page) == expected
    expect(page.locator(".compared .ghost").first).to_be_visible()
    page.get_by_role("button", name="Restore all").click()
    expect(page.locator(".bar .number").first).to_have_text(whole[shown["predictions"][0]["label"]])


def test_the_address_restores_the_view(open_page: Any, site: str) -> None:
    page = open_page(site)
    page.locator(".card[data-example=oranges]").click()
    answered(page)
    page.get_by_role("gridcell", name="Layer 2, head 1").click()
    page.locator(".picture").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    page.get_by_role("switch").click()
    page.get_by_label("Opacity").fill("55")
    page.get_by_role("tab", name="Filters").click()
    settled(page)
    page.wait_for_timeout(300)  # the address is updated after a pause
    expected, shown = page.locator(".map-title").inner_text(), pixels(page)
    again = open_page(page.url)
    answered(again)
    settled(again)
    expect(again.locator(".map-title")).to_have_text(expected)
    expect(again.get_by_role("tab", name="Filters")).to_have_attribute("aria-selected", "true")
    expect(again.get_by_role("switch")).to_have_text("blocky")
    assert pixels(again) == shown


def test_a_link_to_a_dropped_image_asks_for_the_image(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image(seed=5))
    page.locator("[data-map=similarity]").click()
    page.get_by_role("gridcell", name="Layer 1, head 1").click()
    settled(page)
    page.wait_for_timeout(300)
    again = open_page(page.url)
    expect(again.locator(".dropzone")).to_contain_text("Drop the same image")
    drop(again, sample_image(seed=5))
    answered(again)
    settled(again)
    assert again.locator(".map-title").inner_text() == page.locator(".map-title").inner_text()
    assert pixels(again) == pixels(page)


def test_an_expired_image_is_uploaded_again(open_page: Any, site: str, watch: Any) -> None:
    watch.expected = ("status of 404",)  # Chromium logs the error that the page handles
    page = looking(open_page, site, sample_image(seed=7))
    settled(page)
    for seed in range(100, 140):
        sent(site, sample_image(32, 24, seed))
    page.locator("[data-map=occlusion]").click()
    page.locator(".legend:not(.off)").wait_for()
    expect(page.locator("#notice")).to_be_hidden()


def test_the_faithfulness_curves_show_the_results_of_the_server(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image(), "#map=relevance")
    page.get_by_role("button", name="Test this map").click()
    expect(page.locator(".curves figure")).to_have_count(2)
    found = json.loads(ask(f"{site}/v1/images/{sent(site, sample_image())['id']}/faithfulness/relevance?model=birds"))
    expect(page.locator(".curves")).to_contain_text(f"area {found['deletion']['auc']:.3f}")
    expect(page.locator(".curves")).to_contain_text(f"random {found['random']['insertion']['auc']:.3f}")
    assert page.locator(".curves .line.random").count() == 2
    points = page.locator(".curves .line.random").first.get_attribute("points")
    assert len(points.split()) == len(found["random"]["deletion"]["curve"])


def test_the_logit_lens_ends_with_the_prediction(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image(), "#tab=lens")
    expect(page.locator(".lens tbody tr")).to_have_count(3)
    last = page.locator(".lens tbody tr").last.locator("td").first.inner_text()
    first = next(iter(bars(page).items()))
    assert last.split() == [*first]


def test_two_models_share_one_cursor(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image())
    page.get_by_role("button", name="Compare").click()
    expect(page.locator(".pane:not(.empty)")).to_have_count(2)
    page.locator(".pane").nth(1).locator(".legend:not(.off)").wait_for()
    hover(page, 2, 5)
    for pane in (0, 1):
        expect(page.locator(".map-title").nth(pane)).to_contain_text("patch in row 3, column 6")
    second = page.locator(".pane").nth(1)
    expect(second.locator(".answer")).to_contain_text("no classification head, only features")
    chips = [re.compile("class token"), re.compile("reg. 1"), re.compile("reg. 2"), "mean over patches"]
    expect(second.locator(".chip")).to_have_text(chips)
    expect(second.locator("[data-map=relevance]")).to_be_disabled()
    assert "model=birds,bare" in page.url


def test_without_a_class_token_the_query_is_the_mean_of_patches(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image(), "#model=pooled")
    expect(page.locator(".map-title")).to_have_text("attention · mean over patches · layer 3 · mean over heads")
    weights = attention(site, sent(site, sample_image(), "pooled")["id"], layer=2, tokens=48, model="pooled")
    expect_legend(page, weights.mean(axis=(0, 1)).max())


def test_a_segmenter_shows_its_mask_and_a_legend(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#model=masks")
    drop(page, sample_image())
    page.locator(".segment").first.wait_for()
    rows = page.locator(".segment").all()
    expected = {row.locator(".label").inner_text(): row.locator(".number").inner_text() for row in rows}
    segments = sent(site, sample_image(), "masks")["segments"]
    assert expected == {one["label"]: f"{one['share'] * 100:.1f}%" for one in segments}
    expect(page.locator(".map-title")).to_have_text("mask")
    expect(page.locator(".classes li")).to_have_text([one["label"] for one in segments])
    settled(page)
    masked = pixels(page)
    page.locator("[data-map=original]").click()
    expect(page.locator(".classes")).to_be_hidden()
    expect(page.locator(".map-title")).to_have_text("original")
    assert pixels(page) != masked


def test_the_class_under_the_pointer_is_named(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#model=masks")
    drop(page, sample_image())
    expect(page.locator(".map-title")).to_have_text("mask")
    settled(page)
    shown = sent(site, sample_image(), "masks")
    reply = ask(f"{site}/v1/images/{shown['id']}/mask?model=masks")
    ids = np.frombuffer(reply, np.uint8).reshape(-1, round((len(reply) * 160 / 120) ** 0.5))
    labels = {one["index"]: one["label"] for one in shown["segments"]}
    for row, column in ((0, 0), (2, 5), (5, 7)):
        hover(page, row, column)
        middle = ids[int((row + 0.5) / 6 * len(ids)), int((column + 0.5) / 8 * ids.shape[1])]
        expect(page.locator(".class-name")).to_have_text(labels[int(middle)])
    page.mouse.move(5, 5)
    expect(page.locator(".class-name")).to_be_hidden()
    page.locator(".picture").focus()
    page.keyboard.press("ArrowDown")
    named = re.compile(f"mask · patch in row 4, column 5 · ({'|'.join(labels.values())})")
    expect(page.locator(".map-title")).to_have_text(named)


def test_a_tall_image_is_scrolled_and_not_shrunk(open_page: Any, site: str) -> None:
    page = looking(open_page, site, sample_image(120, 1500))
    box, window = (page.locator(part).bounding_box() for part in (".picture", ".image-canvas"))
    assert box["width"] > 200
    assert window["height"] < 900
    middle = window["y"] + window["height"] / 2
    assert box["y"] + box["height"] / 2 == pytest.approx(middle, abs=30)  # the model sees the centre
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    expect(page.locator(".map-title")).to_contain_text("patch in row")
    page.locator(".picture").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".map-title")).to_contain_text("patch in row 4")


def test_a_resnet_has_predictions_and_no_maps(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#model=plain&map=attention")
    drop(page, sample_image())
    expect(page.locator(".bar")).to_have_count(3)
    expect(page.locator(".map-title")).to_have_text("original")
    expect(page.locator(".inside")).to_contain_text("no attention")
    expect(page.locator("[data-map]:enabled")).to_have_count(1)
    hover(page, 2, 2)
    page.locator(".picture").click()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".map-title")).to_have_text("original")


def test_hovering_redraws_without_a_request(open_page: Any, site: str, watch: Any, record_property: Any) -> None:
    """The attention of all tokens is loaded before; the time until everything is drawn is measured by the page."""
    page = looking(open_page, site, sample_image())
    settled(page)
    before = len(watch.requests)
    for step in range(20):
        hover(page, step % 6, (step * 3) % 8)
    page.wait_for_function("performance.getEntriesByName('hover').length >= 10")
    assert len(watch.requests) == before
    times = page.evaluate("performance.getEntriesByName('hover').map((entry) => entry.duration)")
    record_property("hover_median_ms", float(np.median(times)))


def test_a_model_with_many_tokens_loads_only_the_attention_of_the_query(open_page: Any, site: str, watch: Any) -> None:
    """The limit is lowered, because a real model with so many tokens is slow. Hovering loads the layer shown."""

    def lower(route: Any) -> None:
        script = route.fetch().text()
        assert "64e6" in script
        route.fulfill(body=script.replace("64e6", "8e3"), content_type="text/javascript")

    page = open_page("about:blank", wait=False)
    page.route("**/app/prefetch.js", lower)
    page.goto(f"{site}/#model=birds")
    page.locator("body[data-ready=yes]").wait_for()
    drop(page, sample_image())
    answered(page)
    settled(page)
    assert not [url for url in watch.requests if "/attention/" in url]
    weights = [attention(site, sent(site, sample_image())["id"], layer) for layer in range(3)]
    expect_legend(page, weights[2].mean(axis=0)[0, 1:].max())
    page.get_by_role("gridcell", name="Layer 1, head 2").click()
    expect_legend(page, weights[0][1, 0, 1:].max())
    expect(page.locator(".cells button.waiting")).to_have_count(0)
    page.locator(".picture").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".map-title")).to_contain_text("patch in row 4, column 5")
    expect_legend(page, weights[0][1, 1 + 3 * 8 + 4, 1:].max())
    page.get_by_role("button", name="mean over patches").click()
    expect_legend(page, weights[0][1, 1:, 1:].mean(axis=0).max())
    assert not [url for url in watch.requests if "/attention/" in url]
    hover(page, 1, 2)
    expect_legend(page, weights[0][1, 1 + 1 * 8 + 2, 1:].max())


@pytest.mark.parametrize("unknown", [True, False, None])
def test_an_unknown_image_is_marked(open_page: Any, site: str, unknown: bool | None) -> None:
    page = open_page(site)

    def answer(route: Any) -> None:
        reply = route.fetch()
        route.fulfill(response=reply, json=reply.json() | {"unknown": unknown})

    page.route("**/v1/images?*", answer)
    drop(page, sample_image())
    answered(page)
    hint = page.locator(".unknown")
    expect(hint).to_be_visible() if unknown else expect(hint).to_be_hidden()
    expect(hint).to_contain_text("unlike")
