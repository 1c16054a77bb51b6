"""Checks of requests by their headers, limits of bodies, and clients that disconnect."""

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient

import vitreous
from images import encoded, smooth
from live_server import HOST, Live, in_thread, read_reply
from vitreous.inference import predictor as predictor_module
from vitreous.serving.app import create_app, warn_without_key
from vitreous.serving.batch_queue import Scheduler
from vitreous.serving.errors import ApiError, error_response
from vitreous.serving.metrics import Metrics
from vitreous.serving.middleware import Middleware
from vitreous.serving.models import ServedModel, serve_model
from vitreous.serving.settings import Settings

PNG = encoded(smooth(20, 20))


@pytest.fixture(scope="module")
def served() -> list[ServedModel]:
    torch.manual_seed(0)
    return [serve_model(vitreous.create("ViT-Lite-6/4", num_classes=3), device="cpu")]


@pytest.fixture(scope="module")
def live(served: list[ServedModel]) -> Iterator[Live]:
    with in_thread(served, Settings(max_batch=1, max_wait_ms=0)) as live:
        yield live


def response_for(live: Live, host: str) -> tuple[int, str]:
    reply = live.send(f"GET /v1/model HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return reply.status, "" if reply.status == 200 else reply.code


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000"])
def test_loopback_names_are_accepted(live: Live, host: str) -> None:
    assert response_for(live, host) == (200, "")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", ""]
)
def test_other_names_are_rejected(live: Live, host: str) -> None:
    """A browser would take a site whose name points to this machine for this server (DNS rebinding)."""
    assert response_for(live, host) == (421, "wrong_host")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.1", "1.0"])
@pytest.mark.parametrize(
    ("hosts", "status", "code"),
    [
        (["localhost", "localhost"], 400, "bad_host"),
        (["localhost", "evil.example"], 400, "bad_host"),
        (["localhost:x"], 400, "bad_host"),
        (["user@localhost"], 400, "bad_host"),
        (["localhost/"], 400, "bad_host"),
        (["[::1"], 400, "bad_host"),
        (["localhost "], 200, ""),
        ([], 400, "bad_host"),
    ],
)
def test_a_request_needs_one_valid_host(live: Live, version: str, hosts: list[str], status: int, code: str) -> None:
    """RFC 9112, 3.2. HTTP/1.0 may omit it, but then it could be a rebound name."""
    if not hosts and version == "1.0":
        status, code = 421, "wrong_host"
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    for path in ("/v1/model", "/healthz", "/"):
        reply = live.send(f"GET {path} HTTP/{version}\r\n{lines}\r\n".encode())
        assert (reply.status, "" if reply.status == 200 else reply.code) == (status, code)


def test_http_1_0_needs_no_host_if_any_name_is_accepted(served: list[ServedModel]) -> None:
    with in_thread(served, Settings(host="0.0.0.0")) as live:
        assert live.send(b"GET /v1/model HTTP/1.0\r\n\r\n").status == 200
        assert live.send(b"GET /v1/model HTTP/1.1\r\n\r\n").code == "bad_host"


ORIGINS = {
    "a program": ({}, True),
    "the server's page": ({"Sec-Fetch-Site": "same-origin", "Origin": "http://HOST"}, True),
    "behind a proxy that changes the Host": ({"Sec-Fetch-Site": "same-origin", "Origin": "https://x.example"}, True),
    "an address typed in": ({"Sec-Fetch-Site": "none"}, True),
    "another site": ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, False),
    "another site that hides its name": ({"Sec-Fetch-Site": "cross-site", "Origin": "null"}, False),
    "another site's image or link": ({"Sec-Fetch-Site": "cross-site"}, False),
    "another port of this machine": ({"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"}, False),
    "the page in an older browser": ({"Origin": "http://HOST"}, True),
    "another site in an older browser": ({"Origin": "https://evil.example"}, False),
    "a nameless page in an older browser": ({"Origin": "null"}, False),
    "another port in an older browser": ({"Origin": "http://127.0.0.1:1"}, False),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_other_websites_cannot_make_the_server_compute(live: Live, origin: str) -> None:
    """A page can send requests from its visitor's browser to this machine, even if it cannot read the answers."""
    headers, allowed = ORIGINS[origin]
    host = f"127.0.0.1:{live.port}"
    lines = "".join(f"{name}: {value.replace('HOST', host)}\r\n" for name, value in headers.items())
    for method, path in (
        ("POST", "/v1/classify"), ("POST", "/v1/embed"), ("POST", "/v1/explain"), ("POST", "/v1/images"),
        ("GET", "/v1/filters"), ("GET", "/metrics"),
    ):  # fmt: skip
        body = PNG if method == "POST" else b""
        head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
        reply = live.send(head.encode() + body)
        assert reply.status == (200 if allowed else 403)
        assert allowed or reply.code == "cross_site"
    page = live.send(f"GET / HTTP/1.1\r\nHost: {host}\r\n{lines}\r\n".encode())
    assert page.status == 200  # a link to the page may be anywhere


