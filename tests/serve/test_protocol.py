"""Connections that take their time, or are too many."""

import socket
import time
from collections.abc import Iterator

import pytest
import torch

import vitreous
from live_server import HOST, Live, in_thread, read_reply
from pictures import encoded, smooth
from vitreous.serve import protocol
from vitreous.serve.models import serving

PNG = encoded(smooth(20, 20))


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protocol, "HEADER_SECONDS", 0.6)
        patch.setattr(protocol, "MAX_CONNECTIONS", 20)
        with in_thread([serving(vitreous.create("ViT-Lite-6/4", num_classes=3), device="cpu")]) as live:
            yield live


def connect(live: Live) -> socket.socket:
    return socket.create_connection((HOST, live.port), timeout=20)


def drip(connection: socket.socket, data: bytes) -> None:
    """The same again and again, for ten seconds."""
    for _ in range(200):
        connection.sendall(data)
        time.sleep(0.05)


@pytest.mark.parametrize("start", [b"", b"GET /healthz HTTP/1.1\r\n", b"GET /healthz HTTP/1.1\r\nX-Slow: "])
def test_headers_that_do_not_end(live: Live, start: bytes) -> None:
    with connect(live) as connection:
        connection.sendall(start)
        answer = read_reply(connection)
        assert (answer.status, answer.code) == (408, "slow_request")
        assert connection.recv(1) == b""


def test_headers_that_drip(live: Live) -> None:
    """A byte now and then buys no time."""
    with connect(live) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            drip(connection, b"X: 1\r\n")


def test_the_second_request_of_a_connection_has_its_own_time(live: Live) -> None:
    with connect(live) as connection:
        for _ in range(4):
            time.sleep(0.3)  # together more than one may take
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_reply(connection).status == 200


def test_the_rest_of_a_request_that_has_its_answer_may_not_drip_for_ever(live: Live) -> None:
    head = f"POST /v1/classify?model=other HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(PNG)}\r\n\r\n"
    with connect(live) as connection:
        connection.sendall(head.encode() + PNG[:10])
        assert read_reply(connection).code == "unknown_model"
        with pytest.raises(ConnectionError):
            drip(connection, b"x")


def test_the_rest_of_a_request_that_has_its_answer_may_come(live: Live) -> None:
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
    assert live.ask("POST", "/v1/classify", PNG).status == 200
