"""The page of `vitreous export --to web`, in a folder on a static host: the model runs in the browser."""

import base64
import io
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Page, Route, expect
from safetensors.torch import load

import vitreous
from browser.actions import answered, bars, expect_legend, hover, percents, sample_image, settled
from static_site import static_site
from vitreous.data.image import fit
from vitreous.explanation.attention_and_logit_lens import CapturedForward, capture
from vitreous.explanation.pca_and_similarity import component_map, cosines
from vitreous.explanation.rollout_relevance_occlusion import (
    as_pixels,
    faithfulness,
    importance_map,
    masked_probabilities,
    rollout_map,
)
from vitreous.exporting.web.examples import preprocessed
from vitreous.exporting.web.export_page import export_web
from vitreous.exporting.web.runtime import runtime_files
from vitreous.model.options import Preprocessing
from vitreous.model.protocol import Model
from vitreous.model.top_labels import class_probabilities
from vitreous.page import STATIC, results
from vitreous.page.walk import walk_bytes

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.slow]

OPEN = """async (data) => {
  const { source } = await import("./page/source.js");
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const { models } = await source.start();
  window.session = source.session(models[0], { blob: new Blob([bytes], { type: "image/png" }), name: null });
  return session.open();
}"""


ROW = "async ([layer, head, query]) => [...(await session.attention(layer)).row(head, query)]"


@dataclass(frozen=True)
class Exported:
    """A folder below a static host, and the model in it."""

    root: Path  # folder of the host
    url: str
    model: Model
    captured: CapturedForward  # forward pass of `sample_image()`


@pytest.fixture(scope="module")
def runtime() -> Path:
    """The folder of onnxruntime-web. Without npm, the tests are skipped like those of a machine without Chromium."""
    try:
        return runtime_files()[0].parent
    except (OSError, ValueError) as error:
        if os.environ.get("VITREOUS_BROWSER") == "required":
            raise
        pytest.skip(str(error))


@contextmanager
def host(checkpoint: Path, runtime: Path, folder: Path) -> Iterator[Exported]:
    """Serve the page of a checkpoint, zipped, and unpacked in a subfolder."""
    root, packed = folder / "host", folder / "zip"
    model = vitreous.load(checkpoint)
    export_web(checkpoint, packed / "page", runtime=runtime)
    archive = shutil.make_archive(str(packed / "page"), "zip", packed / "page")
    shutil.unpack_archive(archive, root / "demos" / "birds")
    with static_site(root) as address:
        yield Exported(root, f"{address}/demos/birds/", model, capture(model, preprocessed(model, sample_image())))


@pytest.fixture(scope="module")
def exported(
    checkpoints: dict[str, Path], runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exported]:
    """The page of a small ViT."""
    with host(checkpoints["birds"], runtime, tmp_path_factory.mktemp("birds")) as made:
        yield made


@pytest.fixture(scope="module")
def exported_swin(
    checkpoints: dict[str, Path], runtime: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exported]:
    with host(checkpoints["swin"], runtime, tmp_path_factory.mktemp("swin")) as made:
        yield made


@pytest.fixture(scope="module", params=["exported", "exported_swin"], ids=["birds", "swin"])
def each(request: pytest.FixtureRequest) -> Exported:
    """The page of a small model of each family."""
    made: Exported = request.getfixturevalue(request.param)
    return made


def visit(open_page: Any, url: str, **options: Any) -> Page:
    """Open a page whose browser can reach nothing but its host."""
    host = "/".join(url.split("/")[:3])

    def check(route: Route) -> None:
        allowed = route.request.url.startswith((host, "blob:", "data:"))
        route.continue_() if allowed else route.abort()

    page = open_page("about:blank", wait=False, **options)
    page.route("**/*", check)
    page.goto(url)
    page.locator("body[data-ready=yes]").wait_for()
    return page


def give(page: Page, data: bytes) -> None:
    """Choose a file, and wait for its predictions."""
    page.locator("#file").set_input_files({"name": "own.png", "mimeType": "image/png", "buffer": data})
    page.wait_for_url(re.compile("image=[0-9a-f]{16}"))
    answered(page)


@pytest.fixture
def session(open_page: Any, each: Exported) -> Page:
    """A page with a session for `sample_image()` in the variable `session`."""
    page = visit(open_page, each.url)
    page.evaluate(OPEN, base64.b64encode(sample_image()).decode())
    return page


def test_an_example_is_shown_before_the_model_is_loaded(open_page: Any, exported: Exported, watch: Any) -> None:
    watch.expected = ("ERR_FAILED", "Failed to load")
    page = open_page("about:blank", wait=False)
    page.route("**/weights-*.bin", lambda route: route.abort())
    page.goto(exported.url)
    answered(page)
    expect(page.locator(".bar")).to_have_count(5)
    config, data = exported.model.config, (STATIC / "examples" / "balloon.webp").read_bytes()
    logits = capture(exported.model, preprocessed(exported.model, data)).logits()[0]
    assert bars(page) == percents(results.top_classes(config.labels, class_probabilities(logits, config), 5))
    for map in ("similarity", "rollout", "relevance", "occlusion", "pca"):
        page.locator(f"[data-map={map}]").click()
        expect(page.locator(f"[data-map={map}]:not(.empty)")).to_be_visible()
    page.get_by_role("gridcell", name="Layer 1, head 2").click()
    expect(page.locator(".caption")).to_contain_text("cannot run")  # and not an endless progress message


