"""How a token knows where it stands: seven kinds, each at any grid, its own or another.

A kind overrides the one hook that is its nature: something added to the embedded tokens, something said to every
attention, or something done between two blocks. The encoder knows only the hooks.

b: batch; t = p + n: tokens, prefix and patches; d: width; gh, gw: grid height and width.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import Size
from vitreous.model.attention import AttentionTerms
from vitreous.model.init import lecun_normal_, small_
from vitreous.model.options import Interpolation
from vitreous.model.tokens import Layout


class PositionEmbedding(nn.Module):
    """The hooks of a position embedding, none of them used: without position, an image is a bag of patches.

    A model calls the module itself, once and before the other hooks, so that torch's own forward hooks run: pruning and
    weight normalisation recompute a tensor in them.
    """

    def forward(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        return self.embed(tokens, layout)

    def embed(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        """Add to the embedded tokens, which are those of all patches or of the `keep_indices` ones of `layout`."""
        return tokens

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        """Called once per image; every layer's attention gets the answer."""
        return AttentionTerms()

    def between(self, layer: int, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        """Called after every block."""
        return tokens

    def resize(self, grid: Size) -> None:
        """Make `grid` the kind's own. What works by nature at any grid has nothing to do."""


# ---- Added to the embedded tokens ------------------------------------------------------------------------------------


class AddedPosition(PositionEmbedding, ABC):
    """A vector for every place, added to the token that stands there: E_pos of equation 1.

    The first `entries` prefix tokens have a learned vector of their own. Learned positions decide together with the
    tokens which dtype their sum has; `fixed` ones take the dtype of the tokens.
    """

    fixed = False

    def __init__(self, width: int, entries: int):
        super().__init__()
        self.prefix = nn.Parameter(small_(torch.empty(entries, width))) if entries else None

    @abstractmethod
    def table_at(self, grid: Size, device: torch.device) -> Float[Tensor, "gh gw d"]:
        """The patches' vectors on a grid."""

    def embed(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        table = self.table_at(layout.grid, tokens.device).flatten(0, 1)
        own = table[:0] if self.prefix is None else self.prefix
        none = table.new_zeros(layout.num_prefix_tokens - own.shape[0], table.shape[1])
        position = torch.cat([own, none, table])
        if layout.keep_indices is not None:
            whole = torch.arange(layout.num_prefix_tokens, device=tokens.device).expand(tokens.shape[0], -1)
            position = position[torch.cat([whole, layout.keep_indices + layout.num_prefix_tokens], dim=1)]
        return tokens + (position.to(tokens.dtype) if self.fixed else position)


class Learned1dPosition(AddedPosition):
    """A learned vector per patch. The paper counts places in one dimension; we keep them on their grid."""

    def __init__(self, width: int, grid: Size, entries: int, interpolation: Interpolation):
        super().__init__(width, entries)
        self.interpolation = interpolation
        self.table = nn.Parameter(small_(torch.empty(*grid, width)))

    def table_at(self, grid: Size, device: torch.device) -> Float[Tensor, "gh gw d"]:
        return resample(self.table, grid, self.interpolation)

    def resize(self, grid: Size) -> None:
        self.table = _replaced(self.table, resample(self.table.detach(), grid, self.interpolation))


class Learned2dPosition(AddedPosition):
    """A learned vector per column and per row, side by side."""

    def __init__(self, width: int, grid: Size, entries: int, interpolation: Interpolation):
        super().__init__(width, entries)
        self.interpolation = interpolation
        self.columns = nn.Parameter(small_(torch.empty(grid[1], width // 2)))
        self.rows = nn.Parameter(small_(torch.empty(grid[0], width // 2)))

    def table_at(self, grid: Size, device: torch.device) -> Float[Tensor, "gh gw d"]:
        columns = resample_line(self.columns, grid[1], self.interpolation)
        rows = resample_line(self.rows, grid[0], self.interpolation)
        return torch.cat([columns[None].expand(grid[0], -1, -1), rows[:, None].expand(-1, grid[1], -1)], dim=-1)

    def resize(self, grid: Size) -> None:
        self.columns = _replaced(self.columns, resample_line(self.columns.detach(), grid[1], self.interpolation))
        self.rows = _replaced(self.rows, resample_line(self.rows.detach(), grid[0], self.interpolation))


class SinCos2dPosition(AddedPosition):
    """[sin x, cos x, sin y, cos y] at geometrically spaced frequencies; nothing to learn, nothing to resample."""

    fixed = True

    def __init__(self, width: int, convention: Literal["mae", "big_vision"], temperature: float):
        super().__init__(width, entries=0)
        self.width, self.temperature = width, temperature
        self.steps = width // 4 if convention == "mae" else width // 4 - 1

    def table_at(self, grid: Size, device: torch.device) -> Float[Tensor, "gh gw d"]:
        steps = torch.arange(self.width // 4, device=device, dtype=torch.float32)
        frequencies = self.temperature ** (-steps / self.steps)
        x = (torch.arange(grid[1], device=device)[:, None] * frequencies).expand(grid[0], -1, -1)
        y = (torch.arange(grid[0], device=device)[:, None, None] * frequencies).expand(-1, grid[1], -1)
        return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=-1)


# ---- Said to every attention -----------------------------------------------------------------------------------------


class Rotary2dPosition(PositionEmbedding):
    """Angles for queries and keys: half of the channel pairs of every head turn with y, half with x.

    The picture's edges are at -1 and 1 whatever its size, so that another size is the same picture, finer (DINOv3).
    """

    def __init__(self, head_dim: int, base: float):
        super().__init__()
        self.frequencies, self.base = head_dim // 4, base

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        (gh, gw), steps = layout.grid, torch.arange(self.frequencies, device=device, dtype=torch.float32)
        turns = 2 * math.pi * self.base ** (-steps / self.frequencies)
        y, x = (2 * (torch.arange(side, device=device) + 0.5) / side - 1 for side in (gh, gw))
        rows = (y[:, None, None] * turns).expand(-1, gw, -1)
        columns = (x[None, :, None] * turns).expand(gh, -1, -1)
        angles = torch.cat([rows, columns], dim=-1).flatten(0, 1)
        if layout.keep_indices is not None:
            angles = angles[layout.keep_indices][:, None]  # one axis more, for the heads
        angles = F.pad(angles, (0, 0, layout.num_prefix_tokens, 0))  # the prefix stands nowhere: angle 0
        return AttentionTerms(rotation=(angles.cos(), angles.sin()))


class RelativeBiasPosition(PositionEmbedding):
    """A learned number per head for every difference (dy, dx), and three for pairs in which the prefix takes part."""

    def __init__(self, num_heads: int, grid: Size, interpolation: Interpolation):
        super().__init__()
        self.interpolation = interpolation
        self.table = nn.Parameter(small_(torch.empty(2 * grid[0] - 1, 2 * grid[1] - 1, num_heads)))
        self.prefix = nn.Parameter(torch.zeros(3, num_heads))  # patch to prefix, prefix to patch, prefix to prefix

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        gh, gw = layout.grid
        table = resample(self.table, (2 * gh - 1, 2 * gw - 1), self.interpolation).flatten(0, 1)
        place = torch.arange(gh * gw, device=device) if layout.keep_indices is None else layout.keep_indices
        y, x = place // gw, place % gw
        dy, dx = y[..., :, None] - y[..., None, :] + gh - 1, x[..., :, None] - x[..., None, :] + gw - 1
        index = dy * (2 * gw - 1) + dx
        p, patch_to_prefix = layout.num_prefix_tokens, table.shape[0]
        index = F.pad(index, (p, 0), value=patch_to_prefix)
        index = F.pad(index, (0, 0, p, 0), value=patch_to_prefix + 1)
        index[..., :p, :p] = patch_to_prefix + 2
        return AttentionTerms(bias=torch.cat([table, self.prefix])[index].movedim(-1, -3))

    def resize(self, grid: Size) -> None:
        size = (2 * grid[0] - 1, 2 * grid[1] - 1)
        self.table = _replaced(self.table, resample(self.table.detach(), size, self.interpolation))


# ---- Done between two blocks -----------------------------------------------------------------------------------------


class ConditionalPosition(PositionEmbedding):
    """CPVT's position encoding generator: after the first blocks, each patch hears from its neighbours."""

    def __init__(self, width: int, kernel_size: int, blocks: int = 1):
        super().__init__()
        self.convolutions = nn.ModuleList(
            lecun_normal_(nn.Conv2d(width, width, kernel_size, padding=kernel_size // 2, groups=width))
            for _ in range(blocks)
        )
        for convolution in self.convolutions.parameters():  # so that many add up to no more than one
            convolution.data /= math.sqrt(blocks)

    def between(self, layer: int, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        if layer >= len(self.convolutions):
            return tokens
        (gh, gw), p = layout.grid, layout.num_prefix_tokens
        b, _, d = tokens.shape
        patches = tokens[:, p:]
        if layout.keep_indices is None:
            heard = self._convolve(layer, patches, layout.grid)
        else:  # patches that are left out are silent: zeros
            index = layout.keep_indices[..., None].expand(-1, -1, d)
            whole = patches.new_zeros(b, gh * gw, d).scatter(1, index, patches)
            heard = self._convolve(layer, whole, layout.grid).gather(1, index)
        return torch.cat([tokens[:, :p], patches + heard], dim=1)

    def _convolve(self, layer: int, patches: Float[Tensor, "b n d"], grid: Size) -> Float[Tensor, "b n d"]:
        b, _, d = patches.shape
        picture = patches.transpose(1, 2).reshape(b, d, *grid)
        return self.convolutions[layer](picture).flatten(2).transpose(1, 2)


def _replaced(old: nn.Parameter, new: Tensor) -> nn.Parameter:
    """A contiguous parameter with new values, frozen if the old one was."""
    return nn.Parameter(new.clone(memory_format=torch.contiguous_format), requires_grad=old.requires_grad)


# ---- Tables for another grid -----------------------------------------------------------------------------------------


class _Way(NamedTuple):
    mode: str
    align_corners: bool = False
    antialias: bool = False
    scale_offset: float = 0.0


WAYS: dict[Interpolation, _Way] = {
    "google": _Way("bilinear", align_corners=True),  # scipy.ndimage.zoom(order=1), also big_vision's
    "timm": _Way("bicubic", antialias=True),
    "huggingface": _Way("bicubic"),  # also MAE's and DeiT's
    "torchvision": _Way("bicubic", align_corners=True),
    "dinov2": _Way("bicubic", scale_offset=0.1),  # kept by DINOv2 for the sake of its released weights
    "dinov2-registers": _Way("bicubic", antialias=True),
}


def resample(table: Float[Tensor, "gh gw d"], grid: Size, interpolation: Interpolation) -> Float[Tensor, "h w d"]:
    """`table` at another grid.

    >>> resample(torch.zeros(14, 14, 768), (16, 20), "timm").shape
    torch.Size([16, 20, 768])
    """
    gh, gw, _ = table.shape
    if (gh, gw) == grid:
        return table
    way = WAYS[interpolation]
    picture = table.to(torch.promote_types(table.dtype, torch.float32)).permute(2, 0, 1)[None]
    if way.scale_offset:
        # The scale, not the size, decides where the samples are taken: (h + 0.1) / gh instead of h / gh.
        scale = ((grid[0] + way.scale_offset) / gh, (grid[1] + way.scale_offset) / gw)
        picture = F.interpolate(picture, scale_factor=scale, mode=way.mode)
    elif way.align_corners:
        picture = F.interpolate(picture, size=grid, mode=way.mode, align_corners=True)
    else:
        picture = F.interpolate(picture, size=grid, mode=way.mode, antialias=way.antialias)
    return picture[0].permute(1, 2, 0).to(table.dtype)


def resample_line(table: Float[Tensor, "g d"], length: int, interpolation: Interpolation) -> Float[Tensor, "n d"]:
    """A row's or a column's vectors at another length."""
    return resample(table[:, None], (length, 1), interpolation)[:, 0]
