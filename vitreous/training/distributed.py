"""Distributed training: process group, DDP and FSDP. No other file uses DDP or FSDP.

`torchrun --nproc-per-node N -m vitreous train ...` sets the environment variables that are read here.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from vitreous.common.device import choose_device
from vitreous.common.world import World
from vitreous.model.protocol import Model


@contextmanager
def world(device: str) -> Iterator[World]:
    """Join the process group if this process was started by torchrun, and leave it on exit."""
    size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    local = int(os.environ.get("LOCAL_RANK", 0))
    chosen = pick_device(device, local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # also for memory queries
    if size == 1:
        yield World(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield World(rank, size, chosen)
    finally:
        dist.destroy_process_group()


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the torch device with this name; each process on a machine gets its own GPU."""
    return choose_device(f"cuda:{local_rank}" if name in ("auto", "cuda") and torch.cuda.is_available() else name)


def parallelise(module: nn.Module, world: World, kind: Literal["ddp", "fsdp"]) -> nn.Module:
    """Wrap a module in DDP or FSDP if there are several processes."""
    if not world.many:
        return module
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
