"""The walk: one patch through the model, with the numbers of the server, for every kind of model."""

import re
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from safetensors.numpy import load

from browser.actions import answered, ask, drop, hover, pixels, sample_image, sent, settled

pytestmark = pytest.mark.xdist_group("browser")


def walking(open_page: Any, site: str, address: str = "", motion: str = "reduce", **options: Any) -> Page:
    """A page with a dropped image, in which the walk is open."""
    page: Page = open_page(f"{site}/{address}", reduced_motion=motion, **options)
    drop(page, sample_image())
    page.locator(".pane:not(.empty)").first.wait_for()
    page.get_by_role("button", name="Walk through").click()
    page.locator("#walk[data-step]").wait_for()
    return page


def step(page: Page, name: str) -> Page:
    """Go on to a step."""
    for _ in range(20):
        if page.locator("#walk").get_attribute("data-step") == name:
            return page
        page.keyboard.press("ArrowRight")
    pytest.fail(f"the walk has no step {name}")


def steps(page: Page) -> list[str]:
    """The names of all steps."""
    page.keyboard.press("Home")
    names: list[str] = []
    while not names or names[-1] != page.locator("#walk").get_attribute("data-step"):
        names.append(str(page.locator("#walk").get_attribute("data-step")))
        page.keyboard.press("ArrowRight")
    return names


def numbers(page: Page, symbol: str) -> np.ndarray:
    """All numbers of a row, after expanding it."""
    name = page.locator(".symbol", has_text=re.compile(f"^{re.escape(symbol)}$"))
    row = page.locator("#walk details").filter(has=name)
    row.first.locator("summary").click()
    row.first.locator("li").first.wait_for()
    texts = row.first.locator("li").all_inner_texts()
    return np.array([float(text.replace("\u2212", "-")) for text in texts])


def tensors(site: str, layer: int, head: int, patch: int, data: bytes, model: str = "birds") -> dict[str, np.ndarray]:
    id = sent(site, data, model)["id"]
    return load(ask(f"{site}/v1/images/{id}/walk?layer={layer}&head={head}&patch={patch}&model={model}"))


@pytest.mark.slow
def test_it_shows_the_numbers_of_the_chosen_patch_layer_and_head(open_page: Any, site: str) -> None:
    page = open_page(site, reduced_motion="reduce")
    drop(page, sample_image())
    answered(page)
    hover(page, 4, 6)
    page.mouse.down()
    page.mouse.up()
    page.get_by_role("gridcell", name="Layer 2, head 3").click()
    page.get_by_role("button", name="Walk through").click()
    expect(page.locator("#walk .where")).to_have_text("patch in row 5, column 7")
    true = tensors(site, 1, 2, 4 * 8 + 6, sample_image())
    for name, symbol, expected in (
        ("pixels", "xp", true["pixels"]),
        ("position", "Epos", true["position"]),
        ("query", "q3", true["query"]),
        ("scores", "q k\u22a4 / \u221aDh", true["products"]),
        ("softmax", "A", true["weights"]),
        ("mix", "A3 v3", true["mixed"][2]),
        ("residual", "z\u20322", true["middle"]),
        ("mlp", "GELU", true["hidden"]),
        ("output", "z2", true["output"]),
        ("answer", "y", true["pooled"]),
    ):
        np.testing.assert_allclose(numbers(step(page, name), symbol), expected, rtol=1e-5, atol=1e-9)
    assert true["weights"].sum() == pytest.approx(1, abs=1e-5)
    expect(page.locator("#walk .words")).to_contain_text("6 classes")


