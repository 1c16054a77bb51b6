"""Maps, their tests and masked patches: compared with vitreous.explanation and with planted models."""

from typing import Any

import numpy as np
import pytest
import torch

from images import encoded
from inspect_requests import LABELS, NAMES, as_given, erase, get, name, sample_image
from live_server import Live
from single_patch_models import DECOY, KINDS, PLACE, SHOWN
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.pca_and_similarity import pca_colours
from vitreous.explanation.rollout_relevance_occlusion import (
    as_patches,
    faithfulness,
    occlusion,
    random_faithfulness,
    relevance,
    rollout,
)
from vitreous.model.vit import ViT


@pytest.mark.slow
@pytest.mark.parametrize("id", NAMES)
def test_rollout_equals_that_of_the_library(live: Live, models: dict[str, Any], id: str) -> None:
    model: ViT = models[id]
    image = as_given(model, sample_image())
    shares = model.pool.weights(model.features(image)).mean(dim=1)[0].detach()
    if id == "distilled":
        shares[:2] = 0.5
    for query, how in (("", {}), ("?fusion=max&discard=0.4", {"fusion": "max", "discard": 0.4}), ("?layer=0", {})):
        layers = [0] if query == "?layer=0" else None
        expected = shares @ rollout(capture(model, image), layers, **how)[0]  # type: ignore[arg-type]
        found = get(live, id, f"map/rollout{query}").json
        assert found["grid"] == [3, 4]
        assert found["target"] is None
        np.testing.assert_allclose(found["values"], expected[model.config.num_prefix_tokens :], rtol=1e-4)
        assert found["range"] == [min(found["values"]), max(found["values"])]


def bright() -> bytes:
    """Like `planted.picture`, encoded: bright in the patch that matters and in a decoy."""
    pixels = np.random.default_rng(0).integers(10, 60, (24, 32, 3)).astype(np.uint8)
    for row, column in (PLACE, DECOY):
        pixels[8 * row : 8 * row + 8, 8 * column : 8 * column + 8] += 180
    return encoded(pixels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["relevance", "occlusion"])
def test_the_peak_is_the_planted_patch(live: Live, kind: str, method: str) -> None:
    found = get(live, f"planted-{name(kind)}", f"map/{method}?target={LABELS[SHOWN]}", bright()).json
    assert found["target"] == {"index": SHOWN, "label": LABELS[SHOWN]}
    assert divmod(int(np.argmax(found["values"])), 4) == PLACE


@pytest.mark.slow
@pytest.mark.parametrize("id", NAMES)
def test_maps_of_a_class_equal_those_of_the_library(live: Live, models: dict[str, Any], id: str) -> None:
    model: ViT = models[id]
    image = as_given(model, sample_image())
    top = int(model(image).argmax())
    for query, target in (("", top), ("?target=3", 3)):
        found = get(live, id, f"map/relevance{query}").json
        assert found["target"] == {"index": target, "label": LABELS[target]}
        expected = relevance(capture(model, image), target)[0].flatten()
        np.testing.assert_allclose(found["values"], expected, rtol=1e-3, atol=1e-7)
        found = get(live, id, f"map/occlusion{query}").json
        expected = as_patches(occlusion(capture(model, image), target), (8, 8)).flatten()
        np.testing.assert_allclose(found["values"], expected, rtol=1e-3, atol=1e-6)


def test_pca_equals_that_of_the_library(live: Live, models: dict[str, Any]) -> None:
    model: ViT = models["registers"]
    features = model.intermediate(as_given(model, sample_image()))
    for layer in (0, 1):
        found = get(live, "registers", f"map/pca?layer={layer}").json
        expected = pca_colours(features[layer].patches[0].detach(), (3, 4)).flatten()
        np.testing.assert_allclose(found["rgb"], expected, atol=2e-3)
    assert get(live, "registers", "map/pca").json == found


@pytest.mark.parametrize("method", ["relevance", "rollout", "attention", "occlusion"])
def test_faithfulness_equals_that_of_the_library(live: Live, models: dict[str, Any], method: str) -> None:
    model: ViT = models["planted-class-token"]
    id = "planted-class-token"
    values = torch.tensor(get(live, id, f"map/{method}?target=1", bright()).json["values"]).view(3, 4)
    found = get(live, id, f"faithfulness/{method}?target=1", bright()).json
    captured = capture(model, as_given(model, bright()))
    expected, random = faithfulness(captured, 1, values), random_faithfulness(captured, 1)
    for kind in ("deletion", "insertion"):
        assert found[kind]["auc"] == pytest.approx(getattr(expected, kind), abs=1e-4)
        np.testing.assert_allclose(found[kind]["curve"], getattr(expected, f"{kind}_curve"), atol=1e-4)
        assert found["random"][kind]["auc"] == pytest.approx(getattr(random, kind), abs=1e-4)
        np.testing.assert_allclose(found["random"][kind]["curve"], getattr(random, f"{kind}_curve"), atol=1e-4)
    assert len(found["shares"]) == len(found["deletion"]["curve"]) == 13


@pytest.mark.parametrize("id", NAMES)
def test_predictions_with_masked_patches(live: Live, models: dict[str, Any], id: str) -> None:
    model: ViT = models[id]
    image = as_given(model, sample_image())
    shown = live.request("POST", f"/v1/images?model={id}", sample_image()).json["predictions"]
    none = erase(live, id, [], []).json
    assert [one["label"] for one in none["predictions"]] == [one["label"] for one in shown]
    for one, other in zip(none["predictions"], shown, strict=True):
        assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)
    assert none["probabilities"] == {}
    grey = image.mean(dim=(2, 3), keepdim=True)
    some = image.clone()
    some[:, :, 8:16, 16:24] = grey[..., 0:1, 0:1]
    for patches, expected in ((range(12), grey.expand_as(image)), ([6], some)):
        shares = model(expected)[0].softmax(-1).tolist()
        found = erase(live, id, list(patches), [4, 0]).json["probabilities"]
        assert found == {"4": pytest.approx(shares[4], rel=1e-4), "0": pytest.approx(shares[0], rel=1e-4)}
