"""Uploads of images: the summary, ids, and the bounded cache of decoded images."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from inspect_requests import NAMES, get, sample_image, send
from live_server import Live, in_thread
from vitreous.explanation.draw import model_region
from vitreous.inference.predictor import Predictor
from vitreous.serving.models import serve_model


@pytest.mark.parametrize("id", [*NAMES, "bit", "grey"])
def test_an_upload_gets_an_id_and_the_predictions_of_the_predictor(live: Live, models: dict[str, Any], id: str) -> None:
    reply = live.request("POST", f"/v1/images?model={id}", sample_image())
    found = reply.json
    assert reply.headers["cache-control"] == "no-store"
    assert found["id"] == hashlib.sha256(sample_image()).hexdigest()[:32]
    assert found["model"] == id
    assert found["picture"] == {"width": 90, "height": 60}
    assert found["grid"] == ([0, 0] if id == "bit" else [3, 4])
    box = model_region((60, 90), models[id].config.image_size, models[id].config.preprocessing)
    assert found["seen"] == {key: pytest.approx(value, abs=1e-3) for key, value in box._asdict().items()}
    [wanted] = Predictor(models[id], "cpu", top=5)(sample_image())
    assert [one["label"] for one in found["predictions"]] == [one.label for one in wanted.predictions]
    for ours, theirs in zip(found["predictions"], wanted.predictions, strict=True):
        assert ours["probability"] == pytest.approx(theirs.probability, rel=1e-4)
        assert ours["index"] == theirs.index
    assert found["segments"] is None


def test_a_form_upload_gets_the_same_id(live: Live) -> None:
    data = sample_image()
    body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n' + data + b"\r\n--x--\r\n"
    reply = live.request("POST", "/v1/images", body, "multipart/form-data; boundary=x")
    assert reply.json["id"] == hashlib.sha256(data).hexdigest()[:32]
    assert reply.json["model"] == "class-token"  # the first


def test_one_upload_serves_several_models(live: Live) -> None:
    id = send(live, "class-token", sample_image(1))
    found = live.request("GET", f"/v1/images/{id}/lens?model=registers").json
    assert found == get(live, "registers", "lens", sample_image(1)).json


def test_the_region_of_a_padded_image_extends_beyond_it(live: Live) -> None:
    """All of 20 x 30 pixels are used, and 3 x 4 patches of 8 pixels cover 24 x 32."""
    data = sample_image(height=20, width=30)
    found = live.request("POST", "/v1/images?model=padded", data).json
    assert found["grid"] == [3, 4]
    assert found["seen"] == {"left": 0, "top": 0, "width": 32, "height": 24}


@pytest.mark.slow
def test_an_image_expires_after_many_others(live: Live) -> None:
    first = sample_image(100, 40, 40)
    id = send(live, "class-token", first)
    before = live.request("GET", f"/v1/images/{id}/attention/1")
    for seed in range(101, 133):
        send(live, "class-token", sample_image(seed, 40, 40))
    reply = live.request("GET", f"/v1/images/{id}/attention/1")
    assert (reply.status, reply.code) == (404, "unknown_image")
    assert send(live, "class-token", first) == id
    assert live.request("GET", f"/v1/images/{id}/attention/1").body == before.body


@pytest.mark.slow
def test_concurrent_requests_get_the_same_responses_as_single_ones(live: Live, models: dict[str, Any]) -> None:
    whats = ["attention/0", "attention/1", "similarity/1", "map/rollout", "map/relevance", "map/occlusion", "lens"]
    whats += ["distance", "walk?patch=0", "map/pca", "faithfulness/relevance"]
    ids = ["class-token", "average", "attention-pooling"]
    data = {seed: sample_image(200 + seed) for seed in range(3)}
    questions = [(id, what, seed) for id in ids for what in whats for seed in data]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: get(live, one[0], one[1], data[one[2]]), questions))
    with in_thread([serve_model(models[id], id, id, "cpu") for id in ids]) as alone:  # type: ignore[arg-type]
        for (id, what, seed), reply in zip(questions, together, strict=True):
            assert reply.status == 200, reply
            assert get(alone, id, what, data[seed]).body == reply.body, (id, what)
