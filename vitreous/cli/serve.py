"""The verb `vitreous serve`. torch is imported inside, so that `--help` answers at once."""

import os
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitreous.common.checks import fail
from vitreous.serving.settings import Settings

KEY_VARIABLE = "VITREOUS_API_KEY"


def serve(
    checkpoints: Annotated[Positional[tuple[Path, ...]], arg(metavar="CHECKPOINT [CHECKPOINT2]")],
    *,
    host: str = Settings.host,
    port: int = Settings.port,
    image_size: Annotated[tuple[int, ...], arg(metavar="PIXELS | HEIGHT WIDTH")] = (),
    device: str = "auto",
    precision: Literal["fp32", "bf16", "auto"] = "fp32",
    max_batch: int = Settings.max_batch,
    max_wait_ms: float = Settings.max_wait_ms,
    queue: int = Settings.queue,
    max_body_mb: float = Settings.max_body_mb,
    max_pixels: int = Settings.max_pixels,
    timeout: float = Settings.timeout,
    api_key_file: Path | None = None,
    open: bool = False,
) -> None:
    """A web page to explore a model with, and an HTTP API to use it by.

    Example: vitreous serve runs/first/best --open

    Args:
        checkpoints: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name;
            several are served side by side.
        host: The address to listen at. Others can reach the server only if this is changed, such as to 0.0.0.0.
        port: The port; 0 takes one that is free.
        image_size: Another size than the checkpoint's; its positions are resampled.
        device: auto, cpu, cuda, mps.
        precision: Of the computation.
        max_batch: Pictures that the model sees at once.
        max_wait_ms: How long a picture waits for others to share a batch with.
        queue: Requests that may wait; the next is told to come back (429).
        max_body_mb: Megabytes of a request.
        max_pixels: Pixels of a picture, by its header, before it is decoded.
        timeout: Seconds of a request; explanations may take ten times as long.
        api_key_file: A file with a key that requests must show; or set the variable VITREOUS_API_KEY.
        open: Open the page in a browser.
    """
    if not checkpoints:
        fail("CHECKPOINT", "", "one or more checkpoints")
    key = os.environ.get(KEY_VARIABLE) or None
    if api_key_file is not None:
        key = api_key_file.read_text(encoding="utf-8").strip()
    settings = Settings(
        host=host,
        port=port,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        queue=queue,
        max_body_mb=max_body_mb,
        max_pixels=max_pixels,
        timeout=timeout,
        api_key=key,
    )
    try:
        from vitreous.serving.server import serve_checkpoints
    except ModuleNotFoundError as error:
        raise ValueError(f"serving needs {error.name}: pip install 'vitreous[serve]'") from error
    serve_checkpoints(checkpoints, settings, image_size, device, precision, open)
