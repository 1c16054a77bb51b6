"""What is held and for how long, who has to wait, and what happens to the work of those who do not."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager

import pytest
import torch
from fastapi import FastAPI
from fastapi.testclient import TestClient

from images import encoded, smooth
from live_server import HOST, in_thread
from vitreous.data.image import fit
from vitreous.explanation.faithfulness import as_patches, random_faithfulness
from vitreous.explanation.occlusion import occlusion
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.inputs import normalise
from vitreous.model.options import Preprocessing
from vitreous.model.vit import ViT
from vitreous.serving.errors import install
from vitreous.serving.inspect.routes import router
from vitreous.serving.inspect.service import Desk
from vitreous.serving.models import serving
from vitreous.serving.settings import Settings

PNG = {"Content-Type": "image/png"}


def model_of(side: int = 32) -> ViT:
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(side, side), patch_size=(8, 8), width=64, depth=8, num_heads=4, mlp_width=64, num_classes=5
    )
    return build_vit(config).eval()


def picture(seed: int) -> bytes:
    return encoded(smooth(40, 40, seed))


@contextmanager
def client_of(model: ViT, **limits: float) -> Iterator[tuple[TestClient, Desk]]:
    served = [serving(model, "m", "m", "cpu")]
    desk = Desk(served, **limits)  # type: ignore[arg-type]
    app = FastAPI()
    install(app)
    app.include_router(router(served, Settings(), desk))
    with TestClient(app) as client:
        yield client, desk


def send(client: TestClient, seed: int) -> str:
    reply = client.post("/v1/images", content=picture(seed), headers=PNG)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["id"])


QUESTIONS = ("attention/7", "similarity/0", "map/rollout", "map/relevance", "map/occlusion", "lens", "distance", "tour")


def test_answers_do_not_depend_on_what_is_kept() -> None:
    model = model_of()
    with client_of(model) as (client, _):
        id = send(client, 0)
        first, again = ([client.get(f"/v1/images/{id}/{what}").content for what in QUESTIONS] for _ in range(2))
    assert first == again
    with client_of(model, kept_bytes=0) as (client, desk):
        id = send(client, 0)
        assert [client.get(f"/v1/images/{id}/{what}").content for what in QUESTIONS] == first
        assert len(desk.kept) == 0


def test_one_pass_is_enough_for_all_that_is_read_from_it() -> None:
    model, passes = model_of(), list[int]()
    model.patches.register_forward_hook(lambda *_: passes.append(1))
    with client_of(model) as (client, _):
        id = send(client, 0)
        for what in ("attention/0", "attention/7", "similarity/3", "map/rollout", "map/relevance", "lens", "distance"):
            assert client.get(f"/v1/images/{id}/{what}").status_code == 200
        assert len(passes) == 1
        assert send(client, 0) == id
        assert len(passes) == 1


def test_one_pass_a_question_where_nothing_is_kept() -> None:
    model, passes = model_of(), list[int]()
    model.patches.register_forward_hook(lambda *_: passes.append(1))
    with client_of(model, kept_bytes=0) as (client, _):
        id = send(client, 0)
        for count, what in enumerate(("attention/0", "map/rollout", "map/relevance", "lens", "distance"), 2):
            assert client.get(f"/v1/images/{id}/{what}").status_code == 200
            assert len(passes) == count


def test_what_is_served_in_half_precision_is_looked_into_in_full() -> None:
    model = model_of()
    with client_of(model) as (client, _):
        expected = client.get(f"/v1/images/{send(client, 0)}/map/rollout").json()["values"]
    served = [serving(model, "m", "m", "cpu", "bf16")]
    assert next(served[0].model.parameters()).dtype == torch.bfloat16
    desk = Desk(served)
    assert {parameter.dtype for parameter in desk.model("m").model.parameters()} == {torch.float32}
    app = FastAPI()
    app.include_router(router(served, Settings(), desk))
    with TestClient(app) as client:
        found = client.get(f"/v1/images/{send(client, 0)}/map/rollout").json()["values"]
    assert found == pytest.approx(expected, rel=0.05)  # its weights have been rounded


def test_no_more_pictures_are_held_than_there_is_memory_for() -> None:
    bytes = 3 * 32 * 32  # of one picture
    with client_of(model_of(), picture_bytes=2 * bytes) as (client, desk):
        ids = [send(client, seed) for seed in range(3)]
        assert [client.get(f"/v1/images/{id}/lens").status_code for id in ids] == [404, 200, 200]
        assert desk.pictures.used == 2 * bytes


def test_little_is_kept_where_little_may_be() -> None:
    with client_of(model_of(), kept_bytes=100_000) as (client, desk):
        for seed in range(4):
            id = send(client, seed)
            for layer in range(8):
                assert client.get(f"/v1/images/{id}/attention/{layer}").status_code == 200
                assert desk.kept.used <= 100_000


def test_patience_ends() -> None:
    model = model_of()
    with client_of(model, patience=0.3) as (client, _):
        id = send(client, 0)
        slow = model.patches.register_forward_hook(lambda *_: time.sleep(0.5))
        reply = client.get(f"/v1/images/{id}/map/occlusion")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "timeout")
        slow.remove()
        assert client.get(f"/v1/images/{id}/lens").status_code == 200


class Passes:
    """Counts a model's passes and makes each take a while, from when it is told to."""

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
        raise TimeoutError(f"there were {self.count} passes, not {count}")


