"""Caches, limits, priorities and cancellation of the inspect service."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager

import pytest
import torch
from fastapi.testclient import TestClient

from images import encoded, smooth
from inspect_requests import inspect_client
from live_server import HOST, in_thread
from vitreous.data.image import fit
from vitreous.explanation.attention_and_logit_lens import capture
from vitreous.explanation.rollout_relevance_occlusion import as_patches, occlusion, random_faithfulness
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing
from vitreous.model.vit import ViT
from vitreous.serving.inspect.service import InspectService
from vitreous.serving.models import serve_model
from vitreous.serving.settings import Settings

PNG = {"Content-Type": "image/png"}


def model_of(side: int = 32) -> ViT:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(side, side), patch_size=(8, 8), width=64, depth=8, num_heads=4, mlp_width=64, num_classes=5
    )
    return build_vit(config).eval()


def sample_image(seed: int) -> bytes:
    return encoded(smooth(40, 40, seed))


def client_of(model: ViT, **limits: float) -> AbstractContextManager[tuple[TestClient, InspectService]]:
    return inspect_client([serve_model(model, "m", "m", "cpu")], **limits)


def send(client: TestClient, seed: int) -> str:
    reply = client.post("/v1/images", content=sample_image(seed), headers=PNG)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


PATHS = (
    "attention/7",
    "similarity/0",
    "map/rollout",
    "map/relevance",
    "map/occlusion",
    "lens",
    "distance",
    "walk?patch=0",
)


def test_results_do_not_depend_on_the_cache() -> None:
    model = model_of()
    with client_of(model) as (client, _):
        id = send(client, 0)
        first, again = ([client.get(f"/v1/images/{id}/{what}").content for what in PATHS] for _ in range(2))
    assert first == again
    with client_of(model, cache_bytes=0) as (client, service):
        id = send(client, 0)
        assert [client.get(f"/v1/images/{id}/{what}").content for what in PATHS] == first
        assert len(service.cache) == 0


def test_one_forward_pass_serves_all_requests_about_an_image() -> None:
    model, passes = model_of(), list[int]()
    model.patches.register_forward_hook(lambda *_: passes.append(1))
    with client_of(model) as (client, _):
        id = send(client, 0)
        for what in ("attention/0", "attention/7", "similarity/3", "map/rollout", "map/relevance", "lens", "distance"):
            assert client.get(f"/v1/images/{id}/{what}").status_code == 200
        assert len(passes) == 1
        assert send(client, 0) == id
        assert len(passes) == 1


def test_one_forward_pass_per_request_without_cache() -> None:
    model, passes = model_of(), list[int]()
    model.patches.register_forward_hook(lambda *_: passes.append(1))
    with client_of(model, cache_bytes=0) as (client, _):
        id = send(client, 0)
        for count, what in enumerate(("attention/0", "map/rollout", "map/relevance", "lens", "distance"), 2):
            assert client.get(f"/v1/images/{id}/{what}").status_code == 200
            assert len(passes) == count


def test_a_model_served_in_bf16_is_inspected_in_float32() -> None:
    model = model_of()
    with client_of(model) as (client, _):
        expected = client.get(f"/v1/images/{send(client, 0)}/map/rollout").json()["values"]
    served = [serve_model(model, "m", "m", "cpu", "bf16")]
    assert next(served[0].model.parameters()).dtype == torch.bfloat16
    with inspect_client(served) as (client, service):
        assert {parameter.dtype for parameter in service.model("m").model.parameters()} == {torch.float32}
        found = client.get(f"/v1/images/{send(client, 0)}/map/rollout").json()["values"]
    assert found == pytest.approx(expected, rel=0.05)  # its weights are rounded


def test_decoded_images_are_limited_in_bytes() -> None:
    bytes = 3 * 32 * 32  # of one image
    with client_of(model_of(), image_bytes=2 * bytes) as (client, service):
        ids = [send(client, seed) for seed in range(3)]
        assert [client.get(f"/v1/images/{id}/lens").status_code for id in ids] == [404, 200, 200]
        assert service.images.used == 2 * bytes


def test_the_cache_is_limited_in_bytes() -> None:
    with client_of(model_of(), cache_bytes=100_000) as (client, service):
        for seed in range(4):
            id = send(client, seed)
            for layer in range(8):
                assert client.get(f"/v1/images/{id}/attention/{layer}").status_code == 200
                assert service.cache.used <= 100_000


@pytest.mark.slow
def test_a_slow_response_times_out() -> None:
    model, go_on = model_of(), threading.Event()
    with client_of(model, timeout=1.0) as (client, _):
        id = send(client, 0)
        hold = model.patches.register_forward_hook(lambda *_: go_on.wait(30) and None)
        reply = client.get(f"/v1/images/{id}/map/occlusion")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "timeout")
        go_on.set()
        hold.remove()
        replies = (client.get(f"/v1/images/{id}/lens").status_code for _ in range(30))
        assert 200 in replies  # the thread continues


class Passes:
    """Counts and delays a model's forward passes while `slow` is set."""

    def __init__(self, model: ViT, seconds: float):
        self.count, self.seconds, self.slow = 0, seconds, False
        model.patches.register_forward_hook(self._hook)

    def _hook(self, *_: object) -> None:
        if self.slow:
            self.count += 1
            time.sleep(self.seconds)

    def wait_for(self, count: int) -> None:
        for _ in range(2000):
            if self.count >= count:
                return
            time.sleep(0.01)
        raise TimeoutError(f"{self.count} passes, not {count}")


