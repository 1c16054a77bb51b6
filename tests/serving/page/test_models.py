"""Routes without an image, and models that do not classify."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitreous
from inspect_requests import array, as_given, erase, get, sample_image, weights_of
from live_server import Live, in_thread
from vitreous.data.image import decode
from vitreous.explanation.pca_and_similarity import filter_components, filter_images, position_similarity
from vitreous.inference.mask_images import hex_colours
from vitreous.inference.segment_predictor import SegmentPredictor
from vitreous.model.calibration import FRACTIONS, Calibration
from vitreous.page.examples import load_examples
from vitreous.page.model_facts import model_facts
from vitreous.serving.models import load_models


@pytest.mark.parametrize("id", ["class-token", "sincos", "rotary", "relative", "masks", "registers"])
def test_similarity_of_positions(live: Live, models: dict[str, Any], id: str) -> None:
    found = array(live.request("GET", f"/v1/position?model={id}"))
    vit = models[id].encoder if id == "masks" else models[id]
    values = position_similarity(vit).values
    assert values is not None
    if id == "relative":
        values = values / values.abs().max()  # a bias is scaled by its largest value
        assert found.min() in (0, 1) or found.max() == 255
    assert found.shape == (12, 12)
    assert np.abs(found / 127.5 - 1 - values.reshape(12, 12).detach().numpy()).max() < 0.51 / 127.5


@pytest.mark.parametrize("id", ["conditional", "bag"])
def test_a_model_without_positions_is_an_error(live: Live, id: str) -> None:
    reply = live.request("GET", f"/v1/position?model={id}")
    assert (reply.status, reply.code) == (404, "no_positions")


@pytest.mark.parametrize(("id", "side"), [("class-token", 8), ("grey", 8), ("hybrid", 7), ("masks", 8)])
def test_filters(live: Live, models: dict[str, Any], id: str, side: int) -> None:
    found = array(live.request("GET", f"/v1/filters?model={id}"))
    assert found.shape == (28, side, side, 3)
    components = filter_components(models[id].encoder if id == "masks" else models[id])
    np.testing.assert_array_equal(found, filter_images(components.patterns))


def test_a_segmenter_has_masks_and_its_encoder_attention(live: Live, models: dict[str, Any]) -> None:
    model, data = models["masks"], sample_image(5)
    image, pixels = as_given(model, data), decode(data, 3)
    predictor = SegmentPredictor(model, device="cpu")
    ids = predictor.scores(pixels[None])[0].argmax(dim=0).numpy()  # of the whole image, not of a centre crop
    mask = array(get(live, "masks", "mask", data))
    np.testing.assert_array_equal(mask, ids)
    assert mask.shape[1] / mask.shape[0] == pytest.approx(pixels.shape[2] / pixels.shape[1], rel=0.05)
    shown = live.request("POST", "/v1/images?model=masks", data).json
    assert shown["predictions"] is None
    assert sum(one["share"] for one in shown["segments"]) == pytest.approx(1, abs=1e-4)
    for one in shown["segments"]:
        assert one["share"] == pytest.approx((ids == one["index"]).mean(), abs=1e-5)
        assert one["label"] == model.config.labels[one["index"]]
        assert one["color"] == hex_colours(model.config.labels)[one["index"]]
    reply = get(live, "masks", "attention/1", data)
    expected = model.encoder.attention(image)[1][0].detach().numpy()
    np.testing.assert_allclose(weights_of(reply, 3), expected, atol=expected.max() / 255)


@pytest.mark.parametrize(
    ("id", "what", "code"),
    [
        *(("bit", what, "no_attention") for what in ("attention/0", "similarity/0", "map/rollout", "map/relevance")),
        *(("bit", what, "no_attention") for what in ("lens", "distance", "walk?patch=0", "faithfulness/occlusion")),
        *((id, what, "no_head") for id in ("bare", "masks") for what in ("lens", "map/relevance", "map/occlusion")),
        *((id, "faithfulness/rollout", "no_head") for id in ("bare", "masks")),
        *((id, "mask", "no_masks") for id in ("class-token", "bare", "bit")),
    ],
)
def test_unsupported_requests_are_errors(live: Live, id: str, what: str, code: str) -> None:
    reply = get(live, id, what)
    assert (reply.status, reply.code) == (409, code)


@pytest.mark.parametrize("id", ["bare", "masks", "bit"])
def test_masking_patches_needs_a_classifier(live: Live, id: str) -> None:
    reply = erase(live, id, [0], [])
    assert (reply.status, reply.code) == (409, "no_attention" if id == "bit" else "no_head")


def test_a_model_without_attention_has_no_positions_or_filters(live: Live) -> None:
    for what in ("position", "filters"):
        reply = live.request("GET", f"/v1/{what}?model=bit")
        assert (reply.status, reply.code) == (409, "no_attention")


@pytest.mark.slow
def test_too_many_tokens_are_an_error(live: Live) -> None:
    """4 heads x 4097 x 4097 bytes are more than 64 MiB; similarity, a quarter of that, is not."""
    for what in ("attention/0", "map/relevance", "faithfulness/relevance"):
        reply = get(live, "large", what)
        assert (reply.status, reply.code) == (413, "too_many_tokens")
        assert "4,097 tokens" in reply.json["error"]["message"]
    assert array(get(live, "large", "similarity/0")).shape == (4097, 4097)
    assert len(get(live, "large", "map/rollout").json["values"]) == 4096


def test_samples_of_a_checkpoint_are_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    vitreous.save(vitreous.create("ViT-Lite-6/4", num_classes=2), folder)
    (folder / "samples").mkdir()
    Image.new("RGB", (900, 300), "red").save(folder / "samples" / "red_fox.png")
    for name in ("notes.txt", "._red_fox.png", "broken.png"):
        (folder / "samples" / name).write_text("not an image")
    [served] = load_models([folder], device="cpu")
    warning = capsys.readouterr().err
    assert "broken.png" in warning
    assert "._red_fox.png" not in warning
    with in_thread([served]) as live:
        [model] = live.request("GET", "/v1/models").json["models"]
        assert model["samples"] == [{"name": "red_fox", "label": "red fox"}]
        reply = live.request("GET", "/v1/samples/red_fox")
        assert Image.open(io.BytesIO(reply.body)).size == (640, 213)
        assert live.request("GET", "/v1/samples/other").code == "not_found"


def test_examples_have_different_names(tmp_path: Path) -> None:
    stems = ["a-2", "a", "a!", "x" * 70 + "1", "x" * 70 + "2"]
    paths = [tmp_path / f"{stem}.png" for stem in stems]
    for path in paths:
        Image.new("RGB", (4, 4)).save(path)
    assert [example.name for example in load_examples(paths)] == ["a-2", "a", "a-3", "x" * 60, "x" * 60 + "-2"]
    (tmp_path / "broken.png").write_text("not an image")
    with pytest.raises(ValueError, match=r"broken\.png"):
        load_examples([tmp_path / "broken.png"])


def test_a_model_is_named_by_family_size_and_patch(models: dict[str, Any]) -> None:
    """The name does not depend on classes, image size or calibration."""
    changes = {"calibration": Calibration(2.0, 2000, FRACTIONS, FRACTIONS)}
    named = vitreous.create("ViT-Ti/16", num_classes=3, image_size=(32, 48), overrides=changes)
    facts = [model_facts(model, "id", "name", ()) for model in (named, models["class-token"], models["bit"])]
    assert [each["architecture"] for each in facts] == ["ViT-Ti/16", "ViT", "BiT"]
