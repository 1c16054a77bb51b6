"""The verb `vitreous serve`. torch is imported inside, so that `--help` answers at once."""

import os
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

import vitreous
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
    """Serve models over HTTP: a web page to explore them, and an API for programs.

    Example: vitreous serve runs/first/best --open

    Args:
        checkpoints: A folder with a model, such as runs/first/best, another system's file, or hf-hub:owner/name;
            several are served side by side.
        host: Address to listen at. To be reachable from other machines, change it, e.g. to 0.0.0.0.
        port: Port to listen at; 0 chooses a free one.
        image_size: Another size than the checkpoint's; positions are resampled.
        device: auto, cpu, cuda or mps.
        precision: Precision of the computation.
        max_batch: Images per batch.
        max_wait_ms: Longest time that an image waits for others to share a batch with.
        queue: Requests that may wait; the next is answered with 429.
        max_body_mb: Largest request in megabytes.
        max_pixels: Largest image by its header, before it is decoded.
        timeout: Seconds per request; explanations may take ten times as long.
        api_key_file: File with a key that requests must send; or set the variable VITREOUS_API_KEY.
        open: Open the page in a browser.
    """
    if not checkpoints:
        fail("CHECKPOINT", "", "one or more checkpoints")
    api_key = os.environ.get(KEY_VARIABLE) or None
    if api_key_file is not None:
        api_key = api_key_file.read_text(encoding="utf-8").strip()
    vitreous.serve(
        checkpoints, host=host, port=port, image_size=image_size, device=device, precision=precision,
        max_batch=max_batch, max_wait_ms=max_wait_ms, queue=queue, max_body_mb=max_body_mb, max_pixels=max_pixels,
        timeout=timeout, api_key=api_key, open=open,
    )  # fmt: skip
