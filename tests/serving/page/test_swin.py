"""The page receives the attention of windows as rows with the indices of their tokens."""

from typing import Any

import numpy as np
import pytest
import torch

from inspect_requests import array, as_given, erase, get, sample_image, send, weights_of
from live_server import Live
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import relevance, rollout_map


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_rows_of_windows_equal_the_attention_on_the_whole_grid(live: Live, models: dict[str, Any], layer: int) -> None:
    captured = capture(models["swin"], as_given(models["swin"], sample_image()))
    reply = get(live, "swin", f"attention/{layer}")
    heads, t, m = (int(side) for side in reply.headers["x-shape"].split(","))
    keys = np.frombuffer(reply.body, "<i4", t * m, offset=8 * heads * t).reshape(t, m)
    weights = weights_of(reply, 0)
    for query in range(t):
        whole = np.zeros((heads, t))
        for key, weight in zip(keys[query], weights[:, query].T, strict=True):
            whole[:, key] += weight
        np.testing.assert_allclose(whole, captured.attention_from(layer, query)[0], atol=1 / 255)


def test_maps_have_the_patches_of_the_first_stage(live: Live, models: dict[str, Any]) -> None:
    model = models["swin"]
    captured = capture(model, as_given(model, sample_image()))
    for what, expected in (("rollout", rollout_map(captured)), ("relevance?target=bee", relevance(captured, 1))):
        found = get(live, "swin", f"map/{what}").json
        assert found["grid"] == [9, 13]
        np.testing.assert_allclose(found["values"], expected.flatten().tolist(), rtol=1e-4, atol=1e-7)
    for what in ("attention?layer=0", "pca?layer=2", "occlusion"):
        assert get(live, "swin", f"map/{what}").json["grid"] == [9, 13]
    assert array(get(live, "swin", "similarity/0")).shape == (117, 117)
    assert array(get(live, "swin", "similarity/2")).shape == (35, 35)
    assert [len(heads) for heads in get(live, "swin", "distance").json["pixels"]] == [2, 2, 4]
    assert [row["layer"] for row in get(live, "swin", "lens").json["layers"]] == [2]  # of the last stage
    assert array(live.request("GET", "/v1/position?model=swin")).shape == (16, 16)  # in a window
    assert array(live.request("GET", "/v1/filters?model=swin")).shape[1:] == (4, 4, 3)


def test_erased_patches_are_those_of_the_first_stage(live: Live, models: dict[str, Any]) -> None:
    model, everything = models["swin"], list(range(117))
    image = as_given(model, sample_image())
    blank = image.mean(dim=(2, 3), keepdim=True).expand_as(image)
    with torch.no_grad():
        expected = model(blank).softmax(dim=1)[0]
    found = erase(live, "swin", everything, [0, 3]).json["probabilities"]
    assert found == {"0": pytest.approx(float(expected[0]), rel=1e-4), "3": pytest.approx(float(expected[3]), rel=1e-4)}


def test_the_description_lists_the_layers(live: Live) -> None:
    [swin] = [model for model in live.request("GET", "/v1/model").json["models"] if model["id"] == "swin"]
    assert [layer["heads"] for layer in swin["layers"]] == [2, 2, 4]
    assert [layer["grid"] for layer in swin["layers"]] == [[9, 13], [9, 13], [5, 7]]
    assert [layer["scale"] for layer in swin["layers"]] == [[1, 1], [1, 1], [2, 2]]
    assert (swin["grid"], swin["position_grid"], swin["tokens"]["prefix"]) == ([9, 13], [4, 4], [])
    assert send(live, "swin")
