"""Connections that are slow, too many or send too much, and the responses their clients receive."""

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import vitreous
from images import encoded, smooth
from live_server import HOST, Live, Reply, in_thread, read_reply
from vitreous.serving import connection as connections
from vitreous.serving.batch_queue import Scheduler
from vitreous.serving.models import ServedModel, serve_model
from vitreous.serving.settings import Settings

PNG = encoded(smooth(20, 20))


@pytest.fixture(scope="module")
def served() -> list[ServedModel]:
    torch.manual_seed(0)
    return [serve_model(vitreous.create("ViT-Lite-6/4", num_classes=3), device="cpu")]


@pytest.fixture(scope="module")
def live(served: list[ServedModel]) -> Iterator[Live]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEADER_SECONDS", 0.6)
        patch.setattr(connections, "MAX_CONNECTIONS", 20)
        patch.setattr(connections, "LINGER_SECONDS", 0.5)
        with in_thread(served) as live:
            yield live


def connect(live: Live) -> socket.socket:
    return socket.create_connection((HOST, live.port), timeout=20)


def drip(connection: socket.socket, data: bytes) -> None:
    """Send the same data repeatedly for ten seconds."""
    for _ in range(200):
        connection.sendall(data)
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("start", [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nX-Slow: "])
def test_incomplete_headers_time_out(live: Live, start: bytes) -> None:
    with connect(live) as connection:
        connection.sendall(start)
        answer = read_reply(connection)
        assert (answer.status, answer.code) == (408, "slow_request")
        assert connection.recv(1) == b""


@pytest.mark.slow
def test_slowly_dripping_headers_time_out(live: Live) -> None:
    """A byte now and then does not extend the time."""
    with connect(live) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            drip(connection, b"X: 1\r\n")


@pytest.mark.slow
def test_each_request_of_a_connection_has_a_new_time_limit(live: Live) -> None:
    with connect(live) as connection:
        for _ in range(4):
            time.sleep(0.3)  # together more than the limit of one request
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_reply(connection).status == 200


def test_the_rest_of_an_answered_request_times_out(live: Live) -> None:
    head = f"POST /v1/classify?model=other HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(PNG)}\r\n\r\n"
    with connect(live) as connection:
        connection.sendall(head.encode() + PNG[:10])
        assert read_reply(connection).code == "unknown_model"
        with pytest.raises(ConnectionError):
            drip(connection, b"x")


def test_the_rest_of_an_answered_request_is_skipped(live: Live) -> None:
    head = f"POST /v1/classify?model=%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(PNG)}\r\n\r\n"
    with connect(live) as connection:
        connection.sendall((head % "other").encode() + PNG[:10])
        assert read_reply(connection).code == "unknown_model"
        connection.sendall(PNG[10:] + (head % "model").encode() + PNG)
        assert read_reply(connection).status == 200


def test_too_many_connections(live: Live) -> None:
    held = [connect(live) for _ in range(20)]
    try:
        with connect(live) as one_more:
            answer = read_reply(one_more)
            assert (answer.status, answer.code) == (503, "busy")
    finally:
        for connection in held:
            connection.close()
    live.wait_until_ready()
    assert live.request("POST", "/v1/classify", PNG).status == 200


# ---- Headers that are too large --------------------------------------------------------------------------------------

START = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
LARGE = {
    "one header": START + b"X: " + b"a" * 10**7 + b"\r\n\r\n",
    "one header's name": START + b"a" * 10**7 + b": x\r\n\r\n",
    "many headers": START + b"X: y\r\n" * 10**6 + b"\r\n",
    "few bytes in many headers": START + b"X: y\r\n" * 400 + b"\r\n",
    "a header just too large": START + b"X: " + b"a" * (2**16 + 2**14) + b"\r\n\r\n",
    "URL": b"GET /" + b"a" * 10**7 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "after another request": START + b"\r\n" + START + b"X: " + b"a" * 10**7,
    "trailers": b"POST /v1/embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"0\r\n" + b"X: y\r\n" * 10**6 + b"\r\n",
    "one trailer": b"POST /v1/embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"3\r\nabc\r\n0\r\nX: " + b"a" * 10**7 + b"\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_too_large_headers_are_rejected(live: Live, kind: str) -> None:
    with connect(live) as connection:
        if kind == "after another request":  # which is answered first
            connection.sendall(LARGE[kind][: len(START) + 2])
            assert read_reply(connection).status == 200
            connection.sendall(LARGE[kind][len(START) + 2 :])
        else:
            connection.sendall(LARGE[kind])
        answer = read_reply(connection)
        assert (answer.status, answer.code) == (431, "headers_too_large")
        assert connection.recv(1) == b""


def test_headers_just_below_the_limit_are_accepted(live: Live) -> None:
    assert live.send(START + b"X: " + b"a" * 65_000 + b"\r\n\r\n").status == 200
    assert live.send(START + b"X: y\r\n" * 250 + b"\r\n").status == 200
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in re.findall(rb"(?s).{1,3}", PNG))
    head = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert len(chunks) > 2 * len(PNG)
    assert live.send(head + chunks + b"0\r\n\r\n").status == 200


def test_invalid_data_after_a_request_does_not_disturb_its_answer(live: Live) -> None:
    head = f"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(PNG)}\r\n\r\n".encode()
    for wrong in (b"\0\1\2\3\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 10**5):
        with connect(live) as connection:
            connection.sendall(head + PNG + wrong)
            assert read_reply(connection).status == 200
            assert connection.recv(1) == b""


# ---- Answers that come before the request is complete ----------------------------------------------------------------

BODY = PNG + bytes(19_000_000)  # more than fits into the buffers of sockets


def send_all(live: Live, data: bytes) -> Reply:
    """Send everything before reading the answer, as most clients do."""
    with connect(live) as connection:
        connection.sendall(data)
        answer = read_reply(connection)
        assert connection.recv(1) == b""
        return answer


EARLY = {
    "busy": ("/v1/classify", "", 429),
    "cross_site": ("/v1/classify", "Origin: https://evil.example\r\n", 403),
    "unknown_model": ("/v1/embed?model=other", "", 404),
    "wrong_host": ("/v1/classify", "", 421),
    "bad_host": ("/v1/classify", "Host: localhost\r\n", 400),
    "body_too_large": ("/v1/images/0/masked", "Content-Type: application/json\r\n", 413),
}


def request(code: str) -> bytes:
    path, headers, _ = EARLY[code]
    headers += f"Host: {'evil.example' if code == 'wrong_host' else 'localhost'}\r\nConnection: close\r\n"
    return f"POST {path} HTTP/1.1\r\n{headers}Content-Length: {len(BODY)}\r\n\r\n".encode() + BODY


@pytest.mark.parametrize("code", EARLY)
def test_early_responses_arrive(live: Live, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connection: close must not reset the connection while the client is still sending, or it loses the answer."""
    monkeypatch.setattr(Scheduler, "full", property(lambda _: code == "busy"))
    monkeypatch.setattr(connections, "LINGER_SECONDS", 10.0)
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: send_all(live, request(code)), range(8)))
    assert [(answer.status, answer.code) for answer in answers] == [(EARLY[code][2], code)] * 8


def test_missing_keys_are_rejected_before_the_body_is_read(served: list[ServedModel]) -> None:
    with in_thread(served, Settings(api_key="sesame")) as live:
        assert send_all(live, request("busy")).code == "unauthorized"


@pytest.mark.parametrize(("seconds", "count"), [(0.2, 2**40), (60.0, 2**20)])
def test_clients_that_keep_sending_are_disconnected(
    live: Live, seconds: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", seconds)
    monkeypatch.setattr(connections, "LINGER_BYTES", count)
    with connect(live) as connection:
        connection.sendall(b"POST /v1/embed?model=other HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n")
        connection.sendall(b"Content-Length: 20000000\r\n\r\n")
        assert read_reply(connection).code == "unknown_model"
        with pytest.raises(ConnectionError):
            drip(connection, bytes(200_000))


def test_the_number_of_lingering_connections_is_limited(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_SECONDS", 60.0)
    monkeypatch.setattr(connections, "MAX_REFUSED", 2)
    held = [connect(live) for _ in range(20)]
    refused = []
    try:
        for _ in range(5):
            refused.append(connect(live))
            assert read_reply(refused[-1]).code == "busy"
        gone = [one for one in refused if is_reset(one)]
        assert len(gone) == 3
    finally:
        for one in (*held, *refused):
            one.close()


def is_reset(connection: socket.socket) -> bool:
    """Return True if the server has closed the connection, so more data causes a reset."""
    try:
        for _ in range(20):
            connection.sendall(b"x")
            time.sleep(0.01)
    except ConnectionError:
        return True
    return False
