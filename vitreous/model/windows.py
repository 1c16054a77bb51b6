"""Geometry of the shifted windows of a Swin Transformer: cutting a grid of tokens into windows, and back.

b: batch; n = gh x gw: patches; t: tokens in a window; d: width.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.common.checks import Size


class Windows(NamedTuple):
    """Division of a grid of tokens into windows, row by row, after a cyclic shift to the top left."""

    grid: Size
    size: Size
    shift: Size = (0, 0)
    shift_first: bool = False  # True: shift, then pad (timm); False: pad, then shift

    @property
    def padding(self) -> Size:
        """Rows and columns added at the bottom and right, so that windows fill the grid."""
        return (-self.grid[0] % self.size[0], -self.grid[1] % self.size[1])

    @property
    def counts(self) -> Size:
        """Rows and columns of windows."""
        return (-(-self.grid[0] // self.size[0]), -(-self.grid[1] // self.size[1]))

    @property
    def cycle(self) -> Size:
        """Rows and columns of the grid that the shift rotates."""
        (gh, gw), (bottom, right) = self.grid, (0, 0) if self.shift_first else self.padding
        return (gh + bottom, gw + right)

    def token_indices(self) -> Int[Tensor, "windows t"]:
        """Return the index on the grid of each token of each window, or -1 for padding."""
        return token_indices(self, torch.device("cpu"))

    def neighbours(self) -> Int[Tensor, "n t"]:
        """Return, for each token of the grid, the `token_indices` of its window."""
        indices = self.token_indices()
        return join(indices[:, None].expand(-1, indices.shape[1], -1).float(), self)[0].long()


# Functions, not methods of `Windows`: torch.compile cannot trace typechecked methods of objects made in the graph.


def token_indices(windows: Windows, device: torch.device) -> Int[Tensor, "windows t"]:
    numbers = torch.arange(1, 1 + math.prod(windows.grid), device=device)[None, :, None]
    return split(numbers.float(), windows)[..., 0].long() - 1


def split(tokens: Float[Tensor, "b n d"], windows: Windows) -> Float[Tensor, "bw t d"]:
    """Cut the tokens into windows, one image after the other."""
    x = tokens.reshape(tokens.shape[0], *windows.grid, tokens.shape[2])
    shift = (-windows.shift[0], -windows.shift[1])
    x = pad(_roll(x, shift), windows.padding) if windows.shift_first else _roll(pad(x, windows.padding), shift)
    return _cut(x, windows.size)


def join(x: Float[Tensor, "bw t d"], windows: Windows) -> Float[Tensor, "b n d"]:
    """Assemble the tokens from windows: the inverse of `split`."""
    (rows, columns), (gh, gw) = windows.counts, windows.grid
    x = x.reshape(-1, rows, columns, *windows.size, x.shape[-1])
    x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)
    x = _roll(x[:, :gh, :gw], windows.shift) if windows.shift_first else _roll(x, windows.shift)[:, :gh, :gw]
    return x.flatten(1, 2)


def separated_pairs(windows: Windows, device: torch.device) -> Bool[Tensor, "windows t t"] | None:
    """Return which pairs of tokens must not attend to each other: those that only the cyclic shift made neighbours.

    Return None if the windows are not shifted.
    """
    if windows.shift == (0, 0):
        return None
    regions = []
    for count, window, shift in zip(windows.counts, windows.size, windows.shift, strict=True):
        place, side = torch.arange(count * window, device=device), count * window
        regions.append((place >= side - window).long() + (place >= side - shift))
    rows, columns = regions
    region = _cut((3 * rows[:, None] + columns)[None, ..., None], windows.size)[..., 0]
    return region[:, :, None] != region[:, None, :]


def _roll(x: Tensor, shift: Size) -> Tensor:
    return x if shift == (0, 0) else x.roll(shift, dims=(1, 2))


def pad(x: Tensor, padding: Size) -> Tensor:
    return x if padding == (0, 0) else F.pad(x, (0, 0, 0, padding[1], 0, padding[0]))


def _cut(x: Tensor, size: Size) -> Tensor:
    """Cut a grid [b, h, w, d] into windows, which fill it."""
    (b, height, width, d), (wh, ww) = x.shape, size
    return x.reshape(b, height // wh, wh, width // ww, ww, d).transpose(2, 3).reshape(-1, wh * ww, d)


class WindowAttention(NamedTuple):
    """Attention weights of a layer in each window. Rows are queries and sum to 1."""

    weights: Float[Tensor, "b windows heads t t"]
    windows: Windows


class WindowTerms(NamedTuple):
    """Windows of a block, and tensors that all blocks with these windows share."""

    windows: Windows
    offsets: Int[Tensor, "t t"]  # index of each pair of tokens in the table of relative positions
    separated: Tensor | None  # [windows, t, t]: see `separated_pairs`
    indices: Int[Tensor, "windows t"] | None  # `token_indices`, or None if there is padding


def pair_offsets(size: Size, device: torch.device) -> Int[Tensor, "t t"]:
    """Return, for each pair of tokens in a window, the index of its offset in a flat (2h - 1) x (2w - 1) table."""
    (wh, ww), place = size, torch.arange(math.prod(size), device=device)
    y, x = place // ww, place % ww
    return (y[:, None] - y + wh - 1) * (2 * ww - 1) + (x[:, None] - x + ww - 1)