def test_requests_from_other_websites_are_accepted_with_the_key(served: list[ServedModel]) -> None:
    with in_thread(served, Settings(api_key="sesame")) as live:
        foreign = {"Origin": "https://pictures.example", "Sec_Fetch_Site": "cross-site"}
        assert live.request("POST", "/v1/classify", PNG, **foreign).status == 401
        assert live.request("POST", "/v1/classify", PNG, X_API_Key="sesame", **foreign).status == 200


@pytest.mark.parametrize(
    ("host", "key", "origins", "warnings"),
    [
        (HOST, None, (), 0),
        (HOST, None, ("https://app.example",), 0),
        (HOST, None, ("*",), 1),
        (HOST, "secret", ("*",), 0),
        ("0.0.0.0", None, (), 1),
    ],
)
def test_a_server_that_anyone_can_use_warns_at_start(
    capsys: pytest.CaptureFixture[str], host: str, key: str | None, origins: tuple[str, ...], warnings: int
) -> None:
    warn_without_key(host, Settings(host, api_key=key, cors_origins=origins))
    assert capsys.readouterr().err.count("API key") == warnings


def test_any_host_name_is_accepted_on_other_addresses(served: list[ServedModel]) -> None:
    with in_thread(served, Settings(host="0.0.0.0")) as live:
        assert response_for(live, "pictures.example") == (200, "")
    with TestClient(create_app(served, Settings()), base_url="http://pictures.example") as client:
        assert client.get("/v1/model").status_code == 200


def test_any_host_name_is_accepted_with_the_key(served: list[ServedModel]) -> None:
    with in_thread(served, Settings(api_key="sesame")) as live:
        head = b"GET /v1/model HTTP/1.1\r\nHost: pictures.example\r\n"
        assert live.send(head + b"X-API-Key: sesame\r\n\r\n").status == 200
        assert live.send(head + b"\r\n").status == 401


def test_errors_have_the_headers_of_all_responses(served: list[ServedModel]) -> None:
    with in_thread(served, Settings(api_key="sesame")) as live:
        right, refused = live.request("GET", "/v1/model", X_API_Key="sesame"), live.request("GET", "/v1/model")
    assert (right.status, refused.status) == (200, 401)
    assert refused.headers["x-content-type-options"] == "nosniff"
    assert set(right.headers) <= set(refused.headers)


def test_an_image_sent_by_curl_is_accepted(live: Live) -> None:
    """`curl --data-binary` declares every file as a URL-encoded form."""
    kind = "application/x-www-form-urlencoded"
    assert live.request("POST", "/v1/classify", PNG, kind).json == live.request("POST", "/v1/classify", PNG).json
    assert live.request("POST", "/v1/classify", b"image=cat", kind).code == "unsupported_type"


@pytest.mark.parametrize("declared", [True, False])
def test_json_bodies_are_limited_to_a_megabyte(live: Live, declared: bool) -> None:
    body = b'{"patches": [' + b" " * 10**6 + b"]}"
    head = f"POST /v1/images/0/masked HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n".encode()
    length = b"Content-Length: %d\r\n\r\n" % len(body)
    chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
    reply = live.send(head + (length if declared else chunks) + body + (b"" if declared else b"\r\n0\r\n\r\n"))
    assert (reply.status, reply.code) == (413, "body_too_large")
    assert live.request("POST", "/v1/images/0/masked", b'{"patches": []}', "application/json").code == "unknown_image"


def metric(live: Live, name: str) -> float:
    lines = live.request("GET", "/metrics").body.decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name + " ")), 0.0)


def wait_until(live: Live, name: str, value: float) -> None:
    for _ in range(2000):
        if metric(live, name) == value:
            return
        time.sleep(0.01)
    raise TimeoutError(f"{name} is {metric(live, name)}, not {value}")


def test_requests_of_disconnected_clients_are_not_computed(live: Live, served: list[ServedModel]) -> None:
    """The model is held: two workers have an image each, six wait, of which four disconnect."""
    go_on, predictor = threading.Event(), served[0].predictor
    before = metric(live, "vitreous_batch_pictures_sum")
    hold = predictor.model.register_forward_pre_hook(lambda *_: go_on.wait(30) and None)
    head = f"POST /v1/classify HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(PNG)}\r\n\r\n".encode()
    connections = []
    try:
        for number in range(8):
            connections.append(socket.create_connection((HOST, live.port), timeout=30))
            connections[-1].sendall(head + PNG)
            wait_until(live, "vitreous_open_requests", number + 2)  # and this request
            if number == 1:
                wait_until(live, "vitreous_batch_pictures_sum", before + 2)
        wait_until(live, "vitreous_waiting", 6)
        for one in connections[2:6]:
            one.close()
        wait_until(live, 'vitreous_requests_total{path="/v1/classify",status="499"}', 4)
        go_on.set()
        for one in (*connections[:2], *connections[6:]):
            assert one.recv(12) == b"HTTP/1.1 200"
        assert metric(live, "vitreous_batch_pictures_sum") == before + 4
    finally:
        go_on.set()
        hold.remove()
        for one in connections:
            one.close()


