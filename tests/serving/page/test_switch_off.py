"""Results of a model without some of its parts."""

import asyncio
from typing import Any

import numpy as np
import pytest
import torch

from inspect_requests import as_given, get, inspect_client, sample_image
from live_server import Live
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.switch_off import SwitchedOff, head_effects, switch_off
from vitreous.serving.inspect import service
from vitreous.serving.models import serve_model


@torch.no_grad()
def test_all_results_are_those_of_the_model_without_its_parts(live: Live, models: dict[str, Any]) -> None:
    off = SwitchedOff(frozenset({(0, 2), (0, 0)}), frozenset({1}), "shuffled")
    for id in ("class-token", "rotary"):
        model, image = models[id], as_given(models[id], sample_image())
        probabilities = switch_off(model, off)(image)[0].softmax(dim=0)
        path = f"/v1/images?model={id}&off=0.2,0.0,1,shuffled"
        shown = live.request("POST", path, sample_image()).json
        whole = live.request("POST", f"/v1/images?model={id}", sample_image()).json
        for one in shown["predictions"]:
            assert one["probability"] == pytest.approx(float(probabilities[one["index"]]), abs=1e-5)
        assert shown["predictions"] != whole["predictions"]
        lens = get(live, id, "lens?off=shuffled,1,0.0,0.2").json["layers"]  # another order, the same parts
        assert lens[-1]["predictions"] == shown["predictions"][:3]
        assert get(live, id, "map/relevance?off=1,0.2").status == 200
        found = get(live, id, "effects?target=3").json["heads"]
        np.testing.assert_allclose(found, head_effects(capture(model, image), 3), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("off", ["2", "0.4", "x", "0.", "-1", "zero,,", "zero,shuffled"])
def test_unknown_parts_are_errors(live: Live, off: str) -> None:
    reply = get(live, "class-token", f"lens?off={off}")
    assert (reply.status, reply.json["error"]["code"]) == (422, "bad_parameter")


def test_models_without_heads_cannot_be_switched_off(live: Live) -> None:
    assert live.request("POST", "/v1/images?model=bit&off=0", sample_image()).json["error"]["code"] == "no_attention"
    assert live.request("GET", "/v1/filters?model=class-token&off=0").status == 422


def test_models_are_copied_in_worker_threads_and_only_for_known_images(
    models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[SwitchedOff] = []

    def recorded(model: Any, off: SwitchedOff) -> Any:
        with pytest.raises(RuntimeError):  # other requests would wait
            asyncio.get_running_loop()
        copies.append(off)
        return switch_off(model, off)

    monkeypatch.setattr(service, "switch_off", recorded)
    with inspect_client([serve_model(models["class-token"], "m", "m", "cpu")]) as (client, _):
        assert client.get(f"/v1/images/{'0' * 32}/lens?off=0").status_code == 404
        assert copies == []
        headers = {"Content-Type": "image/png"}
        id = client.post("/v1/images?off=0", content=sample_image(), headers=headers).json()["id"]
        for what in ("lens?off=0", "effects?target=3&off=0", "map/rollout?off=0"):
            assert client.get(f"/v1/images/{id}/{what}").status_code == 200
        assert copies == [SwitchedOff(layers=frozenset({0}))]