def test_attention_and_tokens_equal_pytorch(session: Page, each: Exported) -> None:
    captured = each.captured
    for layer in range(3):
        weights = session.evaluate("async (layer) => [...(await session.attention(layer)).weights]", layer)
        expected = captured.weights(layer)[0].numpy()
        np.testing.assert_allclose(np.reshape(weights, expected.shape), expected, rtol=0, atol=2e-5)
        for row, column in ((0, 0), (5, 7)):
            query = captured.layout.num_prefix_tokens + row * 8 + column
            found = session.evaluate(ROW, [layer, 1, query])[-48:]
            shown = captured.on_map(captured.attention_from(layer, (row, column)), layer)[0, 1].flatten()
            np.testing.assert_allclose(found, shown, rtol=0, atol=2e-5)
        values = session.evaluate("async (layer) => [...(await session.similarity(layer)).stored]", layer)
        similarity = cosines(captured.features(layer))[0].numpy()
        np.testing.assert_allclose(np.reshape(values, similarity.shape), similarity, rtol=0, atol=1e-4)
    pixels = session.evaluate("async () => (await session.distance()).pixels")
    for found, expected in zip(pixels, results.distance(captured)["pixels"], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_predictions_and_the_walk_equal_pytorch(session: Page, each: Exported) -> None:
    captured, config = each.captured, each.model.config
    expected = results.predictions(
        each.model, captured.logits()[0], each.model.pool(captured.features()), config.labels
    )
    found = session.evaluate("() => session.shown")
    assert [one["label"] for one in found["predictions"]] == [one["label"] for one in expected["predictions"]]
    assert values_of(found["predictions"]) == pytest.approx(values_of(expected["predictions"]), abs=1e-4)
    seen = results.picture(config, (120, 160))["seen"]
    assert found["seen"] == pytest.approx(seen, abs=1e-3)
    lens = session.evaluate("async () => (await session.lens()).layers")
    wanted = results.lens(captured, config.labels)["layers"]
    for layer, other in zip(lens, wanted, strict=True):
        assert values_of(layer["predictions"]) == pytest.approx(values_of(other["predictions"]), abs=1e-4)
    ask = (
        "async ([layer, head, patch]) => Object.entries(await session.walk(layer, head, patch))"
        ".map(([name, { data, shape }]) => [name, [...data], shape])"
    )
    for layer, head, patch in ((0, 1, 13), (1, 1, 5), (2, 0, 47)):
        tensors = load(walk_bytes(captured, layer, head, patch))
        for name, numbers, shape in session.evaluate(ask, [layer, head, patch]):
            expected_tensor = tensors.pop(name)
            assert shape == list(expected_tensor.shape), name
            np.testing.assert_allclose(np.reshape(numbers, shape), expected_tensor, rtol=1e-3, atol=1e-4)
        assert not tensors


def values_of(predictions: list[dict[str, Any]]) -> list[float]:
    return [one["probability"] for one in predictions]


def test_maps_equal_pytorch(session: Page, each: Exported) -> None:
    captured = each.captured
    ask = (
        "async ([method, choices]) => { const map = await session.map(method, choices); return map.values ?? map.rgb; }"
    )
    for fusion in ("mean", "max", "min"):
        for discard in (0, 0.4):
            found = session.evaluate(ask, ["rollout", {"fusion": fusion, "discard": discard}])
            expected = rollout_map(captured, None, fusion, discard)[0].flatten()
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    for layer in range(3):
        found = session.evaluate(ask, ["pca", {"layer": layer}])
        expected = component_map(captured, layer).flatten()
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
    for target in (1, 4):
        found = session.evaluate(ask, ["relevance", {"target": target}])
        expected = importance_map(captured, "relevance", target).flatten()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))
    found = session.evaluate(ask, ["occlusion", {"target": 2}])
    expected = importance_map(captured, "occlusion", 2, overlap=False).flatten()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["attention", "relevance"])
def test_faithfulness_curves_equal_pytorch(session: Page, each: Exported, method: Any) -> None:
    found = session.evaluate("(method) => session.faithfulness(method, { target: 2 })", method)
    expected = faithfulness(each.captured, 2, importance_map(each.captured, method, 2))
    np.testing.assert_allclose(found["deletion"]["curve"], expected.deletion_curve, rtol=0, atol=1e-3)
    np.testing.assert_allclose(found["insertion"]["curve"], expected.insertion_curve, rtol=0, atol=1e-3)
    assert found["deletion"]["auc"] == pytest.approx(expected.deletion, abs=1e-3)
    assert 0 < found["random"]["deletion"]["auc"] < 1


