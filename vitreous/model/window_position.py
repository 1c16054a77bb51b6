"""Relative positions in the windows of a Swin Transformer: a bias for each offset (dy, dx) of two tokens.

A table of h x w windows has (2h - 1) x (2w - 1) rows; `windows.pair_offsets` has the row of each pair of tokens.
"""

import itertools

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import Size
from vitreous.model.attention import AttentionTerms
from vitreous.model.init import small_
from vitreous.model.position import PositionEmbedding, resample
from vitreous.model.swin_config import WindowRule
from vitreous.model.tokens import Layout
from vitreous.model.windows import pair_offsets


class BiasTable(nn.Module):
    """Swin V1: one learned bias per head for each offset (dy, dx) in a window."""

    def __init__(self, num_heads: int, window: Size, rule: WindowRule):
        super().__init__()
        self.rule = rule
        self.table = nn.Parameter(small_(torch.empty(2 * window[0] - 1, 2 * window[1] - 1, num_heads)))

    def forward(self, window: Size) -> Float[Tensor, "offsets heads"]:
        return self._at(self.table, window).flatten(0, 1)

    def resize(self, window: Size, pretrained_window: int = 0) -> None:
        table = self._at(self.table.detach(), window).clone(memory_format=torch.contiguous_format)
        self.table = nn.Parameter(table, requires_grad=self.table.requires_grad)

    def _at(self, table: Tensor, window: Size) -> Tensor:
        sides = (2 * window[0] - 1, 2 * window[1] - 1)
        return resample_offsets(table, sides) if self.rule == "timm" else resample(table, sides, "huggingface")


def resample_offsets(table: Float[Tensor, "h w heads"], sides: Size) -> Float[Tensor, "y x heads"]:
    """Resample a table of offsets as timm and BEiT do: linearly, with entries that are sparser far from the centre.

    For larger windows, the distances between entries grow geometrically, so that the last ones are at the new edges.
    For smaller windows, they are about 1, so that the table is cropped.
    """
    if table.shape[:2] == sides:
        return table
    rows, columns = (_offset_weights(old, new, table) for old, new in zip(table.shape[:2], sides, strict=True))
    return torch.einsum("yh,xw,hwk->yxk", rows, columns, table.float()).to(table.dtype)


def _offset_weights(old: int, new: int, table: Tensor) -> Float[Tensor, "new old"]:
    """Return the weight of each entry of an axis at each new offset."""
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        reach = (1 - ratio ** (old // 2)) / (1 - ratio)  # 1 + ratio + ratio^2 + ...: the offset of the last entry
        low, high = (low, ratio) if reach > new // 2 else (ratio, high)
    reaches = [0.0, *itertools.accumulate(ratio**i for i in range(old // 2))]
    places = torch.tensor([-reach for reach in reaches[:0:-1]] + reaches, device="cpu")
    offsets = torch.arange(new, device="cpu") - float(new // 2)
    right = torch.bucketize(offsets, places).clamp(max=old - 1)
    left = (right - 1).clamp(min=0)
    fraction = ((offsets - places[left]) / (places[right] - places[left]).clamp(min=1e-6)).clamp(0, 1)
    weights = torch.zeros(new, old, device="cpu").scatter_add(1, left[:, None], 1 - fraction[:, None])
    return weights.scatter_add(1, right[:, None], fraction[:, None]).to(table.device)


class BiasMlp(nn.Module):
    """Swin V2: a bias per head, computed by an MLP from the logarithm of the offset (equations 3 and 4)."""

    def __init__(self, num_heads: int, pretrained_window: int = 0, hidden: int = 512):
        super().__init__()
        self.pretrained_window = pretrained_window
        self.up, self.down = nn.Linear(2, hidden), nn.Linear(hidden, num_heads, bias=False)

    def forward(self, window: Size) -> Float[Tensor, "offsets heads"]:
        weight = self.up.weight
        offsets = log_offsets(window, self.pretrained_window, weight.device).flatten(0, 1)
        return 16 * self.down(self.up(offsets.to(weight.dtype)).relu()).sigmoid()

    def resize(self, window: Size, pretrained_window: int = 0) -> None:
        self.pretrained_window = pretrained_window


def log_offsets(window: Size, pretrained_window: int, device: torch.device) -> Float[Tensor, "dy dx 2"]:
    """Return the log-spaced offsets (dy, dx) in a window. `pretrained_window` is the side of their unit, or 0."""
    sides = []
    for side in window:
        offsets = torch.arange(1 - side, side, device=device, dtype=torch.float32)
        offsets = 8 * offsets / max((pretrained_window or side) - 1, 1)
        sides.append(offsets.sign() * (offsets.abs() + 1).log2() / 3)
    return torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1)


class WindowPosition(PositionEmbedding):
    """Bias in a window, as the position of a model without other windows."""

    def __init__(self, position: BiasTable | BiasMlp):
        super().__init__()
        self.position = position

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        return AttentionTerms(bias=self.position(layout.grid)[pair_offsets(layout.grid, device)].permute(2, 0, 1))