def test_another_layer_head_patch_or_image_has_its_own_numbers(open_page: Any, site: str) -> None:
    page = step(walking(open_page, site), "softmax")
    centre = 3 * 8 + 4
    np.testing.assert_allclose(numbers(page, "A"), tensors(site, 2, 0, centre, sample_image())["weights"], rtol=1e-5)
    with page.expect_response(re.compile("walk.*layer=0")):
        page.locator("#walk").get_by_label("Layer").select_option("1")
    with page.expect_response(re.compile("walk.*head=1")):
        page.locator("#walk").get_by_label("Head").select_option("2")
    page.locator("#walk h2").focus()
    np.testing.assert_allclose(numbers(page, "A"), tensors(site, 0, 1, centre, sample_image())["weights"], rtol=1e-5)
    other = sample_image(seed=5)
    with page.expect_response(re.compile("/walk")):
        drop(page, other)
    expect(page.locator("#walk")).to_have_attribute("data-step", "softmax")
    expect(page.locator("#walk details[open]")).to_have_count(0)
    np.testing.assert_allclose(numbers(page, "A"), tensors(site, 0, 1, centre, other)["weights"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "name"), [("swin", "SW-MSA"), ("swin2", "LN(…)")])
def test_it_shows_the_numbers_of_a_shifted_window(open_page: Any, site: str, model: str, name: str) -> None:
    """Layer 2 has windows of 4 x 4 on 6 x 8 patches, shifted by 2. That of the last patch has tokens of all corners."""
    page = open_page(f"{site}/#model={model}&layer=2&head=2", reduced_motion="reduce")
    drop(page, sample_image())
    answered(page)
    hover(page, 5, 7)
    page.mouse.down()
    page.mouse.up()
    page.get_by_role("button", name="Walk through").click()
    page.locator("#walk[data-step]").wait_for()
    expect(page.locator("#walk .where")).to_have_text("patch in row 6, column 8")
    true = tensors(site, 1, 1, 47, sample_image(), model)
    scores = "q k\u22a4 / \u221aDh" if model == "swin" else "\u03c4 cos(q, k)"
    for step_name, symbol, expected in (
        ("norm", "z0", true["states"][:24]),
        ("scores", scores, true["products"]),
        ("bias", "B", true["bias"]),
        ("mask", "mask", true["mask"]),
        ("softmax", "A", true["weights"]),
        ("residual", name, true["attended"]),
        ("output", "z2", true["output"]),
        ("answer", "y", true["pooled"]),
    ):
        np.testing.assert_allclose(numbers(step(page, step_name), symbol), expected, rtol=1e-5, atol=1e-9)
    masked = int((true["mask"] < 0).sum())
    assert 0 < masked < 16
    page.keyboard.press("Home")
    expect(step(page, "mask").locator("#walk .words")).to_contain_text(f"{masked} of 16 tokens")


