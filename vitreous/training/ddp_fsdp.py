"""DDP and FSDP for runs in several processes. No other file uses DDP or FSDP."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from vitreous.common.distributed import World
from vitreous.model.protocol import Model


def parallelise(module: nn.Module, world: World, kind: Literal["ddp", "fsdp"]) -> nn.Module:
    """Wrap a module in DDP or FSDP."""
    if kind == "ddp":
        devices = [world.device] if world.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=devices)
    mesh = init_device_mesh(world.device.type, (world.size,))  # the default would be CUDA if a GPU is present
    models = [part for part in module.modules() if isinstance(part, Model)]
    for block in (block for model in models for block in model.blocks):  # one unit of communication per block
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)
    return module


@contextmanager
def synchronise(module: nn.Module, now: bool) -> Iterator[None]:
    """Synchronise gradients in this backward pass if `now` is True; otherwise accumulate them."""
    if isinstance(module, DistributedDataParallel) and not now:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)
    yield