def test_a_cancelled_map_can_be_computed_again(session: Page, each: Exported) -> None:
    found = session.evaluate(
        """async () => {
      const first = new AbortController();
      const names = [];
      const stopped = session.map("occlusion", { target: 1 }, first.signal).catch((error) => names.push(error.name));
      await new Promise((resolve) => setTimeout(resolve, 30));
      first.abort();
      await stopped;
      return [names, (await session.map("occlusion", { target: 1 })).values];
    }"""
    )
    assert found[0] == ["AbortError"]
    expected = importance_map(each.captured, "occlusion", 1, overlap=False).flatten()
    np.testing.assert_allclose(found[1], expected, rtol=0, atol=1e-4)


def test_a_chosen_file_can_be_hovered_and_erased(open_page: Any, exported: Exported) -> None:
    page = visit(open_page, exported.url)
    give(page, sample_image())
    config, captured = exported.model.config, exported.captured
    probabilities = class_probabilities(captured.logits()[0], config)
    top = results.top_classes(config.labels, probabilities, 5)
    assert bars(page) == percents(top)
    weights = captured.weights(2)[0].mean(dim=0)
    expect_legend(page, float(weights[0, 1:].max()))
    for row, column in ((1, 2), (4, 6)):
        hover(page, row, column)
        expect(page.locator(".map-title")).to_contain_text(f"patch in row {row + 1}, column {column + 1}")
        expect_legend(page, float(weights[1 + row * 8 + column, 1:].max()))
    intact = bars(page)
    page.get_by_role("button", name="Erase patches").click()
    hover(page, 2, 1)
    page.mouse.down()
    for column in (2, 3, 4):
        hover(page, 2, column)
    page.mouse.up()
    mask = torch.zeros(1, 6, 8, dtype=torch.bool)
    mask[0, 2, 1:5] = True
    erased = masked_probabilities(captured, [as_pixels(mask, (16, 16), (96, 128))], "mean")[0]
    expected = {one["label"]: f"{float(erased[one['index']]) * 100:.1f}%" for one in top}
    assert expected != intact
    expect(page.locator(".bar .number").first).to_have_text(expected[top[0]["label"]])
    assert bars(page) == expected


def test_a_damaged_file_is_refused(open_page: Any, exported: Exported) -> None:
    page = visit(open_page, exported.url)
    page.locator("#file").set_input_files({"name": "own.png", "mimeType": "image/png", "buffer": b"not an image"})
    expect(page.get_by_role("alert")).to_contain_text("damaged")


def test_threads_are_used_if_the_host_isolates_the_page(open_page: Any, exported: Exported) -> None:
    with static_site(exported.root, isolated=True) as host:
        page = visit(open_page, f"{host}/demos/birds/")
        assert page.evaluate("crossOriginIsolated")
        page.evaluate(OPEN, base64.b64encode(sample_image()).decode())
        weights = page.evaluate("async () => [...(await session.attention(0)).weights]")
        expected = exported.captured.weights(0)[0].numpy()
        np.testing.assert_allclose(np.reshape(weights, expected.shape), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_no_violation_in_both_languages(open_page: Any, exported: Exported, locale: str) -> None:
    page = visit(open_page, exported.url, locale=locale, reduced_motion="reduce")
    give(page, sample_image())
    settled(page)
    assert page.evaluate("document.documentElement.lang") == {"en-US": "en", "zh-CN": "zh-CN"}[locale]
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert Axe().run(page).response["violations"] == []


# ---- Preprocessing ---------------------------------------------------------------------------------------------------

FIT = """async ([pixels, width, height, facts]) => {
  const { fit } = await import("./page/browser/preprocess.js");
  const data = new Uint8ClampedArray(width * height * 4).fill(255);
  pixels.forEach((value, at) => (data[Math.floor(at / 3) * 4 + (at % 3)] = value));
  return [...fit({ data, width, height }, facts)];
}"""
USUAL = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


HOWS = [
    USUAL,
    replace(USUAL, interpolation="bilinear", geometry="timm", crop_fraction=0.9),
    replace(USUAL, fit="squash", geometry="huggingface"),
    replace(USUAL, fit="squash-crop", crop_fraction=0.95),
    replace(USUAL, fit="pad", crop_fraction=1.0),
    replace(USUAL, geometry="huggingface", mean=(0.5,), std=(0.5,)),
]


def test_preprocessing_gives_the_same_pixels(open_page: Any, exported: Exported) -> None:
    page = visit(open_page, exported.url)
    rng = np.random.default_rng(0)
    for how, (height, width) in itertools.product(HOWS, ((37, 91), (120, 64), (32, 48), (9, 7))):
        image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        facts = {"image_size": [32, 48], "channels": 3, "preprocessing": {**vars(how)}}
        found = page.evaluate(FIT, [image.reshape(-1).tolist(), width, height, facts])
        stored = io.BytesIO()
        Image.fromarray(image).save(stored, "PNG")
        pixels = fit(stored.getvalue(), (32, 48), how).numpy() / 255
        mean, std = (np.array(values)[:, None, None] for values in (how.mean, how.std))
        difference = np.abs(np.reshape(found, pixels.shape) - (pixels - mean) / std).max()
        assert difference < 1e-5, (how, height, width)
