"""Faults of the server: bombs, slow and endless clients, overload, shutdown, hostile requests."""

import asyncio
import contextlib
import json
import re
import shutil
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from live_server import HOST, Live, process, read_reply
from torture.runner import Case
from torture.scene import Scene, finish, rejected, stop, wait_until


@contextlib.contextmanager
def served(scene: Scene, *flags: str, checkpoint: Path | None = None) -> Iterator[Live]:
    """Run `vitreous serve`. At the end it must exit with 0 and have printed no error."""
    with process([checkpoint or scene.checkpoint()], *flags) as live:
        yield live


def jpeg(side: int = 60) -> bytes:
    from images import encoded, smooth

    return encoded(smooth(side, side), "JPEG")


def head(length: int, path: str = "/v1/classify") -> bytes:
    lines = (f"POST {path} HTTP/1.1", f"Host: {HOST}", "Content-Type: image/jpeg", f"Content-Length: {length}", "", "")
    return "\r\n".join(lines).encode()


def started(scene: Scene, checkpoint: Path, *flags: object, **options: Any) -> Live:
    """Start `vitreous serve` for a case that ends it in its own way, and wait until it listens."""
    running = scene.start("serve", checkpoint, *flags, **options)
    assert running.stdout is not None
    found = re.search(r":(\d+) ", running.stdout.readline())
    assert found is not None, finish(running).errors
    return Live(int(found[1]), running)


def works(live: Live) -> None:
    answer = live.request("POST", "/v1/classify", jpeg(), "image/jpeg")
    assert answer.status == 200, answer


def bombs(scene: Scene) -> str:
    from image_bombs import bomb, sides

    with served(scene) as live:
        works(live)
        before = live.memory
        statuses = Counter(
            live.request("POST", path, data).status
            for path in ("/v1/classify", "/v1/embed", "/v1/images")
            for data in (bomb(12_000), bomb(12_000, sides(8)))
        )
        assert statuses == {413: 6}, statuses
        assert live.memory < before + 50, f"{live.memory - before:.0f} MB more"
        works(live)
        return f"413 for all; {live.memory - before:.0f} MB more memory"


def slow_upload(scene: Scene) -> str:
    with served(scene, "--timeout", "2") as live:
        data = jpeg()
        began = time.monotonic()
        answer = live.send(head(len(data)), *[data[i : i + 1] for i in range(10)], pause=0.4)
        assert (answer.status, answer.code) == (408, "slow_upload"), answer
        seconds = time.monotonic() - began
        works(live)
        return f"408 after {seconds:.0f} s"


def endless_upload(scene: Scene) -> str:
    start = f"POST /v1/classify HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    with served(scene, "--max-body-mb", "1") as live:
        works(live)
        before = live.memory
        answer = live.send(start, *[b"10000\r\n" + bytes(2**16) + b"\r\n"] * 64)
        assert (answer.status, answer.code) == (413, "body_too_large"), answer
        more = live.memory - before
        assert more < 50, f"{more:.0f} MB more"
        works(live)
        return f"413; {more:.0f} MB more memory"


def slowloris(scene: Scene) -> str:
    """Three hundred clients that never finish their headers, while others are served."""
    with served(scene) as live, contextlib.ExitStack() as held:
        connections = [held.enter_context(socket.create_connection((HOST, live.port), timeout=30)) for _ in range(300)]
        for connection in connections:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        began, answered = time.monotonic(), 0
        while time.monotonic() - began < 8:
            works(live)
            answered += 1
            for connection in connections[answered % 10 :: 10]:
                with contextlib.suppress(OSError):
                    connection.sendall(b"a")
        time.sleep(6)
        codes = Counter(read_reply(connection).status for connection in connections)
        assert set(codes) == {408}, codes
        return f"300 connections were ended with 408; meanwhile {answered} requests of others were answered"


