"""Rank and device of a process in a distributed run, and collective operations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True)
class World:
    """Rank and device of this process, and the number of processes."""

    rank: int
    size: int
    device: torch.device

    @property
    def first(self) -> bool:
        """True in the process that writes files and prints."""
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
        """Return the maximum over all processes. All processes must call this."""
        if not self.many:
            return number
        numbers = torch.tensor(number, device=self.device)
        dist.all_reduce(numbers, dist.ReduceOp.MAX)
        return int(numbers.item())

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, ordered by rank. All processes must call this."""
        if not self.many:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def first_only(self, function: Callable[[], T]) -> T:
        """Call a function in the first process, and return its result or raise its error in all processes."""
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
