"""Stateless random numbers: a hashed counter (the finaliser of SplitMix64), as tensors on any device."""

import copy
import zlib

import torch
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15, as a signed 64-bit number
_MIX1, _MIX2 = -4658895280553007687, -7723592293110705685


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right logically: torch's own shift carries the sign along."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def hash_bits(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """SplitMix64's finaliser: every bit of the result depends on every bit of x."""
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


class SampleRng:
    """The random numbers of some samples in one epoch, an independent stream for each purpose.

    They are pure functions of (seed, epoch, index), the same in every process and batch: no generator has a state to
    save, and a resumed run on other workers sees the same crops, flips and mixes.
    """

    def __init__(self, seed: int, epoch: int, indices: Int[Tensor, "b"]):
        key = hash_bits(torch.tensor(seed, device=indices.device) + _GOLDEN)
        self.keys = hash_bits(hash_bits(key + epoch) + indices)

    def to(self, device: torch.device) -> "SampleRng":
        """Draw the same numbers on another device: keys are smaller to copy than many numbers.

        Copying more than a few kilobytes to a GPU waits for its queue.
        """
        moved = copy.copy(self)
        moved.keys = self.keys.to(device, non_blocking=True)
        return moved

    def uniform(self, purpose: str, count: int | None = None) -> Float[Tensor, "b *count"]:
        """Numbers in [0, 1): one for each sample, or `count`."""
        keys = hash_bits(self.keys ^ zlib.crc32(purpose.encode()))
        if count is not None:
            keys = hash_bits(keys[:, None] + _GOLDEN * torch.arange(1, count + 1, device=keys.device))
        return _shift(hash_bits(keys), 40).float() / 2**24  # as many bits as float32 holds exactly
