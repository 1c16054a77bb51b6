"""The `vitreous serve` command."""

import os
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous import serving
from vitreous.cli import ImageSize
from vitreous.common.checks import BadValue
from vitreous.serving.settings import Settings

KEY_VARIABLE = "VITREOUS_API_KEY"


def serve(
    checkpoints: Annotated[Positional[tuple[Path, ...]], arg(metavar="CHECKPOINT [CHECKPOINT2]")],
    *,
    host: str = Settings.host,
    port: int = Settings.port,
    image_size: ImageSize = (),
    device: str = "auto",
    precision: Literal["fp32", "bf16", "fp8", "int8", "auto"] = "fp32",
    max_batch: int = Settings.max_batch,
    max_wait_ms: float = Settings.max_wait_ms,
    queue: int = Settings.queue,
    max_body_mb: float = Settings.max_body_mb,
    max_pixels: int = Settings.max_pixels,
    timeout: float = Settings.timeout,
    api_key_file: Path | None = None,
    cors_origins: tuple[str, ...] = (),
    frame_origins: tuple[str, ...] = (),
    gallery: Path | None = None,
    open: bool = False,
    engine: Literal["local", "ray"] = "local",
    min_replicas: int = 1,
    max_replicas: int | None = None,
    worker_cpus: int | None = None,
    worker_gpus: float | None = None,
) -> None:
    """Serve models over HTTP, with an API and a web page to explore them.

    Example: vitreous serve runs/first/best --open

    Args:
        checkpoints: One or more checkpoint folders such as runs/first/best, weight files from other libraries, catalog
            names such as dinov2-s, or hf-hub:owner/name.
        host: Address to listen on; 0.0.0.0 accepts connections from other machines.
        port: Port to listen on; 0 picks a free port.
        image_size: Input size, by default that of the checkpoint. Position embeddings are resampled.
        device: auto, cpu, cuda or mps.
        precision: Compute precision. fp8 needs a ViT and a GPU such as an H100 or RTX 4090; the first 32 images
            determine the scales, and batches before the 32nd image are computed in bf16. int8 is for CPUs and
            checkpoints with int8 scales; see `vitreous quantise`.
        max_batch: Maximum number of images per batch.
        max_wait_ms: Longest time in milliseconds that an image waits for its batch to fill.
        queue: Maximum number of waiting requests; further requests get status 429.
        max_body_mb: Maximum request size in megabytes.
        max_pixels: Maximum number of pixels per image, checked before decoding.
        timeout: Time limit per request in seconds; explanations may take ten times as long.
        api_key_file: File with the API key that requests must send. Alternatively, set VITREOUS_API_KEY.
        cors_origins: Websites whose scripts may use the API, such as https://app.example; * allows all.
        frame_origins: Websites that may show the page in a frame.
        gallery: Folder of images. The page shows those that are nearest to an image or to a patch.
        open: Open the page in a web browser.
        engine: `ray` runs replicas on the Ray cluster at RAY_ADDRESS or on this machine, and replaces the server there
            without losing requests. If there is no cluster, one is started that ends with this command.
        min_replicas: Smallest number of replicas on Ray.
        max_replicas: Largest number of replicas under load, by default as many as fit on the cluster.
        worker_cpus: CPU cores per replica, by default 1 or, with a GPU, the cores that the machine has for it.
        worker_gpus: GPUs per replica, by default 1 if the machines have GPUs. With 0.5, two replicas share a GPU.
    """
    if not checkpoints:
        raise BadValue("no checkpoint given; pass one or more checkpoint folders or files")
    api_key = os.environ.get(KEY_VARIABLE) or None
    if api_key_file is not None:
        try:
            api_key = api_key_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise OSError(f"cannot read the API key file {api_key_file}: {error.strerror}") from error
    serving.serve(
        checkpoints, host=host, port=port, image_size=image_size, device=device, precision=precision,
        max_batch=max_batch, max_wait_ms=max_wait_ms, queue=queue, max_body_mb=max_body_mb, max_pixels=max_pixels,
        timeout=timeout, api_key=api_key, cors_origins=cors_origins, frame_origins=frame_origins, gallery=gallery,
        open=open, engine=engine, min_replicas=min_replicas, max_replicas=max_replicas, worker_cpus=worker_cpus,
        worker_gpus=worker_gpus,
    )  # fmt: skip