def test_the_work_of_a_client_that_has_left_is_stopped() -> None:
    model = model_of(128)  # 225 windows, some at a time
    passes = Passes(model, 0.2)
    with in_thread([serving(model, "m", "m", "cpu")]) as live:
        id = live.ask("POST", "/v1/images", picture(0)).json["id"]
        passes.slow = True
        with socket.create_connection((HOST, live.port)) as connection:
            connection.sendall(f"GET /v1/images/{id}/map/occlusion HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
            passes.wait_for(2)
        assert live.ask("GET", f"/v1/images/{id}/lens").status == 200  # and others are answered meanwhile
        passes.slow = False
        stopped = passes.count
        time.sleep(0.5)
        assert passes.count == stopped < 4
        passes.slow, passes.count, passes.seconds = True, 0, 0.0
        assert live.ask("GET", f"/v1/images/{id}/map/occlusion").status == 200
        assert passes.count >= 5  # it begins anew, and all of it is more than what was done before


def test_long_work_does_not_keep_a_hover_waiting() -> None:
    model = model_of(128)
    passes = Passes(model, 0.2)
    with in_thread([serving(model, "m", "m", "cpu")]) as live, ThreadPoolExecutor(1) as pool:
        id = live.ask("POST", "/v1/images", picture(0)).json["id"]
        passes.slow = True
        long = pool.submit(live.ask, "GET", f"/v1/images/{id}/map/occlusion")
        passes.wait_for(2)
        assert live.ask("GET", f"/v1/images/{id}/attention/0").status == 200
        assert not long.done()
        assert long.result().status == 200


def test_more_questions_than_may_wait_are_sent_away() -> None:
    model, gate, begun = model_of(), threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        begun.set()
        assert gate.wait(30)

    with in_thread([serving(model, "m", "m", "cpu")], Settings(queue=2)) as live, ThreadPoolExecutor(7) as pool:
        id = live.ask("POST", "/v1/images", picture(0)).json["id"]
        hook = model.head.register_forward_hook(hold)
        first = pool.submit(live.ask, "GET", f"/v1/images/{id}/lens")
        assert begun.wait(30)
        others = [pool.submit(live.ask, "GET", f"/v1/images/{id}/attention/{layer}") for layer in range(6)]
        for count, one in enumerate(as_completed(others), 1):  # of six two may wait
            assert (one.result().status, one.result().code) == (429, "busy")
            assert int(one.result().headers["retry-after"]) >= 1
            if count == 4:
                break
        hook.remove()
        gate.set()
        assert first.result().status == 200
        assert sorted(one.result().status for one in others) == [200, 200, 429, 429, 429, 429]


def test_a_large_model_on_a_processor_is_asked_less_often() -> None:
    """Windows of two by two patches lie side by side, and one random order stands for all."""
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
    expected = as_patches(occlusion(model, image, 1, (16, 16), (16, 16)), (8, 8))
    torch.testing.assert_close(values, expected, atol=1e-6, rtol=1e-3)
    assert torch.equal(values[0::2], values[1::2])
    random = random_faithfulness(model, image, 1, draws=1)
    assert tested["random"]["deletion"] == pytest.approx(random.deletion, abs=1e-4)
