"""HTTP server: an API (api/) and a web page that visualises a model's internals (inspect/).

A request passes through connection.py (HTTP), middleware.py (limits, API key, origins), a route, requests.py (its model
and image) and batch_queue.py (queueing, batching and worker threads). models.py loads the models, metrics.py counts
requests, errors.py defines error responses, and app.py assembles and runs the server. This file does not import torch,
which keeps the command line fast.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from vitreous.common.checks import check_choice, fail
from vitreous.serving.settings import Settings as Settings


def serve(
    checkpoints: str | Path | Sequence[str | Path],
    *,
    host: str = Settings.host,
    port: int = Settings.port,
    image_size: Sequence[int] = (),
    device: str = "auto",
    precision: Literal["fp32", "bf16", "fp8", "int8", "auto"] = "fp32",
    max_batch: int = Settings.max_batch,
    max_wait_ms: float = Settings.max_wait_ms,
    queue: int = Settings.queue,
    max_body_mb: float = Settings.max_body_mb,
    max_pixels: int = Settings.max_pixels,
    timeout: float = Settings.timeout,
    api_key: str | None = None,
    cors_origins: Sequence[str] = (),
    frame_origins: Sequence[str] = (),
    gallery: str | Path | None = None,
    open: bool = False,
    engine: Literal["local", "ray"] = "local",
    min_replicas: int = 1,
    max_replicas: int | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
) -> None:
    """Serve models over HTTP until SIGINT or SIGTERM, then finish the requests in progress.

    With the engine "ray", the server runs on the Ray cluster at RAY_ADDRESS or on this machine, and this function
    returns when the server is ready. A further call replaces the server without losing requests. If there is no
    cluster, one is started that ends with this process.

    checkpoints: one or more checkpoint folders, weight files from other libraries, catalog names, or hf-hub:owner/name.
    host: address to listen on.
    port: port to listen on; 0 picks a free port.
    image_size: input size as (side,) or (height, width); defaults to the image size of the checkpoint.
    device: auto, cpu, cuda or mps.
    precision: compute precision.
    max_batch: maximum number of images per batch.
    max_wait_ms: longest time in milliseconds that an image waits for its batch to fill.
    queue: maximum number of waiting requests; further requests get status 429.
    max_body_mb: maximum request size in megabytes.
    max_pixels: maximum number of pixels per image, checked before decoding.
    timeout: time limit per request in seconds; explanations may take ten times as long.
    api_key: key that requests must send; None allows all requests.
    cors_origins: websites whose scripts may use the API, such as https://app.example; "*" allows all.
    frame_origins: websites that may show the page in a frame.
    gallery: folder of images; the page shows those that are nearest to an image or to a patch.
    open: open the page in a web browser.
    engine: "local" for one process, or "ray" for several replicas on a Ray cluster.
    min_replicas, max_replicas: limits for the number of replicas, which depends on the load; by default 1, and as many
        as fit on the cluster.
    worker_cpus: CPU cores per replica; by default 1 or, with a GPU, the cores that the machine has for it.
    worker_gpus: GPUs per replica; by default 1 if the machines have GPUs. With 0.5, two replicas share a GPU.

    Raise OSError if the port is in use, and ValueError if a checkpoint is invalid or too large for this machine.
    """
    settings = Settings(
        host, port, max_batch, max_wait_ms, queue, max_body_mb, max_pixels, timeout, api_key,
        tuple(cors_origins), tuple(frame_origins),
    )  # fmt: skip
    try:
        from vitreous.serving.app import run_server
    except ModuleNotFoundError as error:
        raise ValueError(f'serving needs {error.name}: pip install "vitreous[serve]"') from error
    names = [checkpoints] if isinstance(checkpoints, str | Path) else list(checkpoints)
    check_choice("engine", engine, ("local", "ray"))
    if engine == "local":
        given = {"max_replicas": max_replicas, "worker_cpus": worker_cpus, "worker_gpus": worker_gpus}
        for name, value in {**given, "min_replicas": None if min_replicas == 1 else min_replicas}.items():
            if value is not None:
                fail(name, value, "omitted for the engine 'local'")
        run_server(names, settings, image_size, device, precision, open, None if gallery is None else Path(gallery))
        return
    if gallery is not None:
        fail("gallery", str(gallery), "omitted for the engine 'ray'")
    from vitreous.cluster.ray_serve import Replicas
    from vitreous.serving.ray_app import run_on_ray

    for name, value in {"open": open, "port": port}.items():
        if value == (name == "open"):
            fail(name, value, "omitted for the engine 'ray'")
    replicas = Replicas(min_replicas, max_replicas, worker_cpus, worker_gpus)
    run_on_ray(names, settings, image_size, device, precision, replicas)
