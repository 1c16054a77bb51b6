"""Refuses models that this machine cannot run, before it tries to."""

import math
import os

import torch

from vitreous.infer.outputs import clean
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter
from vitreous.serve.models import Served

# Operations a second that no device of the kind reaches: what needs more than the timeout at this speed never ends.
FASTEST = {"cpu": 10**13}
FASTEST_ACCELERATOR = 10**16
SMALL_PIXELS, SMALL_TOKENS = 2**22, 2**12  # up to these every machine will do, and the estimate takes a second or two


def check_capacity(served: Served, max_batch: int, timeout: float) -> None:
    """ValueError if a batch needs more memory than there is, or one image more time than a request has."""
    if _is_small(served):
        return
    from vitreous.model.cost import cost  # loads torch's fake tensors

    model, device = served.model, next(served.model.parameters()).device
    spent = cost(model.config)
    batch = 1 if isinstance(model, Segmenter) else max_batch  # segmenters compute one image at a time
    needed, memory = batch * spent.inference_bytes, total_memory(device)
    height, width = model.config.image_size
    subject = f"{clean(served.name)} takes images of {width} x {height} pixels:"
    if needed > memory:
        raise ValueError(
            f"{subject} a batch of {batch} needs about {needed / 1e9:.1f} GB, but this machine has "
            f"{memory / 1e9:.1f} GB: use a smaller --image-size or --max-batch"
        )
    if spent.flops > timeout * FASTEST.get(device.type, FASTEST_ACCELERATOR):
        raise ValueError(
            f"{subject} each needs {spent.flops:.1e} operations, which take longer than the timeout of {timeout:g} s: "
            "use a smaller --image-size or a longer --timeout"
        )


def total_memory(device: torch.device) -> int:
    """Bytes of the device, or of the machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _is_small(served: Served) -> bool:
    model = served.model
    encoder = model.encoder if isinstance(model, Segmenter) else model
    tokens = 0 if isinstance(encoder, ResNet) else encoder.config.tokens
    return math.prod(model.config.image_size) <= SMALL_PIXELS and tokens <= SMALL_TOKENS
