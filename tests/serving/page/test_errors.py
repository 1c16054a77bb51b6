"""Invalid requests of the page and their errors."""

import numpy as np
import pytest

import vitreous
from images import encoded
from inspect_requests import SMALL, get, inspect_client, sample_image, send
from live_server import Live
from vitreous.common.checks import BadValue
from vitreous.explanation.result import class_index
from vitreous.model.build import build_vit
from vitreous.serving.models import serve_model


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("0123456789abcdef0123456789abcdef/lens", 404, "unknown_image"),
        ("x/attention/0", 404, "unknown_image"),
        ("..%2f..%2fetc/lens", 404, "not_found"),
        ("ID/attention/2", 422, "bad_parameter"),
        ("ID/attention/-1", 422, "bad_parameter"),
        ("ID/attention/one", 422, "bad_parameter"),
        ("ID/similarity/99999999999999999999", 422, "bad_parameter"),
        ("ID/map/saliency", 422, "bad_parameter"),
        ("ID/map/rollout?fusion=sum", 422, "bad_parameter"),
        ("ID/map/rollout?discard=0.99", 422, "bad_parameter"),
        ("ID/map/rollout?discard=nan", 422, "bad_parameter"),
        ("ID/map/rollout?layer=7", 422, "bad_parameter"),
        ("ID/map/relevance?target=5", 422, "bad_parameter"),
        ("ID/map/relevance?target=be", 422, "bad_parameter"),
        ("ID/map/relevance?target=" + "9" * 5000, 422, "bad_parameter"),
        ("ID/map/relevance?target=" + "9" * 200, 422, "bad_parameter"),
        ("ID/faithfulness/pca", 422, "bad_parameter"),
        ("ID/faithfulness/relevance?target=%F0%9F%90%9D", 422, "bad_parameter"),
        ("ID/lens?model=nobody", 404, "unknown_model"),
        ("ID/nothing", 404, "not_found"),
    ],
)
def test_invalid_requests_are_errors(live: Live, path: str, status: int, code: str) -> None:
    reply = live.request("GET", "/v1/images/" + path.replace("ID", send(live, "class-token")))
    assert (reply.status, reply.code) == (status, code)


def test_a_class_of_very_many_digits_is_an_error() -> None:
    """int() raises a different error for so many digits."""
    model = vitreous.create("ViT-Lite-6/4", num_classes=3)
    with pytest.raises(BadValue, match=r"must be .* from 0 to 2"):
        class_index(model.config, "9" * 5000)


def test_a_misspelt_class_gets_a_suggestion(live: Live) -> None:
    message = get(live, "class-token", "map/relevance?target=beee").json["error"]["message"]
    assert "'beee'" in message
    assert "'bee'" in message


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "bad_json"),
        (b"[]", 422, "bad_parameter"),
        (b'{"patches": [12]}', 422, "bad_parameter"),
        (b'{"patches": [-1]}', 422, "bad_parameter"),
        (b'{"patches": ["x"]}', 422, "bad_parameter"),
        (b'{"patches": [1.5]}', 422, "bad_parameter"),
        (b'{"patches": [1e400]}', 422, "bad_parameter"),
        (b'{"classes": [5]}', 422, "bad_parameter"),
        (b'{"classes": 5}', 422, "bad_parameter"),
    ],
)
def test_invalid_masks_are_errors(live: Live, body: bytes, status: int, code: str) -> None:
    id = send(live, "class-token")
    reply = live.request("POST", f"/v1/images/{id}/masked", body, "application/json")
    assert (reply.status, reply.code) == (status, code)


def test_a_truncated_image_is_an_error(live: Live) -> None:
    whole = encoded(np.random.default_rng(0).integers(0, 255, (50, 60, 3)).astype(np.uint8))
    reply = live.request("POST", "/v1/images", whole[:2000])
    assert (reply.status, reply.code) == (422, "unreadable_image")


def test_results_that_are_not_finite_are_an_error() -> None:
    """Tested without the rest of the server, which would never become ready."""
    model = build_vit(SMALL)
    model.norm.weight.data.fill_(float("nan"))
    with inspect_client([serve_model(model, "broken", "broken", "cpu")]) as (client, _):
        reply = client.post("/v1/images", content=sample_image(), headers={"Content-Type": "image/png"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "not_a_number")
