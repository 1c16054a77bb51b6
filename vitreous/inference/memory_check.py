"""Refuses models that need more memory than this machine has, before they are run."""

import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vitreous.model.config import ResNetConfig, SegmenterConfig
from vitreous.model.kinds import AnyConfig

if TYPE_CHECKING:
    from vitreous.model.cost import Cost

SMALL_PIXELS, SMALL_TOKENS = 2**22, 2**12  # any machine runs these, and the estimate takes a second or two
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of containers; cgroup v2, v1


def check_memory(config: AnyConfig, device: torch.device) -> None:
    """ValueError if a forward pass of one image needs more memory than the device has."""
    if spent := large_cost(config):
        check_bytes(spent.inference_bytes, device, f"{takes(config)} one", "use a smaller image_size")


def check_bytes(needed: int, device: torch.device, subject: str, advice: str) -> None:
    memory = total_memory(device)
    if needed > memory:
        raise ValueError(
            f"{subject} needs about {needed / 1e9:.1f} GB, but this machine has {memory / 1e9:.1f} GB: {advice}"
        )


def takes(config: AnyConfig, name: str = "the model") -> str:
    height, width = config.image_size
    return f"{name} takes images of {width} x {height} pixels:"


def large_cost(config: AnyConfig) -> "Cost | None":
    """The cost of one image; None for models so small that any machine runs them."""
    encoder = config.encoder if isinstance(config, SegmenterConfig) else config
    tokens = 0 if isinstance(encoder, ResNetConfig) else encoder.num_tokens
    if math.prod(config.image_size) <= SMALL_PIXELS and tokens <= SMALL_TOKENS:
        return None
    from vitreous.model.cost import cost  # loads torch's fake tensors

    return cost(config)


def total_memory(device: torch.device) -> int:
    """Bytes of the GPU, or of the machine, or of the container that this process runs in."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    limits = [int(text) for file in LIMITS if (text := _content(Path(file))).isdigit()]  # or "max"
    if hasattr(os, "sysconf"):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(limits, default=sys.maxsize)


def _content(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