def overload(scene: Scene) -> str:
    from benchmarks.http_load import closed_loop, request

    with served(scene, "--queue", "8", "--max-batch", "1") as live:
        question = [request(HOST, live.port, "/v1/classify", jpeg(1200))]
        found = asyncio.run(closed_loop(HOST, live.port, question, 64, 5))
        statuses = Counter(answer.status for answer in found)
        assert set(statuses) == {200, 429}, statuses
        slowest = max(answer.seconds for answer in found if answer.status == 200)
        works(live)
        return f"64 clients: {statuses[200]} answered (slowest {slowest:.1f} s), {statuses[429]} got 429"


def stopped_under_load(scene: Scene) -> str:
    from benchmarks.http_load import Response, closed_loop, request

    found: list[Response] = []
    with served(scene, "--max-batch", "4") as live:
        running = live.process
        assert running is not None
        questions = [request(HOST, live.port, "/v1/classify", jpeg(300))]

        async def load() -> None:
            clients = asyncio.create_task(closed_loop(HOST, live.port, questions, 24, 3600, found))
            while len(found) <= 48 and not clients.done():
                await asyncio.sleep(0.01)
            running.send_signal(signal.SIGTERM)
            await asyncio.wait_for(clients, 100)

        asyncio.run(load())
        status = running.wait(60)
        assert status == 0, f"exit status {status}"
    statuses = Counter(answer.status for answer in found)
    assert set(statuses) == {200}, statuses
    return f"all {len(found)} requests were answered; exit 0"


def killed_and_restarted(scene: Scene) -> str:
    """A killed server leaves nothing behind that would prevent a new one on the same port."""
    first = started(scene, scene.checkpoint(), "--port", 0)
    first.wait_until_ready()
    works(first)
    assert first.process is not None
    stop(first.process, signal.SIGKILL)
    second = started(scene, scene.checkpoint(), "--port", first.port)
    second.wait_until_ready()
    works(second)
    message = rejected(scene.vitreous("serve", scene.checkpoint(), "--port", first.port), str(first.port))
    assert second.process is not None
    assert stop(second.process, signal.SIGTERM).status == 0
    return f"served again; another server on that port: {message}"


def checkpoint_replaced(scene: Scene) -> str:
    copy = scene.folder / "model"
    shutil.copytree(scene.checkpoint(), copy)
    with served(scene, checkpoint=copy) as live:
        before = live.request("POST", "/v1/classify", jpeg(), "image/jpeg").json
        (copy / "model.safetensors").write_bytes(b"")  # truncating a mapped file would kill the process
        assert live.request("POST", "/v1/classify", jpeg(), "image/jpeg").json == before
        shutil.rmtree(copy)
        assert live.request("POST", "/v1/classify", jpeg(), "image/jpeg").json == before
    return "the same predictions after truncation and deletion"


def broken_model(scene: Scene) -> str:
    from safetensors.torch import load_file, save_file

    copy = scene.folder / "model"
    shutil.copytree(scene.checkpoint(), copy)
    tensors = load_file(copy / "model.safetensors")
    save_file({name: tensor * float("nan") for name, tensor in tensors.items()}, copy / "model.safetensors")
    live = started(scene, copy, "--port", 0)
    assert live.process is not None
    wait_until(lambda: live.request("POST", "/v1/classify", jpeg(), "image/jpeg").code != "not_ready", live.process)
    answer = live.request("POST", "/v1/classify", jpeg(), "image/jpeg")
    assert (answer.status, answer.code) == (503, "broken_model"), answer
    assert stop(live.process, signal.SIGTERM).status == 0
    return "503 broken_model"


