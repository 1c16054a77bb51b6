"""Random numbers that are pure functions of (seed, epoch, index), the same in every process and batch.

No generator has a state to save: a resumed run, on other workers or other processes, sees the same crops, flips and
mixes. The numbers come from hashing a counter (the finaliser of SplitMix64), as tensors on any device.

b: batch.
"""

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


def mix(x: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """SplitMix64's finaliser: every bit of the result depends on every bit of x."""
    x = (x ^ _shift(x, 30)) * _MIX1
    x = (x ^ _shift(x, 27)) * _MIX2
    return x ^ _shift(x, 31)


class SampleRng:
    """The random numbers of some samples in one epoch, an independent stream for each purpose.

    >>> rng = SampleRng(seed=0, epoch=3, indices=torch.tensor([7, 8]))
    >>> alone = SampleRng(seed=0, epoch=3, indices=torch.tensor([8]))
    >>> bool(rng.uniform("flip")[1] == alone.uniform("flip")[0])
    True
    """

    def __init__(self, seed: int, epoch: int, indices: Int[Tensor, "b"]):
        key = mix(torch.tensor(seed, device=indices.device) + _GOLDEN)
        self.keys = mix(mix(key + epoch) + indices)

    def to(self, device: torch.device) -> "SampleRng":
        """Draw the same numbers on another device: keys are smaller to copy than many numbers.

        Copying more than a few kilobytes to a GPU waits for its queue.
        """
        moved = copy.copy(self)
        moved.keys = self.keys.to(device, non_blocking=True)
        return moved

    def uniform(self, purpose: str, count: int | None = None) -> Float[Tensor, "b *count"]:
        """Numbers in [0, 1): one for each sample, or `count`."""
        keys = mix(self.keys ^ zlib.crc32(purpose.encode()))
        if count is not None:
            keys = mix(keys[:, None] + _GOLDEN * torch.arange(1, count + 1, device=keys.device))
        return _shift(mix(keys), 40).float() / 2**24  # as many bits as float32 holds exactly
