"""Runs all checks that need Ray on one local cluster of two nodes, and prints what it found as JSON.

A script in its own process, because Ray leaves threads, signal handlers and settings behind.
"""

import contextlib
import http.client
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

import vitreous
from vitreous.cluster.ray_cluster import import_ray

NODE = {"num_cpus": 1, "object_store_memory": 10**8}
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
SIZE = 4
CPU: dict[str, Any] = {"device": "cpu", "batch_size": 4}


def main(model: str, other: str, images: str, out: Path, port: int) -> dict[str, Any]:
    ray = import_ray()  # sets variables that the cluster's processes inherit
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={**NODE, "include_dashboard": False, "_system_config": QUICK}
    )
    try:
        second = cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        found = {"killed": kill_a_node(cluster, second, model, images, out)}
        cluster.add_node(**NODE)
        found["rerun"] = rerun(model, images, out)
        results = vitreous.predict(model, images, **CPU, engine="ray", workers=2)
        found["streamed"] = [(result.name, result.error) for result in results]
        found["serving"] = serve(model, other, next(Path(images).glob("0000.png")).read_bytes(), port)
        return found
    finally:
        ray.shutdown()
        cluster.shutdown()


def kill_a_node(cluster: Any, node: Any, model: str, images: str, out: Path) -> dict[str, Any]:
    """Kill a machine while both machines have a worker and some files are finished."""
    at_kill = []

    def kill() -> None:
        while len(list(out.glob("part-*"))) < 5 or len(processes("ray::ShardProcess")) < 2:
            time.sleep(0.005)
        at_kill.append(len(list(out.glob("part-*"))))
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    written = vitreous.predict(model, images, **CPU, engine="ray").write(out, shard_size=SIZE)
    killer.join(10)
    return {"at_kill": at_kill, "shards": written.shards, "images": written.images, "errors": written.errors}


def rerun(model: str, images: str, out: Path) -> dict[str, Any]:
    """Delete two files and run again."""
    parts = sorted(out.glob("part-*"))
    rows = parquet.read_table(parts[7]).to_pylist()
    for part in parts[7:9]:
        part.unlink()
    stamps = {part: part.stat().st_mtime_ns for part in parts if part.exists()}
    written = vitreous.predict(model, images, **CPU, engine="ray", workers=1).write(out, shard_size=SIZE)
    same = all(part.stat().st_mtime_ns == stamp for part, stamp in stamps.items())
    return {"skipped": written.skipped, "untouched": same, "equal": parquet.read_table(parts[7]).to_pylist() == rows}


# ---- Serving ---------------------------------------------------------------------------------------------------------


def serve(model: str, other: str, image: bytes, port: int) -> dict[str, Any]:
    limits: dict[str, Any] = {"device": "cpu", "port": port, "max_batch": 2, "queue": 2, "engine": "ray"}
    vitreous.serve(model, **limits, max_replicas=1)
    first = post(port, image)
    with clients(40, lambda: post(port, image)) as answers:
        time.sleep(1.5)
    overload = Counter(status for status, _ in answers)
    with clients(2, lambda: post(port, image)) as answers:
        time.sleep(1)
        vitreous.serve(other, **limits, max_replicas=1)
        time.sleep(1)
    names = {json.loads(body)["model"] for status, body in answers if status == 200}
    return {
        "first": first[0], "page": get(port, "/")[0], "script": get(port, "/page/app/main.js")[0],
        "overload": overload, "update": Counter(status for status, _ in answers), "models": sorted(names),
        "last": json.loads(post(port, image)[1])["model"], "sessions": sessions(other, image, limits),
    }  # fmt: skip


def sessions(model: str, image: bytes, limits: dict[str, Any]) -> dict[str, list[int]]:
    """Open an image on one of two replicas, and request its attention several times, in a session and without."""
    vitreous.serve(model, **limits, min_replicas=2, max_replicas=2)
    found = {}
    for session in ("one", "two", "three", ""):
        status, body = send(limits["port"], "POST", "/v1/images", image, session)
        assert status == 200, body
        path = f"/v1/images/{json.loads(body)['id']}/attention/0"
        found[session] = [send(limits["port"], "GET", path, None, session)[0] for _ in range(8)]
    return found


@contextlib.contextmanager
def clients(count: int, request: Callable[[], tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """Repeat a request in threads. The answers are complete after the block; a lost request has status 0."""
    stopped, answers = threading.Event(), list[tuple[int, str]]()

    def work() -> None:
        while not stopped.is_set():
            try:
                answers.append(request())
            except (OSError, http.client.HTTPException) as error:
                answers.append((0, repr(error)))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield answers
    stopped.set()
    for thread in threads:
        thread.join(60)


def post(port: int, image: bytes) -> tuple[int, str]:
    return send(port, "POST", "/v1/classify", image)


def get(port: int, path: str) -> tuple[int, str]:
    return send(port, "GET", path, None)


def send(port: int, method: str, path: str, body: bytes | None, session: str = "") -> tuple[int, str]:
    headers = {"Content-Type": "image/png"} | ({"X-Session-Id": session} if session else {})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode(errors="replace")
    finally:
        connection.close()


def processes(title: str) -> list[int]:
    """Return the ids of processes of this session whose title starts with `title`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if re.match(title, (folder / "cmdline").read_text(errors="replace")) and session_of(folder) == SESSION:
                found.append(int(folder.name))
    return found


def session_of(folder: Path) -> str | None:
    """Return the variable VITREOUS_RAY_SESSION of a process."""
    match = re.search(rb"VITREOUS_RAY_SESSION=([^\0]*)", (folder / "environ").read_bytes())
    return match[1].decode() if match else None


SESSION = os.environ.get("VITREOUS_RAY_SESSION")

if __name__ == "__main__":
    model, other, images, out, port = sys.argv[1:]
    print(json.dumps(main(model, other, images, Path(out), int(port))))
