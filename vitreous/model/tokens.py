"""Token sequence of the encoder: prefix tokens (class, distillation, registers), then the patches, row by row.

b: batch; p: prefix tokens; n: patches; k: kept patches; t = p + n: tokens; d: width.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitreous.common.checks import Size
from vitreous.model.init import small_
from vitreous.model.patch import pick


class Layout(NamedTuple):
    """Layout of a token sequence. The grid is explicit because the sequence length does not determine it."""

    num_prefix_tokens: int
    grid: Size
    keep_indices: Tensor | None = None  # [b, k], grid indices of the patches; None: all patches in order


class Features(NamedTuple):
    """Output of the encoder. `patches` are in row-major order of `grid`."""

    prefix: Float[Tensor, "b p d"]
    patches: Float[Tensor, "b n d"]
    grid: Size
    keep_indices: Tensor | None = None  # [b, n], grid indices of the patches; None: all patches in order


def from_feature_map(feature_map: Float[Tensor, "b d gh gw"]) -> Features:
    """Convert a convolutional feature map to features: one patch per location, no prefix tokens."""
    patches = feature_map.flatten(2).transpose(1, 2)
    return Features(patches[:, :0], patches, (feature_map.shape[2], feature_map.shape[3]))


def check_count(patches: int, layout: Layout) -> None:
    """Raise ValueError if the number of patches does not match `keep_indices` or, if None, the grid."""
    (gh, gw), keep_indices = layout.grid, layout.keep_indices
    count = gh * gw if keep_indices is None else keep_indices.shape[1]
    if patches != count:
        source = f"a {gh} x {gw} grid" if keep_indices is None else "keep_indices"
        raise ValueError(f"expected {count} patches for {source}, got {patches}; pass keep_indices for a subset")


class PrefixTokens(nn.Module):
    """Learned tokens before the patches: x_class of equation 1, the distillation token and registers."""

    class_token: nn.Parameter | None
    distillation_token: nn.Parameter | None
    registers: nn.Parameter | None

    def __init__(self, width: int, class_token: bool, distillation_token: bool, registers: int):
        super().__init__()
        lengths = {
            "class_token": int(class_token),
            "distillation_token": int(distillation_token),
            "registers": registers,
        }
        for name, length in lengths.items():
            token = nn.Parameter(small_(torch.empty(1, length, width))) if length else None
            self.register_parameter(name, token)
        self.length = sum(lengths.values())

    def forward(self, patches: Float[Tensor, "b n d"]) -> Float[Tensor, "b t d"]:
        # Not parameters(), which omits pruned and parametrised tokens and those of nn.DataParallel replicas.
        learned = (self.class_token, self.distillation_token, self.registers)
        tokens = [token.expand(patches.shape[0], -1, -1) for token in learned if token is not None]
        return torch.cat([*tokens, patches], dim=1)


class UntiedNorm(nn.Module):
    """Separate LayerNorms for the prefix tokens and the patches."""

    def __init__(self, width: int, eps: float, num_prefix_tokens: int):
        super().__init__()
        self.num_prefix_tokens = num_prefix_tokens
        self.prefix, self.patches = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)

    def forward(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        return torch.cat([self.prefix(prefix), self.patches(patches)], dim=1)


def keep_patches(
    tokens: Float[Tensor, "b t d"], layout: Layout, keep_indices: Int[Tensor, "b k"]
) -> tuple[Float[Tensor, "b s d"], Layout]:
    """Keep the prefix tokens and a subset of the patches. The returned layout records the grid positions.

    >>> tokens, layout = torch.zeros(1, 1 + 4, 8), Layout(1, (2, 2))
    >>> tokens, layout = keep_patches(tokens, layout, torch.tensor([[0, 3]]))
    >>> tokens.shape, layout.keep_indices
    (torch.Size([1, 3, 8]), tensor([[0, 3]]))
    """
    prefix, patches = tokens[:, : layout.num_prefix_tokens], tokens[:, layout.num_prefix_tokens :]
    # The argument indexes the sequence; the layout indexes the grid.
    on_grid = keep_indices if layout.keep_indices is None else layout.keep_indices.gather(1, keep_indices)
    return torch.cat([prefix, pick(patches, keep_indices)], dim=1), layout._replace(keep_indices=on_grid)


def drop_patches(tokens: Float[Tensor, "b t d"], layout: Layout, rate: float) -> tuple[Float[Tensor, "b s d"], Layout]:
    """Apply patch dropout: drop a random fraction of the patches of each image."""
    b, t, _ = tokens.shape
    n = t - layout.num_prefix_tokens
    count = max(1, round(n * (1 - rate)))
    keep_indices = torch.rand(b, n, device=tokens.device).argsort(dim=1)[:, :count].sort(dim=1).values
    return keep_patches(tokens, layout, keep_indices)