@pytest.mark.slow
def test_the_computation_of_a_disconnected_client_is_stopped() -> None:
    model = model_of(128)  # 225 windows, some at a time
    passes = Passes(model, 0.5)
    with in_thread([serve_model(model, "m", "m", "cpu")]) as live:
        id = live.request("POST", "/v1/images", sample_image(0)).json["id"]
        passes.slow = True
        with socket.create_connection((HOST, live.port)) as connection:
            connection.sendall(f"GET /v1/images/{id}/map/occlusion HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            passes.wait_for(2)
        assert live.request("GET", f"/v1/images/{id}/lens").status == 200  # other requests are answered meanwhile
        passes.slow = False
        stopped = passes.count
        time.sleep(0.5)
        assert passes.count == stopped < 4
        passes.slow, passes.count, passes.seconds = True, 0, 0.0
        assert live.request("GET", f"/v1/images/{id}/map/occlusion").status == 200
        assert passes.count >= 4  # it starts again from the beginning


@pytest.mark.slow
def test_long_computations_do_not_delay_quick_ones() -> None:
    model = model_of(128)
    passes = Passes(model, 0.2)
    with in_thread([serve_model(model, "m", "m", "cpu")]) as live, ThreadPoolExecutor(1) as pool:
        id = live.request("POST", "/v1/images", sample_image(0)).json["id"]
        passes.slow = True
        long = pool.submit(live.request, "GET", f"/v1/images/{id}/map/occlusion")
        passes.wait_for(2)
        assert live.request("GET", f"/v1/images/{id}/attention/0").status == 200
        assert not long.done()
        assert long.result().status == 200


def test_requests_beyond_the_queue_get_429() -> None:
    model, gate, begun = model_of(), threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        assert gate.wait(30)

    with in_thread([serve_model(model, "m", "m", "cpu")], Settings(queue=2)) as live, ThreadPoolExecutor(7) as pool:
        id = live.request("POST", "/v1/images", sample_image(0)).json["id"]
        hook = model.head.register_forward_hook(hold)
        first = pool.submit(live.request, "GET", f"/v1/images/{id}/lens")
        assert begun.wait(30)
        others = [pool.submit(live.request, "GET", f"/v1/images/{id}/attention/{layer}") for layer in range(6)]
        for count, one in enumerate(as_completed(others), 1):  # of six two may wait
            assert (one.result().status, one.result().code) == (429, "busy")
            assert int(one.result().headers["retry-after"]) >= 1
            if count == 4:
                break
        hook.remove()
        gate.set()
        assert first.result().status == 200
        assert sorted(one.result().status for one in others) == [200, 200, 429, 429, 429, 429]


@pytest.mark.slow
def test_a_large_model_on_a_cpu_is_evaluated_less_often() -> None:
    """Windows of two by two patches do not overlap, and one random order is used."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(128, 128), patch_size=(8, 8), width=2048, depth=1, num_heads=1, head_dim=8, mlp_width=8,
        num_classes=3, preprocessing=Preprocessing(crop_fraction=1.0),
    )  # fmt: skip
    model = build_vit(config).eval()
    data = encoded(smooth(128, 128, 0))
    with client_of(model) as (client, _):
        id = client.post("/v1/images", content=data, headers=PNG).json()["id"]
        values = torch.tensor(client.get(f"/v1/images/{id}/map/occlusion?target=1").json()["values"]).view(16, 16)
        tested = client.get(f"/v1/images/{id}/faithfulness/attention?target=1").json()
    image = normalise(fit(data, (128, 128), config.preprocessing)[None].float() / 255, config.preprocessing)
    expected = as_patches(occlusion(capture(model, image), 1, (16, 16), (16, 16)), (8, 8))
    torch.testing.assert_close(values, expected, atol=1e-6, rtol=1e-3)
    assert torch.equal(values[0::2], values[1::2])
    random = random_faithfulness(capture(model, image), 1, draws=1)
    assert tested["random"]["deletion"]["auc"] == pytest.approx(random.deletion, abs=1e-4)
