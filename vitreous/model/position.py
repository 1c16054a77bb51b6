"""Position embeddings for patch grids of any size.

Each class overrides one hook: `embed` adds vectors to the tokens, `attend` changes the attention of all layers, and
`between` changes the tokens after a block.

b: batch; t = p + n: prefix and patch tokens; d: width; gh, gw: grid height and width.
"""

import math
from abc import ABC, abstractmethod
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.common.checks import Size
from vitreous.common.compiler import is_exporting
from vitreous.model.attention import AttentionTerms
from vitreous.model.init import lecun_normal_, small_
from vitreous.model.options import Interpolation
from vitreous.model.tokens import Layout


class PositionEmbedding(nn.Module):
    """Base class, which adds no position information.

    Models call `forward` once before the methods below. This triggers torch's forward hooks, in which pruning and
    weight normalisation recompute tensors.
    """

    @property
    def added(self) -> "AddedPosition | None":
        """The position that is added to the tokens, or None."""
        return None

    def forward(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        return self.embed(tokens, layout)

    def embed(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        """Add position embeddings to the tokens, which belong to all patches or only to `layout.keep_indices`."""
        return tokens

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        """Return the rotation or bias for the attention of all layers. It is computed once per batch."""
        return AttentionTerms()

    def between(self, layer: int, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        """Modify the tokens after block `layer`."""
        return tokens

    def resize(self, grid: Size) -> None:
        """Resample learned tables for another grid."""


# ---- Added to the token embeddings -----------------------------------------------------------------------------------


class AddedPosition(PositionEmbedding, ABC):
    """One vector per patch, added to its token: E_pos of equation 1.

    The first `entries` prefix tokens also have learned vectors. `fixed` positions are cast to the dtype of the tokens;
    learned positions follow torch's type promotion.
    """

    fixed = False

    def __init__(self, width: int, entries: int):
        super().__init__()
        self.prefix = nn.Parameter(small_(torch.empty(entries, width))) if entries else None

    @property
    def added(self) -> "AddedPosition":
        return self

    @abstractmethod
    def table_at(self, grid: Size, device: torch.device) -> Float[Tensor, "gh gw d"]:
        """Return the position vector of each patch in a grid."""

    def embed(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        table = self.table_at(layout.grid, tokens.device).flatten(0, 1)
        own = table[:0] if self.prefix is None else self.prefix
        none = table.new_zeros(layout.num_prefix_tokens - own.shape[0], table.shape[1])
        position = torch.cat([own, none, table])
        if layout.keep_indices is not None:
            prefix = torch.arange(layout.num_prefix_tokens, device=tokens.device).expand(tokens.shape[0], -1)
            position = position[torch.cat([prefix, layout.keep_indices + layout.num_prefix_tokens], dim=1)]
        return tokens + (position.to(tokens.dtype) if self.fixed else position)


class Learned1dPosition(AddedPosition):
    """One learned vector per patch, stored as a grid."""

    def __init__(self, width: int, grid: Size, entries: int, interpolation: Interpolation):
        super().__init__(width, entries)
        self.interpolation = interpolation
        self.table = nn.Parameter(small_(torch.empty(*grid, width)))

    def table_at(self, grid: Size, device: torch.device) -> Float[Tensor, "gh gw d"]:
        return resample(self.table, grid, self.interpolation)

    def resize(self, grid: Size) -> None:
        self.table = _replaced(self.table, resample(self.table.detach(), grid, self.interpolation))


class Learned2dPosition(AddedPosition):
    """One learned vector per column and one per row, concatenated for each patch."""

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
    """Fixed vectors [sin x, cos x, sin y, cos y] at geometrically spaced frequencies."""

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


# ---- In the attention of all layers ----------------------------------------------------------------------------------


class RotaryPosition(PositionEmbedding, ABC):
    """Rotates queries and keys of patches. `learned` positions, if any, are also added to the tokens."""

    per_layer = False  # the angles of the layers differ

    def __init__(self, learned: Learned1dPosition | None):
        super().__init__()
        self.learned = learned

    @abstractmethod
    def angles(self, grid: Size, device: torch.device) -> Float[Tensor, "... n f"]:
        """Return the angle of each pair of channels of each patch, [n, f], or [layers, heads, n, f] if `per_layer`."""

    @property
    def added(self) -> AddedPosition | None:
        return self.learned

    def embed(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        return tokens if self.learned is None else self.learned(tokens, layout)

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        angles = self.angles(layout.grid, device)
        if layout.keep_indices is not None:  # [..., b, heads or 1, k, f]
            angles = (angles if self.per_layer else angles[None])[..., layout.keep_indices, :].movedim(-3, -4)
        angles = F.pad(angles, (0, 0, layout.num_prefix_tokens, 0))  # prefix tokens are not rotated
        return AttentionTerms(rotation=(angles.cos(), angles.sin()), per_layer=self.per_layer)

    def resize(self, grid: Size) -> None:
        if self.learned is not None:
            self.learned.resize(grid)


class Rotary2dPosition(RotaryPosition):
    """Fixed angles. In each head, y is the angle of half of the channel pairs and x that of the others.

    The arguments are explained in `options.Rotary2d`.
    """

    def __init__(
        self,
        head_dim: int,
        base: float,
        coordinates: Literal["edges", "index"] = "edges",
        reference_grid: Size | None = None,
        period_dtype: Literal["float32", "bfloat16"] = "float32",
        learned: Learned1dPosition | None = None,
    ):
        super().__init__(learned)
        self.frequencies, self.base, self.rounded = head_dim // 4, base, period_dtype == "bfloat16"
        self.coordinates, self.reference_grid = coordinates, reference_grid

    def angles(self, grid: Size, device: torch.device) -> Float[Tensor, "n f"]:
        gh, gw = grid
        steps = torch.arange(self.frequencies, device=device, dtype=torch.float32)
        frequencies = self.base ** (-steps / self.frequencies)
        if self.rounded:
            frequencies = 1 / (self.base ** (steps / self.frequencies)).bfloat16().float()
        if self.coordinates == "edges":
            frequencies = 2 * math.pi * frequencies
            y, x = (2 * (torch.arange(side, device=device) + 0.5) / side - 1 for side in grid)
        else:
            y, x = (torch.arange(side, device=device, dtype=torch.float32) for side in grid)
        if self.reference_grid is not None:
            y, x = y / gh * self.reference_grid[0], x / gw * self.reference_grid[1]
        rows = (y[:, None, None] * frequencies).expand(-1, gw, -1)
        columns = (x[None, :, None] * frequencies).expand(gh, -1, -1)
        return torch.cat([rows, columns], dim=-1).flatten(0, 1)


class MixedRotary2dPosition(RotaryPosition):
    """Learned frequencies of x and y for each layer, head and pair of channels."""

    per_layer = True

    def __init__(self, depth: int, num_heads: int, head_dim: int, base: float, learned: Learned1dPosition | None):
        super().__init__(learned)
        # At first, the channel pairs of a head measure two perpendicular directions, which are random.
        length = base ** (-torch.arange(head_dim // 4) / (head_dim // 4))
        direction = 2 * math.pi * torch.rand(depth, num_heads, 1)
        directions = torch.cat([direction.expand(-1, -1, head_dim // 4) + turn for turn in (0, math.pi / 2)], dim=-1)
        self.frequencies = nn.Parameter(torch.stack([directions.cos(), directions.sin()]) * length.repeat(2))

    def angles(self, grid: Size, device: torch.device) -> Float[Tensor, "layers heads n f"]:
        for_x, for_y = self.frequencies.to(torch.promote_types(self.frequencies.dtype, torch.float32))[
            ..., None, None, :
        ]
        y, x = (torch.arange(side, device=device, dtype=torch.float32)[:, None] for side in grid)
        return (x * for_x + y[:, None] * for_y).flatten(-3, -2)


class RelativeBiasPosition(PositionEmbedding):
    """Learned bias per head for each offset (dy, dx), plus three biases per head for pairs with prefix tokens."""

    def __init__(self, num_heads: int, grid: Size, interpolation: Interpolation):
        super().__init__()
        self.interpolation = interpolation
        self.table = nn.Parameter(small_(torch.empty(2 * grid[0] - 1, 2 * grid[1] - 1, num_heads)))
        self.prefix = nn.Parameter(torch.zeros(3, num_heads))  # patch to prefix, prefix to patch, prefix to prefix

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        gh, gw = layout.grid
        table = resample(self.table, (2 * gh - 1, 2 * gw - 1), self.interpolation).flatten(0, 1)
        place = torch.arange(gh * gw, device=device) if layout.keep_indices is None else layout.keep_indices
        y = place // gw
        x = place - y * gw
        dy, dx = y[..., :, None] - y[..., None, :] + gh - 1, x[..., :, None] - x[..., None, :] + gw - 1
        p, index = layout.num_prefix_tokens, dy * (2 * gw - 1) + dx + 3
        index = F.pad(index, (p, 0), value=0)  # patch to prefix
        index = F.pad(index, (0, 0, p, 0), value=1)  # prefix to patch
        index[..., :p, :p] = 2
        return AttentionTerms(bias=torch.cat([self.prefix, table])[index].movedim(-1, -3))

    def resize(self, grid: Size) -> None:
        size = (2 * grid[0] - 1, 2 * grid[1] - 1)
        self.table = _replaced(self.table, resample(self.table.detach(), size, self.interpolation))


# ---- Between blocks --------------------------------------------------------------------------------------------------


class ConditionalPosition(PositionEmbedding):
    """CPVT's position encoding generator: a depth-wise convolution after each of the first `blocks` blocks."""

    def __init__(self, width: int, kernel_size: int, blocks: int = 1):
        super().__init__()
        self.convolutions = nn.ModuleList(
            lecun_normal_(nn.Conv2d(width, width, kernel_size, padding=kernel_size // 2, groups=width))
            for _ in range(blocks)
        )
        for weight in self.convolutions.parameters():  # the variance of the sum of outputs does not depend on `blocks`
            weight.data /= math.sqrt(blocks)

    def between(self, layer: int, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        if layer >= len(self.convolutions):
            return tokens
        (gh, gw), p = layout.grid, layout.num_prefix_tokens
        b, _, d = tokens.shape
        patches = tokens[:, p:]
        if layout.keep_indices is None:
            added = self._convolve(layer, patches, layout.grid)
        else:  # dropped patches are zeros
            index = layout.keep_indices[..., None].expand(-1, -1, d)
            whole = patches.new_zeros(b, gh * gw, d).scatter(1, index, patches)
            added = self._convolve(layer, whole, layout.grid).gather(1, index)
        return torch.cat([tokens[:, :p], patches + added], dim=1)

    def _convolve(self, layer: int, patches: Float[Tensor, "b n d"], grid: Size) -> Float[Tensor, "b n d"]:
        b, _, d = patches.shape
        image = patches.transpose(1, 2).reshape(b, d, *grid)
        return self.convolutions[layer](image).flatten(2).transpose(1, 2)


def _replaced(old: nn.Parameter, new: Tensor) -> nn.Parameter:
    """Return the tensor `new` as a contiguous parameter, which is frozen if `old` is frozen."""
    return nn.Parameter(new.clone(memory_format=torch.contiguous_format), requires_grad=old.requires_grad)


# ---- Resampling for another grid -------------------------------------------------------------------------------------


# To reproduce the original outputs, positions must be resampled as in the checkpoint's library (section 3.2).
class _Resampling(NamedTuple):
    mode: str
    align_corners: bool = False
    antialias: bool = False
    scale_offset: float = 0.0


RESAMPLINGS: dict[Interpolation, _Resampling] = {
    "google": _Resampling("bilinear", align_corners=True),  # scipy.ndimage.zoom(order=1), also in big_vision
    "timm": _Resampling("bicubic", antialias=True),
    "huggingface": _Resampling("bicubic"),  # also in MAE and DeiT
    "torchvision": _Resampling("bicubic", align_corners=True),
    "dinov2": _Resampling("bicubic", scale_offset=0.1),  # required by DINOv2's released weights
    "dinov2-registers": _Resampling("bicubic", antialias=True),
    "naflex": _Resampling("bilinear", antialias=True),  # SigLIP 2 with variable aspect ratios
}


def resample(table: Float[Tensor, "gh gw d"], grid: Size, interpolation: Interpolation) -> Float[Tensor, "h w d"]:
    """Resample a grid of vectors to another size.

    >>> resample(torch.zeros(14, 14, 768), (16, 20), "timm").shape
    torch.Size([16, 20, 768])
    """
    gh, gw, _ = table.shape
    way = RESAMPLINGS[interpolation]
    if is_exporting() and any(isinstance(side, torch.SymInt) for side in grid):
        return _resample_by_matrices(table, grid, way)
    if (gh, gw) == grid:
        return table
    image = table.to(torch.promote_types(table.dtype, torch.float32)).permute(2, 0, 1)[None]
    if way.scale_offset:
        # The scale, not the size, determines the sampling points: (h + 0.1) / gh instead of h / gh.
        scale = ((grid[0] + way.scale_offset) / gh, (grid[1] + way.scale_offset) / gw)
        image = F.interpolate(image, scale_factor=scale, mode=way.mode)
    elif way.align_corners:
        image = F.interpolate(image, size=grid, mode=way.mode, align_corners=True)
    else:
        image = F.interpolate(image, size=grid, mode=way.mode, antialias=way.antialias)
    return image[0].permute(1, 2, 0).to(table.dtype)


def resample_line(table: Float[Tensor, "g d"], length: int, interpolation: Interpolation) -> Float[Tensor, "n d"]:
    """Resample row or column vectors to another length."""
    return resample(table[:, None], (length, 1), interpolation)[:, 0]


def _resample_by_matrices(table: Float[Tensor, "gh gw d"], grid: Size, way: _Resampling) -> Float[Tensor, "h w d"]:
    """Compute `resample` in an exported graph, whose grid is unknown until it runs and which has no such operator."""
    sides = [torch.full((), side, device=table.device) for side in (*grid, *table.shape[:2])]
    same = (sides[0] == sides[2]) & (sides[1] == sides[3])
    offset = torch.where(same, 0.0, way.scale_offset)
    rows, columns = (_weights(*lengths, offset, way) for lengths in zip(table.shape[:2], grid, strict=True))
    values = (rows @ table.float().flatten(1)).reshape(-1, *table.shape[1:])
    return (columns @ values).to(table.dtype)


def _weights(length: int, new_length: int, offset: Tensor, way: _Resampling) -> Float[Tensor, "new old"]:
    """Return the weight of each old entry of a row or column in each new entry."""
    new, margin = torch.arange(new_length, device=offset.device)[:, None].float(), 3
    count = torch.full((), new_length, device=offset.device).float()
    scale = (length - 1) / (count - 1).clamp(min=1) if way.align_corners else length / (count + offset)
    centre = new * scale if way.align_corners else (new + 0.5) * scale - 0.5
    old = torch.arange(-margin, length + margin, device=offset.device)
    x = (old - centre).abs() / (scale.clamp(min=1) if way.antialias else 1)
    if way.mode == "bilinear":
        weights = (1 - x).clamp(min=0)
    else:
        a = -0.5 if way.antialias else -0.75
        near, far = ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        weights = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    if way.antialias:
        weights = weights[:, margin:-margin]
        return weights / weights.sum(dim=1, keepdim=True)
    return weights @ F.one_hot(old.clamp(0, length - 1), length).float()  # entries beyond the edge repeat it
