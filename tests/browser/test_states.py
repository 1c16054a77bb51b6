"""Errors and recovery on the page: formats, sizes, busy and unreachable servers, API keys."""

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
