"""How much memory there is, and how large a batch it holds."""

import math
import os

import torch

from vitreous.inference.memory_check import total_memory
from vitreous.model.config import SegmenterConfig
from vitreous.model.kinds import AnyConfig


def fitting_batch(model: AnyConfig, memory: int) -> int:
    """The largest power of two whose activations take at most half of the memory, up to 4096.

    >>> from vitreous.model.config import ViTConfig
    >>> fitting_batch(ViTConfig(), memory=16 << 30)
    64
    """
    from vitreous.model.cost import cost  # loads torch's fake tensors, which take a moment

    kept = cost(model).activation_bytes
    if isinstance(model, SegmenterConfig):  # the loss keeps the scores of every pixel, and their softmax
        kept += 2 * 4 * model.num_classes * math.prod(model.image_size)
    return 1 << min(max(memory // (2 * kept), 1), 4096).bit_length() - 1


def free_memory(device: str) -> int:
    """Free bytes for this process on the device that the run will use."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(free, total_memory(torch.device("cpu"))) // sharing
