"""Errors and recovery on the page: formats, sizes, busy and unreachable servers, API keys."""

import re
import threading
import time
from contextlib import suppress
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect

from browser.actions import TIMES, answered, bars, drop, sample_image
from browser.conftest import KEY

pytestmark = pytest.mark.xdist_group("browser")


def with_key(page: Any) -> None:
    """Enter the API key in the dialog."""
    page.get_by_label("API key", exact=True).fill(KEY)
    page.get_by_role("button", name="Continue").click()


@pytest.fixture
def strict(open_page: Any, strict_site: str, watch: Any) -> Any:
    """A page with a valid API key."""
    watch.expected = ("status of 401", "status of 413", "status of 429")
    page = open_page(strict_site, wait=False)
    with_key(page)
    page.locator("body[data-ready=yes]").wait_for()
    return page


def test_an_unsupported_format_is_explained(open_page: Any, site: str) -> None:
    page = open_page(site)
    drop(page, b"GIF89a", "image/gif")
    expect(page.get_by_role("alert")).to_have_text("Unsupported format image/gif. Use JPEG, PNG or WebP." + TIMES)
    drop(page, sample_image()[:200])
    expect(page.get_by_role("alert")).to_contain_text("damaged")
    drop(page, sample_image())
    answered(page)
    expect(page.locator("#notice")).to_be_hidden()


def test_a_too_large_image_is_explained(strict: Any) -> None:
    drop(strict, sample_image() + bytes(60_000))
    expect(strict.get_by_role("alert")).to_contain_text("too large for this server")
    drop(strict, sample_image())
    answered(strict)
    expect(strict.locator("#notice")).to_be_hidden()


def test_requests_to_a_busy_server_are_retried(strict: Any, strict_site: str) -> None:
    """Other clients fill the queue until they stop."""
    headers = {"X-API-Key": KEY, "Content-Type": "image/png"}
    with urlopen(Request(f"{strict_site}/v1/images", sample_image(seed=1), headers), timeout=60) as answer:
        id = answer.read().decode().split('"id":"')[1][:32]
    enough = threading.Event()

    def load(number: int) -> None:
        while not enough.is_set():
            url = f"{strict_site}/v1/images/{id}/masked"
            body = f'{{"patches": [{number % 48}, {time.monotonic_ns() % 48}], "classes": []}}'.encode()
            with suppress(URLError):
                urlopen(Request(url, body, headers | {"Content-Type": "application/json"}), timeout=60).close()

    others = [threading.Thread(target=load, args=[number]) for number in range(6)]
    for one in others:
        one.start()
    try:
        for seed in range(2, 40):
            drop(strict, sample_image(seed=seed))
            strict.wait_for_timeout(100)
            if "busy; retrying in" in strict.locator("#status").inner_text():
                break
        else:
            pytest.fail("the server was never busy")
    finally:
        enough.set()
        for one in others:
            one.join()
    answered(strict)
    assert len(bars(strict)) == 5
    expect(strict.locator("#notice")).to_be_hidden()


def test_an_unreachable_server_is_reported(open_page: Any, site: str, watch: Any) -> None:
    page = open_page(site)
    watch.expected = ("ERR_INTERNET_DISCONNECTED",)
    page.context.set_offline(True)
    drop(page, sample_image())
    expect(page.get_by_role("alert")).to_contain_text("The server is not responding")
    page.context.set_offline(False)
    drop(page, sample_image())
    answered(page)


def test_errors_of_the_server_are_translated(open_page: Any, site: str, watch: Any) -> None:
    watch.expected = ("status of 413",)
    page = open_page(site, locale="zh-CN")
    answer = {"error": {"code": "too_many_pixels", "message": "the image has 3 pixels; the maximum is 2"}}
    page.route("**/v1/images?*", lambda route: route.fulfill(status=413, json=answer))
    drop(page, sample_image())
    expect(page.get_by_role("alert")).to_have_text("图像超出了服务器的大小限制。" + TIMES)
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("alert")).to_contain_text("too large for this server. (the image has 3 pixels")


def test_the_first_tab_that_works_is_opened(open_page: Any, site: str) -> None:
    page = open_page("about:blank", wait=False)

    def without_positions(route: Any) -> None:
        reply = route.fetch()
        found = reply.json()
        found["models"][0]["position"] = "none"
        route.fulfill(response=reply, json=found)

    page.route("**/v1/models", without_positions)
    page.goto(site)
    page.locator("body[data-ready=yes]").wait_for()
    expect(page.get_by_role("tab", name="Filters")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".filters canvas").first).to_be_visible()
    page.get_by_role("tab", name="Positions").click()
    expect(page.locator(".more")).to_contain_text("cannot be compared")


def test_samples_of_the_checkpoint_replace_the_examples(open_page: Any, site: str) -> None:
    page = open_page("about:blank", wait=False)

    def with_sample(route: Any) -> None:
        reply = route.fetch()
        found = reply.json()
        found["models"][0]["samples"] = [{"name": "fox", "label": "red fox"}]
        route.fulfill(response=reply, json=found)

    page.route("**/v1/models", with_sample)
    page.route("**/v1/samples/fox?*", lambda route: route.fulfill(body=sample_image(), content_type="image/webp"))
    page.goto(site)
    page.locator("body[data-ready=yes]").wait_for()
    expect(page.locator(".card")).to_have_text(["red fox"])
    page.locator(".card").click()
    answered(page)
    page.wait_for_url(re.compile("image=fox"))
