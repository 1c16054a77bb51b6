"""Stateless random numbers as tensors on any device, from a counter hashed with SplitMix64's finaliser."""

import copy
import zlib

import torch
from jaxtyping import Float, Int
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed 64-bit integer
_MIX1, _MIX2 = -4658895280553007687, -7723592293110705685


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right logically. The `>>` of torch is an arithmetic shift."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def hash_bits(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """Hash 64-bit integers with SplitMix64's finaliser, which mixes all bits."""
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


class SampleRng:
    """Random numbers for a batch of samples in one epoch, with an independent stream for each purpose.

    The numbers are pure functions of (seed, epoch, index, purpose), and are the same in every process and batch. There
    is no generator state to save, and a resumed run uses the same numbers with any number of workers.
    """

    def __init__(self, seed: int, epoch: int, indices: Int[Tensor, "b"]):
        self.seed, self.epoch, self.indices = seed, epoch, indices
        key = hash_bits(torch.tensor(seed, device=indices.device) + _GOLDEN)
        self.keys = hash_bits(hash_bits(key + epoch) + indices)

    def in_epoch(self, epoch: int) -> "SampleRng":
        """Return the random numbers of the same samples in another epoch."""
        return SampleRng(self.seed, epoch, self.indices).to(self.keys.device)

    def to(self, device: torch.device) -> "SampleRng":
        """Return a copy that draws the same numbers on another device.

        Only the keys are copied. Copying more data to a GPU would block until the GPU has finished its queued work.
        """
        moved = copy.copy(self)
        moved.keys = self.keys.to(device, non_blocking=True)
        return moved

    def uniform(self, purpose: str, count: int | None = None) -> Float[Tensor, "b *count"]:
        """Draw one number in [0, 1) per sample or, if `count` is given, `count` numbers per sample."""
        keys = hash_bits(self.keys ^ zlib.crc32(purpose.encode()))
        if count is not None:
            keys = hash_bits(keys[:, None] + _GOLDEN * torch.arange(1, count + 1, device=keys.device))
        return _shift(hash_bits(keys), 40).float() / 2**24  # 24 bits, which float32 represents exactly
