"""Processes of a distributed run: rank, device and collective operations.

`torchrun --nproc-per-node N -m vitreous train ...` sets the environment variables that are read here.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vitreous.common.device import choose_device

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Rank and device of this process, and the number of processes."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """True in the process that writes files and prints messages."""
        return self.rank == 0

    @property
    def many(self) -> bool:
        return self.size > 1

    def sum(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.many:
            dist.all_reduce(tensor)
        return tensor

    def max(self, number: int) -> int:
        """Return the maximum of `number` over all processes. All processes must call this."""
        if not self.many:
            return number
        numbers = torch.tensor(number, device=self.device)
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return int(numbers.item())

    def gather(self, value: Any) -> list[Any]:
        """Return the list of every process's `value`, ordered by rank. All processes must call this."""
        if not self.many:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def first_only(self, function: Callable[[], T]) -> T:
        """Call a function in the first process only. All processes return its result or raise its error."""
        outcome: Any = None
        if self.first:
            try:
                outcome = (function(), None)
            except (ValueError, OSError) as error:
                outcome = (None, error)
        result, problem = self.gather(outcome)[0]
        if problem is not None:
            raise problem
        return result

    def wait(self) -> None:
        if self.many:
            dist.barrier()


@contextmanager
def world(device: str) -> Iterator[World]:
    """Yield the World of this process. Under torchrun, join the process group on entry and leave the group on exit.

    Inside another `world`, use its process group.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    local = int(os.environ.get("LOCAL_RANK", 0))
    chosen = pick_device(device, local)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)  # memory queries also use the current device
    if size == 1:
        yield World(0, 1, chosen)
        return
    if dist.is_initialized():
        yield World(rank, size, chosen)
        return
    _check_restarts()
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        yield World(rank, size, chosen)
    finally:
        dist.destroy_process_group()


def _check_restarts() -> None:
    """Raise ValueError if torchrun would restart these processes with the addresses of the previous ones.

    By default, torchrun keeps one key-value store for all restarts, in which restarted processes find the old
    addresses: https://github.com/pytorch/pytorch/issues/135712.
    """
    restarts, shared = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"), os.environ.get("TORCHELASTIC_USE_AGENT_STORE")
    if restarts != "0" and shared == "True":
        raise ValueError(
            f"torchrun --max-restarts {restarts} needs the environment variable TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 "
            "and --standalone or --rdzv-backend c10d; restarted processes could not connect otherwise"
        )


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device called `name`. If there are GPUs, "auto" and "cuda" mean the GPU with index `local_rank`."""
    return choose_device(f"cuda:{local_rank}" if name in ("auto", "cuda") and torch.cuda.is_available() else name)
