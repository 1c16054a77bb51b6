"""The sequence the encoder works on: prefix tokens (class, distillation, registers), then the patches, row by row.

b: batch; p: prefix tokens; n: patches; k: patches kept; t = p + n: tokens; d: width.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitreous.common.checks import Size
from vitreous.model.init import small_
from vitreous.model.patch import pick


class Layout(NamedTuple):
    """Which token stands where. The grid is carried, never guessed from the length of the sequence."""

    num_prefix_tokens: int
    grid: Size
    keep_indices: Tensor | None = None  # [b, k], the indices of the patches that are left; None: all of them, in order


class Features(NamedTuple):
    """What the encoder makes of an image. `patches` is in row-major order of `grid`."""

    prefix: Float[Tensor, "b p d"]
    patches: Float[Tensor, "b n d"]
    grid: Size
    keep_indices: Tensor | None = (
        None  # [b, n], the places of the patches where some were left out; None: all of the grid
    )


def check_count(patches: int, layout: Layout) -> None:
    """Every patch has a place: one on the grid, or one that `keep_indices` says."""
    places = layout.grid[0] * layout.grid[1] if layout.keep_indices is None else layout.keep_indices.shape[1]
    if patches != places:
        told = (
            f"{layout.grid[0]} x {layout.grid[1]}, the grid"
            if layout.keep_indices is None
            else f"{places}, as `keep_indices` says"
        )
        raise ValueError(
            f"there are {patches} patches, but must be {told}; give `keep_indices` if they are only some of it"
        )


class PrefixTokens(nn.Module):
    """Learned tokens put before the patches: x_class of equation 1 and its later companions."""

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
        # By name: a pruned or parametrised token, or one in a replica of nn.DataParallel, is not in parameters().
        learned = (self.class_token, self.distillation_token, self.registers)
        tokens = [token.expand(patches.shape[0], -1, -1) for token in learned if token is not None]
        return torch.cat([*tokens, patches], dim=1)


def keep_patches(
    tokens: Float[Tensor, "b t d"], layout: Layout, keep_indices: Int[Tensor, "b k"]
) -> tuple[Float[Tensor, "b s d"], Layout]:
    """The sequence with only some of its patches, each of which still knows its place.

    >>> tokens, layout = torch.zeros(1, 1 + 4, 8), Layout(1, (2, 2))
    >>> tokens, layout = keep_patches(tokens, layout, torch.tensor([[0, 3]]))
    >>> tokens.shape, layout.keep_indices
    (torch.Size([1, 3, 8]), tensor([[0, 3]]))
    """
    prefix, patches = tokens[:, : layout.num_prefix_tokens], tokens[:, layout.num_prefix_tokens :]
    places = (
        keep_indices if layout.keep_indices is None else layout.keep_indices.gather(1, keep_indices)
    )  # `keep_indices` counts what is there, not the grid
    return torch.cat([prefix, pick(patches, keep_indices)], dim=1), layout._replace(keep_indices=places)


def drop_patches(tokens: Float[Tensor, "b t d"], layout: Layout, rate: float) -> tuple[Float[Tensor, "b s d"], Layout]:
    """Patch dropout: every image loses its own random share of patches, so the encoder has less to do."""
    b, t, _ = tokens.shape
    n = t - layout.num_prefix_tokens
    count = max(1, round(n * (1 - rate)))
    keep_indices = torch.rand(b, n, device=tokens.device).argsort(dim=1)[:, :count].sort(dim=1).values
    return keep_patches(tokens, layout, keep_indices)
