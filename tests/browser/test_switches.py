"""Switching off heads, layers and positions."""

import json
import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from browser.actions import answered, ask, bars, drop, percents, sample_image, sent

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.slow
def test_heads_and_positions_are_switched_off(open_page: Any, site: str) -> None:
    page = open_page(site)
    drop(page, sample_image())
    answered(page)
    before = bars(page)
    page.get_by_role("button", name="Switch off heads").click()
    page.get_by_role("gridcell", name="Layer 1, head 2").click()
    expect(page.get_by_role("gridcell", name="Layer 1, head 2, switched off")).to_be_visible()
    page.get_by_role("gridcell", name="Layer 2, mean over heads").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".switches")).to_contain_text("Parts switched off: 2")
    expect(page).to_have_url(re.compile("off=1.2,2"))
    page.locator(".switches select").select_option("shuffled")
    expect(page.locator(".switches")).to_contain_text("Parts switched off: 3")
    path = f"{site}/v1/images?model=birds&off=0.1,1,shuffled"
    expected = percents(json.loads(ask(path, sample_image(), "image/png"))["predictions"])
    assert expected != before
    expect(page.locator(".bar").first).to_contain_text(next(iter(expected)))
    page.wait_for_timeout(200)
    assert bars(page) == expected
    page.get_by_role("button", name="Switch all on").click()
    expect(page.locator(".bar .number").first).to_have_text(next(iter(before.values())))
    assert bars(page) == before


def test_the_effect_of_each_head_is_measured(open_page: Any, site: str) -> None:
    page = open_page(site)
    drop(page, sample_image())
    answered(page)
    page.get_by_role("button", name="Measure heads").click()
    expect(page.locator(".switches")).to_contain_text("Largest: layer")
    id = sent(site, sample_image())["id"]
    effects = np.array(json.loads(ask(f"{site}/v1/images/{id}/effects?model=birds"))["heads"])
    layer, head = np.unravel_index(np.abs(effects).argmax(), effects.shape)
    expect(page.locator(".switches")).to_contain_text(f"Largest: layer {layer + 1}, head {head + 1}")
    assert page.locator(".cells .measured").count() == 9
    assert page.locator(".cells .against").count() == int((effects < 0).sum())