def disconnects(scene: Scene) -> str:
    with served(scene) as live:
        data = jpeg(800)

        def leave(number: int) -> None:
            with contextlib.suppress(OSError), socket.create_connection((HOST, live.port), timeout=10) as connection:
                connection.sendall((head(len(data)) + data)[: 1 + number * 400])

        threads = [threading.Thread(target=leave, args=(number,)) for number in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        works(live)
        end = time.monotonic() + 30
        while "vitreous_open_requests 1\n" not in live.request("GET", "/metrics").body.decode():
            assert time.monotonic() < end, "requests remain open"
            time.sleep(0.05)
    return "60 clients left at different moments; no request remains open"


def invalid_requests(scene: Scene) -> str:
    requests = [
        b"\0\1\2\3", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nHost x\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /v1/embed HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /page/../../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /page/..%2f..%2fapp.py HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/model HTTP/1.1\r\nHost: attacker.example\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 10**7 + b"\r\n\r\n",
    ]  # fmt: skip
    with served(scene) as live:
        works(live)
        before = live.memory
        statuses = [live.send(request).status for request in requests]
        assert all(400 <= status < 500 for status in statuses), statuses
        assert live.memory < before + 50
        works(live)
    return f"statuses {', '.join(map(str, statuses))}"


def scripts_on_the_page(scene: Scene) -> str:
    """Labels with HTML reach the page only as JSON, and the page forbids inline scripts."""
    copy = scene.folder / "<b>model"
    shutil.copytree(scene.checkpoint(), copy)
    config = json.loads((copy / "config.json").read_text())
    config["model"]["labels"][0] = "</script><img src=x onerror=alert(1)>"
    (copy / "config.json").write_text(json.dumps(config))
    with served(scene, checkpoint=copy) as live:
        page = live.request("GET", "/")
        policy = page.headers["content-security-policy"]
        assert b"onerror" not in page.body, "the page contains the label"
        script = next((part for part in policy.split(";") if "script-src" in part or "default-src" in part), "")
        assert "unsafe-inline" not in script, policy
        model = live.request("GET", "/v1/model")
        assert model.headers["content-type"] == "application/json", model.headers
        assert model.headers.get("x-content-type-options") == "nosniff", model.headers
    return "labels only in JSON with nosniff; the Content-Security-Policy forbids inline scripts"


def many_connections(scene: Scene) -> str:
    """More clients than file descriptors."""
    import resource

    limit = 256
    live = started(
        scene, scene.checkpoint(), "--port", 0,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
    )  # fmt: skip
    live.wait_until_ready()
    assert live.process is not None
    with contextlib.ExitStack() as held:
        for _ in range(400):
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_connection((HOST, live.port), timeout=5))
        time.sleep(1)
        assert live.process.poll() is None, "the server ended"
    time.sleep(1)
    works(live)
    done = stop(live.process, signal.SIGTERM)
    assert done.status == 0, done.errors[-500:]
    return f"answers again after 400 connections; {len(done.errors.splitlines())} lines of errors"


CASES = [
    Case("PNG bombs over HTTP", "144 megapixels in 20 kB, also with a false header", "413, little memory", bombs),
    Case("slow upload", "an image byte by byte, --timeout 2", "408", slow_upload),
    Case("endless upload", "chunks without end, --max-body-mb 1", "413, little memory", endless_upload),
    Case("slowloris", "300 clients that never finish their headers", "408; others are served", slowloris),
    Case("overload", "64 clients for a queue of 8", "429 for some, an answer for the others", overload),
    Case("SIGTERM under load", "24 clients without pauses", "no accepted request is lost; exit 0", stopped_under_load),
    Case("kill -9 of the server", "and a new one on the same port", "serves again", killed_and_restarted),
    Case("checkpoint replaced", "truncated and deleted while it is served", "the same answers", checkpoint_replaced),
    Case("NaN weights", "a checkpoint that returns NaN is served", "503, or does not start", broken_model),
    Case("disconnecting clients", "60 clients leave during uploads", "others are served; nothing leaks", disconnects),
    Case(
        "invalid requests",
        "broken HTTP, traversal, foreign Host, large headers",
        "4xx, little memory",
        invalid_requests,
    ),
    Case("scripts on the page", "HTML in labels of a served model", "not executed", scripts_on_the_page),
    Case("many connections", "400 clients, 256 file descriptors", "the server survives", many_connections),
]