@pytest.mark.slow
def test_tokens_are_merged_before_the_second_stage(open_page: Any, site: str) -> None:
    page = walking(open_page, site, "#model=swin&layer=3")
    true = tensors(site, 2, 0, 3 * 8 + 4, sample_image(), "swin")
    step(page, "merge")
    for part, merged in enumerate(true["merge_tokens"]):
        np.testing.assert_allclose(numbers(page, f"z{part + 1}"), merged, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(numbers(page, "zm2"), true["before"], rtol=1e-5, atol=1e-9)
    expect(page.locator("#walk .words")).to_contain_text("2 \u00d7 2 patches")
    expect(step(page, "window").locator("#walk .words")).to_contain_text("12 tokens of this layer are divided")


@pytest.mark.slow
def test_each_kind_of_model_has_the_steps_of_its_parts(open_page: Any, site: str) -> None:
    before, after = ["patches", "pixels", "projection"], ["layers", "query", "scores", "softmax", "mix", "heads"]
    after += ["residual", "mlp", "output", "answer"]
    expected = {
        "bare": (["prefix", "position"], "features of this image"),
        "pooled": (["position"], "48 patches are averaged"),
        "masks": (["prefix", "position"], re.compile("decoder.*At our patch: (background|bird|water)")),
        "rotary": (["prefix"], "48 patches are averaged"),
    }
    for model, (between, words) in expected.items():
        page = walking(open_page, site, f"#model={model}")
        assert steps(page) == before + between + after
        expect(page.locator("#walk .words")).to_contain_text(words)
        if model == "rotary":
            page.keyboard.press("Home")
            expect(step(page, "query").locator("#walk .words")).to_contain_text("rotated")
            assert page.locator("#walk").get_by_text("class token is put").count() == 0
        page.context.close()
    for layer, between in {1: ["window"], 2: ["window"], 3: ["merge", "window"]}.items():
        page = walking(open_page, site, f"#model=swin2&layer={layer}")
        query = after.index("query")
        expected_steps = [*before, "norm", "layers", *between, "query", "scores", "bias", *after[query + 2 :]]
        if layer < 3:
            expected_steps.insert(-1, "repeat")
        assert steps(page) == expected_steps
        expect(page.locator("#walk .words")).to_contain_text("12 remaining tokens")
        page.context.close()
    page = open_page(f"{site}/#model=plain&image=balloon")
    page.get_by_role("button", name="Walk through").click()
    expect(page.get_by_role("alert")).to_contain_text("attention")


def test_compared_models_are_walked_through_one_at_a_time(open_page: Any, site: str) -> None:
    page = step(walking(open_page, site, "#model=birds,pooled"), "softmax")
    assert len(numbers(page, "A")) == 49
    page.locator("#walk").get_by_label("Model").select_option("pooled")
    expect(page.locator("#walk details[open]")).to_have_count(0)
    found = tensors(site, 2, 0, 28, sample_image(), "pooled")["weights"]
    np.testing.assert_allclose(numbers(page, "A"), found, rtol=1e-5)


def test_keys_play_step_and_leave(open_page: Any, site: str) -> None:
    page = open_page(f"{site}/#image=balloon")
    answered(page)
    button = page.get_by_role("button", name="Walk through")
    button.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()  # it starts to play
    page.keyboard.press("Space")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#walk h2")).to_be_focused()
    shown = page.locator("#walk").get_attribute("data-step")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#walk").get_attribute("data-step") != shown
    expect(page).to_have_url(re.compile("walk=patches"))
    page.keyboard.press("Escape")
    expect(page.locator("#walk")).to_be_hidden()
    expect(button).to_be_focused()
    expect(page).not_to_have_url(re.compile("walk="))


def test_time_can_be_scrubbed(open_page: Any, site: str) -> None:
    """The same moment is the same picture, and other moments are not."""
    page = walking(open_page, site, motion="no-preference")
    page.get_by_role("button", name="Pause").click()
    line = page.get_by_label("Time")

    def at(seconds: float) -> str:
        line.evaluate("(line, at) => { line.value = at; line.dispatchEvent(new Event('input')); }", seconds)
        return pixels(page, "#walk canvas")

    moments = [at(seconds) for seconds in (1, 11, 11.5, 31, 38, 43)]
    assert len(set(moments)) == len(moments)
    assert at(11.5) == moments[2]


def test_pointing_at_a_number_shows_it(open_page: Any, site: str) -> None:
    page = step(walking(open_page, site), "residual")
    settled(page)
    row = page.evaluate("() => document.querySelector('#walk canvas').getBoundingClientRect().toJSON()")
    page.mouse.move(row["x"] + row["width"] * 0.7, row["y"] + row["height"] * 0.2)
    for fraction in np.linspace(0.1, 0.7, 60):
        page.mouse.move(row["x"] + row["width"] * 0.7, row["y"] + row["height"] * fraction)
        if page.locator("#walk .near").is_visible():
            break
    text = page.locator("#walk .tip p").first.inner_text()
    index, value = re.findall(r"\[(\d+)\] = (.*)", text)[0]
    states = tensors(site, 2, 0, 28, sample_image())["states"].reshape(4, -1)
    assert float(value.replace("\u2212", "-")) == pytest.approx(states[2, int(index)], rel=1e-5)


def test_a_phone_shows_all_of_it(open_page: Any, site: str) -> None:
    page = walking(open_page, site, viewport={"width": 390, "height": 844}, has_touch=True)
    for place in (
        page.locator("#walk canvas"),
        page.get_by_role("button", name="Play", exact=True),
        page.locator("#walk h2"),
    ):
        box = place.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
        assert box["y"] + box["height"] <= 844
