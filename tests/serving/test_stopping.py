"""SIGTERM and SIGINT under load: accepted requests are answered, and no process remains."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.http_load import Response, closed_loop, request
from images import encoded, smooth
from live_server import HOST, process, read_reply

pytestmark = pytest.mark.slow

JPEG = encoded(smooth(200, 300), "JPEG")


@pytest.mark.parametrize("order", [signal.SIGTERM, signal.SIGINT])
def test_no_accepted_request_is_lost(checkpoint: Path, order: signal.Signals) -> None:
    """Clients send requests without a pause until they are disconnected; every request is answered."""
    with process([checkpoint], "--max-batch", "4") as live:
        assert live.process is not None
        found: list[Response] = []
        questions = [request(HOST, live.port, "/v1/classify", JPEG)]

        async def load() -> None:
            clients = asyncio.create_task(closed_loop(HOST, live.port, questions, 24, 3600, found))
            while len(found) <= 48 and not clients.done():
                await asyncio.sleep(0.01)
            assert live.process is not None
            live.process.send_signal(order)
            await asyncio.wait_for(clients, 120)  # they end when they are disconnected

        asyncio.run(load())
        assert live.process.wait(60) == 0
        children = Path(f"/proc/{live.process.pid}")
        assert not children.exists()
    assert len(found) > 24
    assert {answer.status for answer in found} == {200}
    assert all(json.loads(answer.body)["predictions"] for answer in found)


def test_an_upload_that_has_begun_gets_a_response_and_an_idle_connection_does_not_delay_the_shutdown(
    checkpoint: Path,
) -> None:
    """It could be kept open for a minute, and a request for five."""
    question = request(HOST, 0, "/v1/classify", JPEG)
    with (
        process([checkpoint], "--timeout", "300") as live,
        socket.create_connection((HOST, live.port), timeout=30) as idle,
        socket.create_connection((HOST, live.port), timeout=30) as connection,
    ):
        assert live.process is not None
        idle.sendall(question)
        assert read_reply(idle).status == 200
        connection.sendall(question[:2000])
        while "vitreous_open_requests 2\n" not in live.request("GET", "/metrics").body.decode():  # the upload and this
            time.sleep(0.01)
        live.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        connection.sendall(question[2000:])
        answer = read_reply(connection)
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert live.process.wait(30) == 0
        assert idle.recv(1) == b""


HOLD = """
import os, sys, time
from pathlib import Path
from vitreous.serving import app as run
from vitreous.serving.settings import Settings

def open_held(*arguments):
    served = opened(*arguments)
    def hold(*_):
        os.write(1, b"computing\\n")  # possibly within the greeting, whose end print can write separately
        time.sleep(600)
    served[0].predictor.model.register_forward_pre_hook(hold)
    return served

opened, run.load_models = run.load_models, open_held
run.run_server([Path(sys.argv[1])], Settings(port=0), device="cpu")
"""


def test_a_slow_warm_up_does_not_delay_the_shutdown(checkpoint: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        watchdog = threading.Timer(120, running.kill)
        watchdog.start()
        try:
            assert "computing\n" in running.stdout.readline() + running.stdout.readline()  # and the greeting
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=60)
        finally:
            watchdog.cancel()
            running.kill()  # or leaving the block would wait for the server forever
    assert (running.returncode, errors) == (0, "")