def test_large_images_do_not_delay_small_ones(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding is held for large images, of which there are more than threads."""
    go_on, large, decode = threading.Event(), encoded(np.zeros((2000, 2500, 3), np.uint8)), predictor_module.fit

    def hold_large(data: Any, *rest: Any) -> Any:
        assert data != large or go_on.wait(30)
        return decode(data, *rest)

    monkeypatch.setattr(predictor_module, "fit", hold_large)
    head = f"POST /v1/classify HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {len(large)}\r\n\r\n".encode()
    with contextlib.ExitStack() as stack:
        stack.callback(go_on.set)
        connections = []
        for number in range(4):
            connections.append(stack.enter_context(socket.create_connection((HOST, live.port), timeout=30)))
            connections[-1].sendall(head + large)
            wait_until(live, "vitreous_open_requests", number + 2)  # and this request
        assert live.request("POST", "/v1/classify", PNG).status == 200
        go_on.set()
        assert [read_reply(one).status for one in connections] == [200] * 4


@pytest.mark.slow
def test_explanations_have_ten_times_the_timeout(served: list[ServedModel]) -> None:
    go_on = threading.Event()
    with in_thread(served, Settings(timeout=0.1)) as live:
        hold = served[0].model.patches.register_forward_pre_hook(lambda *_: go_on.wait(30) and None)
        try:
            reply = live.request("POST", "/v1/images", PNG)
        finally:
            go_on.set()
            hold.remove()
    assert (reply.status, reply.code) == (503, "timeout")
    assert "after 1 s" in reply.json["error"]["message"]


# ---- The middleware alone ----


def response_of(
    middleware: Middleware, path: str, parts: Sequence[bytes] | None, *headers: tuple[bytes, bytes]
) -> tuple[int, dict[bytes, bytes]]:
    """Status and headers of the answer to a body that arrives in parts; None if it must not be read."""
    sent: list[Any] = []
    coming = iter(parts or ())

    async def receive() -> Any:
        assert parts is not None, "the body was read"
        part = next(coming, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost"), *headers]}
    asyncio.run(middleware(scope, receive, send))
    return sent[0]["status"], dict(sent[0]["headers"])


def new_middleware(app: Any, settings: Settings, full: bool = False) -> Middleware:
    scheduler = Scheduler(1, 0.0, 0 if full else 1, Metrics())
    return Middleware(app, settings, Metrics(), scheduler)


async def reads_all(scope: Any, receive: Any, send: Any) -> None:
    """An app that reads the body and answers 200, or with the error of reading."""
    try:
        while (await receive())["more_body"]:
            pass
    except ApiError as error:
        await error_response(error)(scope, receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})


async def reads_nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.mark.parametrize(("path", "status"), [("/v1/classify", 429), ("/v1/segment", 429), ("/healthz", 200)])
def test_a_full_queue_is_answered_before_the_body_is_read(path: str, status: int) -> None:
    middleware = new_middleware(reads_nothing, Settings(), full=True)
    code, headers = response_of(middleware, path, None, (b"content-length", b"5"))
    assert code == status
    assert (b"retry-after" in headers) == (status == 429)


def test_a_too_large_content_length_is_rejected_before_the_body() -> None:
    middleware = new_middleware(reads_all, Settings(max_body_mb=0.1))
    declared = (b"content-length", b"200000")
    assert response_of(middleware, "/v1/classify", None, declared, (b"expect", b"100-continue"))[0] == 413
    assert response_of(middleware, "/v1/classify", None, declared)[0] == 413
    assert response_of(middleware, "/v1/classify", [bytes(150_000)])[0] == 413


def test_bodies_of_all_requests_together_are_bounded() -> None:
    settings = Settings(max_body_mb=1)
    middleware = new_middleware(reads_all, settings)
    others = middleware.body_bytes = 8 * settings.max_body - 500_000  # of requests that are still being sent
    assert response_of(middleware, "/v1/classify", [bytes(250_000)] * 2)[0] == 200
    code, headers = response_of(middleware, "/v1/classify", [bytes(250_000)] * 2 + [b"x"])
    assert code == 429
    assert headers[b"retry-after"]
    assert middleware.body_bytes == others
