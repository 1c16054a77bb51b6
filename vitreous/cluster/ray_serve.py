"""Runs a web app on Ray Serve: replicas that grow in number with the load, and updates that lose no request.

Each replica runs the whole app, with its own models and batches. Ray's proxy receives the requests and gives each of
them to a replica (see `session_router`).
"""

import logging
import math
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from vitreous.cluster.ray_cluster import FittedWorkers, WorkerSize, connected, import_ray, machines
from vitreous.common.checks import check_whole, fail
from vitreous.common.text import single_spaced

NAME = "vitreous"
SURGE_PERCENT = 25  # additional replicas during an update, rounded up


@dataclass(frozen=True)
class Replicas:
    """Number of replicas and the resources of each. `most` is None for as many as fit on the cluster."""

    least: int = 1
    most: int | None = None
    cpus: int | None = None
    gpus: float | None = None

    def __post_init__(self) -> None:
        check_whole("min_replicas", self.least, 1, 10_000)
        if self.most is not None and self.most < self.least:
            fail("max_replicas", self.most, f"at least min_replicas, which is {self.least}")


@dataclass(frozen=True)
class Load:
    """Limits of the app: requests per replica that keep it busy, that it accepts, and seconds per request."""

    target: int
    most: int
    timeout: float


def run_app(
    build: Callable[[FittedWorkers], Callable[[], Any]],
    host: str,
    port: int,
    load: Load,
    replicas: Replicas,
    on_cpu: bool,
) -> None:
    """Run an app on the cluster, or replace the app that runs there, and print the address.

    Return when the app is ready, or when this process is stopped if the cluster ends with it. `build` returns, for the
    resources of a replica, a function that creates the app there.
    """
    ray = import_ray()
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    with connected(ray) as temporary:
        workers = WorkerSize(None, replicas.cpus, replicas.gpus).fitted(machines(ray), on_cpu)
        most = max(replicas.most or workers.count, replicas.least)
        surge = _has_room(ray, serve, workers, replicas.least)
        app = serve.deployment(serve.ingress(build(workers))()).options(
            name=NAME,
            ray_actor_options={"num_cpus": workers.cpus, "num_gpus": workers.gpus},
            autoscaling_config={
                "min_replicas": replicas.least,
                "max_replicas": most,
                "target_ongoing_requests": load.target,
            },
            max_ongoing_requests=load.most,
            max_queued_requests=load.most,
            backpressure_config={"status_code": 429, "retry_after_s": 1},
            graceful_shutdown_timeout_s=load.timeout + 5,
            max_surge_percent=SURGE_PERCENT if surge else 0,
            request_router_config={"request_router_class": "vitreous.cluster.session_router:SessionRouter"},
            max_constructor_retry_count=3,
        )
        serve.start(http_options={"host": host, "port": port, "location": "HeadOnly"})
        try:
            serve.run(app.bind(), name=NAME, route_prefix="/")
        except RuntimeError as error:
            deployments = serve.status().applications[NAME].deployments.values()
            reason = " ".join([str(error), *(deployment.message for deployment in deployments)])
            raise ValueError(f"the server could not be started: {single_spaced(reason, 2000)}") from error
        print(f"Serving on Ray at http://{host}:{port}", flush=True)
        if temporary:
            print("Press Ctrl+C to stop", flush=True)
            _wait_for_signal()
            serve.delete(NAME)  # finishes the requests in progress


def _has_room(ray: Any, serve: Any, workers: FittedWorkers, least: int) -> bool:
    """Return True if all new replicas of an update fit beside the old ones that they replace one by one.

    Otherwise the update would wait forever for resources.
    """
    deployments = getattr(serve.status().applications.get(NAME), "deployments", {})
    running = sum(sum(deployment.replica_states.values()) for deployment in deployments.values())
    target = max(running, least)
    new = target + math.ceil(target * SURGE_PERCENT / 100) - running
    room = ray.available_resources()
    return bool(room.get("CPU", 0) >= new * workers.cpus and room.get("GPU", 0) >= new * workers.gpus)


def _wait_for_signal() -> None:
    """Wait for SIGINT or SIGTERM."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    stopped.wait()
    for number, handler in before.items():
        signal.signal(number, handler)
