"""Playing the layers of a map, saving it, the nearest images of a gallery, a second image, and two models."""

import io
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from browser.actions import answered, ask, attention, drop, expect_legend, hover, sample_image, sent, settled

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.slow
def test_the_slider_shows_each_layer_of_each_map(open_page: Any, site: str) -> None:
    page = open_page(site)
    drop(page, sample_image())
    answered(page)
    slider = page.get_by_label("Layer 3 of 3")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".map-title")).to_contain_text("layer 1")
    weights = attention(site, sent(site, sample_image())["id"], 0).mean(axis=0)
    expect_legend(page, weights[0, 1:].max())
    for map in ("similarity", "rollout", "pca"):
        page.locator(f"[data-map={map}]").click()
        expect(page.get_by_label("Layer 1 of 3")).to_be_visible()
    with page.expect_response(re.compile("rollout.*layer=1")):
        page.locator("[data-map=rollout]").click()
        page.get_by_label("Layer 1 of 3").press("ArrowRight")
    page.locator("[data-map=relevance]").click()
    expect(page.locator(".layer-slider")).to_be_hidden()  # relevance does not depend on the layer


def test_playing_goes_through_the_layers(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#image=balloon")
    answered(page)
    settled(page)
    page.get_by_role("button", name="Play the layers").click()
    for layer in (1, 2, 3, 1):
        expect(page.locator(".map-title")).to_contain_text(f"layer {layer}")
    page.get_by_role("button", name="Stop playing").click()
    expect(page.get_by_role("button", name="Play the layers")).to_be_visible()


@pytest.mark.slow
def test_a_map_is_saved_as_png_and_its_layers_as_gif(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#image=balloon&layer=2")
    answered(page)
    with page.expect_download() as png:
        page.get_by_role("button", name="Save PNG").click()
    assert png.value.suggested_filename == "birds-attention.png"
    with Image.open(png.value.path()) as card:
        assert card.width == 960
    with page.expect_download() as gif:
        page.get_by_role("button", name="Save GIF").click()
    data = io.BytesIO(gif.value.path().read_bytes())
    with Image.open(data) as frames:
        assert frames.n_frames >= 3
        first = np.asarray(frames.convert("RGB"), dtype=int)
        frames.seek(1)
        assert np.abs(np.asarray(frames.convert("RGB"), dtype=int) - first).mean() > 1  # another layer
    expect(page.locator(".map-title")).to_contain_text("layer 2")  # as before


def test_a_recording_ends_quietly_when_another_image_is_opened(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#image=balloon&map=pca")
    page.locator(".pane:not(.empty)").wait_for()
    settled(page)
    page.route("**/map/pca?layer=0*", lambda route: None)  # the first layer never arrives
    save = page.get_by_role("button", name="Save GIF")
    save.click()
    expect(save).to_be_disabled()
    drop(page, sample_image())
    expect(save).to_be_enabled()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_an_encoder_shows_the_nearest_images_and_patches(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#model=bare")
    drop(page, sample_image(seed=1))
    answered(page)
    nearest = page.locator(".neighbours li")
    expect(nearest.first).to_contain_text("1.png")
    expect(nearest.first).to_contain_text("1.000")
    expect(nearest).to_have_count(3)
    hover(page, 2, 5)
    page.mouse.down()
    page.mouse.up()
    expect(page.locator(".gallery")).to_contain_text("most similar to the pinned one")
    expect(nearest.first).to_contain_text("1.png")


def test_a_second_image_shows_the_matches_of_a_patch(open_page: Any, site: str) -> None:
    page = open_page(site)
    drop(page, sample_image())
    answered(page)
    second = {"name": "second.png", "mimeType": "image/png", "buffer": sample_image(seed=4)}
    page.locator(".pair input[type=file]").set_input_files(second)
    hover(page, 1, 6)
    first, other = (sent(site, sample_image(seed=seed))["id"] for seed in (0, 4))
    data = ask(f"{site}/v1/images/{first}/matches/{other}?model=birds")
    best = int(np.frombuffer(data, np.uint8).reshape(48, 48)[1 * 8 + 6].argmax())
    expect(page.locator(".pair")).to_contain_text(f"Best match: row {best // 8 + 1}, column {best % 8 + 1}")
    page.locator(".pair").get_by_label("Show").select_option("pca")
    expect(page.locator(".pair")).to_contain_text("principal components of the patches of both")


def test_two_models_show_the_difference_of_their_maps(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#model=birds,rotary")
    drop(page, sample_image())
    answered(page)
    page.get_by_role("button", name="Difference").first.click()
    expect(page.locator(".map-title").first).to_contain_text("minus rotary")
    expect(page.locator(".map-title").last).to_contain_text("minus birds")
    low, high = (page.locator(".legend").first.locator("span").nth(place).inner_text() for place in (0, 2))
    assert float(low) == -float(high)
    expect(page).to_have_url(re.compile("difference=1"))
