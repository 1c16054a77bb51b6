"""A web server for models: an HTTP API for programs (api/) and a page that looks inside the model (inspect/, page/).

A request passes connection.py (HTTP), requests.py (middleware, limits, the image), a route, batch_queue.py (queue,
batches, 429, threads) and models.py (the functions that compute). app.py puts them together and runs them.
errors.py is the form of all errors. This file imports no torch, so that the command line can use it and stay quick.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from vitreous.serving.settings import Settings as Settings


def serve(
    checkpoints: str | Path | Sequence[str | Path],
    *,
    host: str = Settings.host,
    port: int = Settings.port,
    image_size: Sequence[int] = (),
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    max_batch: int = Settings.max_batch,
    max_wait_ms: float = Settings.max_wait_ms,
    queue: int = Settings.queue,
    max_body_mb: float = Settings.max_body_mb,
    max_pixels: int = Settings.max_pixels,
    timeout: float = Settings.timeout,
    api_key: str | None = None,
    open: bool = False,
) -> None:
    """Serve models over HTTP until SIGINT or SIGTERM; requests in progress are answered first.

    checkpoints: one or more folders, files of other systems, or hf-hub:owner/name.
    host, port: address to listen at; port 0 chooses a free one.
    image_size: another size than the checkpoint's, as one side or (height, width); positions are resampled.
    device, precision: of the computation; device is auto, cpu, cuda or mps.
    max_batch, max_wait_ms: images per batch, and how long an image waits for others.
    queue: requests that may wait; the next is answered with 429.
    max_body_mb, max_pixels: largest body, and largest image by its header, before it is decoded.
    timeout: seconds per request; explanations may take ten times as long.
    api_key: key that requests must send; None serves every request.
    open: open the page in a browser.

    Raises OSError if the port is taken, and ValueError if a checkpoint cannot be loaded or this machine cannot run it.
    """
    settings = Settings(host, port, max_batch, max_wait_ms, queue, max_body_mb, max_pixels, timeout, api_key)
    try:
        from vitreous.serving.app import run_server
    except ModuleNotFoundError as error:
        raise ValueError(f"serving needs {error.name}: pip install 'vitreous[serve]'") from error
    names = [checkpoints] if isinstance(checkpoints, str | Path) else list(checkpoints)
    run_server(names, settings, image_size, device, precision, open)
