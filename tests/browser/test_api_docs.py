"""The documentation of the API at /docs."""

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.parametrize(("locale", "scheme", "width"), [("en-US", "light", 1280), ("zh-CN", "dark", 390)])
def test_the_documentation_shows_every_operation(
    open_page: Any, site: str, locale: str, scheme: str, width: int
) -> None:
    page = open_page(site, locale=locale, color_scheme=scheme, viewport={"width": width, "height": 800})
    page.get_by_role("link", name="HTTP API").click()
    page.locator("details").first.wait_for()
    schema = page.evaluate("fetch('openapi.json').then((reply) => reply.json())")
    expect(page.locator("details")).to_have_count(sum(map(len, schema["paths"].values())))
    page.locator("#classifyImage summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#classifyImage")).to_contain_text("curl --data-binary")
    expect(page.locator("#classifyImage")).to_contain_text("too_many_pixels")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert Axe().run(page).response["violations"] == []


def test_a_missing_schema_is_reported(open_page: Any, watch: Any, site: str) -> None:
    watch.expected = ("503",)
    page = open_page(site)
    page.route("**/openapi.json", lambda route: route.fulfill(status=503, body=""))
    page.get_by_role("link", name="HTTP API").click()
    expect(page.get_by_role("alert")).to_contain_text("503")
