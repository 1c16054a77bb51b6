"""Swin Transformer (arXiv 2103.14030) and Swin Transformer V2 (arXiv 2111.09883): attention in shifted windows.

The patches of an image form a grid. Each block cuts the grid into windows, and patches attend to the patches of their
window. In every second block of a stage, the windows are shifted by half their size, so that information crosses their
borders. Between two stages, each 2 x 2 patches are merged into one of twice the width. There are no prefix tokens.

Explanations use the layers of `attention_steps`. Lower-level access, where a layer is a block, counted over all stages:

- `model.attention(images, layers)` returns a `WindowAttention` per layer: `weights` [b, windows, heads, t, t], equal to
  the weights that the forward pass uses, and `windows`, whose `token_indices()` [windows, t] places them: each entry is
  the index of a token on the layer's grid `windows.grid` (row by row), or -1 for padding.
- `model.walk(images)` yields a `Step` per layer: its input `before` and output `after`. Where a stage starts, `before`
  is the output of `model.stages[stage].merge`, whose token (y, x) has the inputs (2y, 2x), (2y + 1, 2x), (2y, 2x + 1)
  and (2y + 1, 2x + 1), in this order, with zeros beyond the edge.

b: batch; c: channels; h, w: image height and width; n = gh x gw: patches; t: tokens in a window; d: width.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.common.checks import Size
from vitreous.model.attention_layer import AttentionStep
from vitreous.model.fused_encoder import Kernels
from vitreous.model.inputs import check_images, check_matches
from vitreous.model.patch import PatchEmbedding
from vitreous.model.pooling import AveragePooling
from vitreous.model.position import PositionEmbedding
from vitreous.model.protocol import Model
from vitreous.model.swin_block import PatchMerging, SwinBlock
from vitreous.model.swin_config import SwinConfig, SwinV2, WindowRule, fit_windows
from vitreous.model.swin_layer import SwinLayer, merge_of
from vitreous.model.tokens import Features, Layout
from vitreous.model.walk_parts import LayerParts, WalkParts, WindowParts
from vitreous.model.window_position import WindowPosition
from vitreous.model.windows import (
    WindowAttention,
    Windows,
    WindowTerms,
    pair_offsets,
    separated_pairs,
    token_indices,
)


class Stage(nn.Module):
    """Blocks at one resolution, after a merge of patches unless it is the first stage."""

    def __init__(self, merge: PatchMerging | None, blocks: Sequence[SwinBlock], window: Size, rule: WindowRule):
        super().__init__()
        self.merge, self.blocks = merge, nn.ModuleList(blocks)
        self.window, self.rule = window, rule
        self.recompute = False  # activation checkpointing: recompute blocks in the backward pass

    def forward(self, tokens: Float[Tensor, "b n d"], grid: Size) -> tuple[Float[Tensor, "b m e"], Size]:
        tokens, grid = self.merged(tokens, grid)
        terms = self.terms(grid, tokens.device)
        for number in range(len(self.blocks)):
            tokens = self.step(number, tokens, terms)
        return tokens, grid

    def merged(self, tokens: Float[Tensor, "b n d"], grid: Size) -> tuple[Float[Tensor, "b m e"], Size]:
        """Return the input of the first block and its grid."""
        return (tokens, grid) if self.merge is None else self.merge(tokens, grid)

    def terms(self, grid: Size, device: torch.device) -> tuple[WindowTerms, WindowTerms]:
        """Return the windows of even and odd blocks. They are computed once for all blocks of the stage."""
        plain, shifted = self.windows(grid)
        offsets = pair_offsets(plain.size, device)
        separated, full = separated_pairs(shifted, device), shifted.padding == (0, 0)
        first, second = (token_indices(windows, device) if full else None for windows in (plain, shifted))
        return WindowTerms(plain, offsets, None, first), WindowTerms(shifted, offsets, separated, second)

    def windows(self, grid: Size) -> tuple[Windows, Windows]:
        """Return the windows of even and odd blocks."""
        size, shift = fit_windows(grid, self.window, self.rule)
        first = self.rule == "timm"
        return Windows(grid, size, (0, 0), shift_first=first), Windows(grid, size, shift, shift_first=first)

    def step(self, number: int, tokens: Float[Tensor, "b n d"], terms: Sequence[WindowTerms]) -> Float[Tensor, "b n d"]:
        block = self.blocks[number]
        if self.recompute and self.training:
            return checkpoint(block, tokens, terms[number % 2], use_reentrant=False)
        return block(tokens, terms[number % 2])


class Step(NamedTuple):
    """Tokens before and after a layer, and its windows. All are on `terms.windows.grid`."""

    layer: int
    stage: int
    before: Float[Tensor, "b n d"]
    after: Float[Tensor, "b n d"]
    terms: WindowTerms


class Swin(Model):
    """Swin Transformer, assembled from the modules that `build` passes in.

    >>> from vitreous.model.build import build
    >>> build(SwinConfig(num_classes=10)).eval().features(torch.zeros(1, 3, 224, 300)).grid
    (7, 10)
    """

    def __init__(
        self, config: SwinConfig, patches: PatchEmbedding, stages: Sequence[Stage], norm: nn.Module, head: nn.Module
    ):
        super().__init__()
        self.config: SwinConfig = config
        self.patches, self.patch_norm = patches, nn.LayerNorm(config.width, config.norm_eps)
        self.embedding_dropout = nn.Dropout(config.dropout.embedding)
        self.stages = nn.ModuleList(stages)
        self.norm, self.pool, self.head = norm, AveragePooling(nn.Identity()), head

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b classes"]:
        return self.classify(self.features(images))

    def features(self, images: Float[Tensor, "b c h w"]) -> Features:
        """Return the tokens of the last stage after the final norm."""
        tokens, grid = self.embed(images)
        for stage in self.stages:
            tokens, grid = stage(tokens, grid)
        return _features(self.norm(tokens), grid)

    def pyramid(self, images: Float[Tensor, "b c h w"]) -> list[Features]:
        """Return the tokens after each stage. The final norm applies to the last stage only."""
        (tokens, grid), maps = self.embed(images), []
        for stage in self.stages:
            tokens, grid = stage(tokens, grid)
            maps.append(_features(tokens, grid))
        return [*maps[:-1], _features(self.norm(tokens), grid)]

    def embed(self, images: Float[Tensor, "b c h w"]) -> tuple[Float[Tensor, "b n d"], Size]:
        """Cut the images into patches and project them. Images are zero-padded to whole patches."""
        check_images(images, self.config.channels)
        try:
            patches, grid = self.patches(images)
        except RuntimeError:
            check_matches(images, self.patches.projection.weight)
            raise
        return self.embedding_dropout(self.patch_norm(patches)), grid

    # ---- Parts ----

    @property
    def blocks(self) -> Sequence[nn.Module]:
        return [stage.blocks[number] for stage, number in self._places]

    @property
    def embedding(self) -> Sequence[nn.Module]:
        return (self.patches, self.patch_norm)

    @property
    def lr_groups(self) -> Sequence[Sequence[nn.Module]]:
        """The merge before a stage belongs to the first block of the stage."""
        merges = [stage.merge if number == 0 else None for stage, number in self._places]
        blocks = zip(merges, self.blocks, strict=True)
        return [self.embedding, *([block] if merge is None else [merge, block] for merge, block in blocks)]

    @property
    def image_filters(self) -> tuple[Float[Tensor, "k c ph pw"], str]:
        return self.patches.projection.weight, "the patch embedding"

    @property
    def patch_embedding(self) -> PatchEmbedding:
        return self.patches

    @property
    def positions(self) -> PositionEmbedding:
        """Relative positions in a window of the first block."""
        return WindowPosition(cast(SwinBlock, self.blocks[0]).attention.position)

    def kernels(self, device: torch.device, dtype: torch.dtype) -> Kernels:
        attention = cast(SwinBlock, self.blocks[0]).attention
        reason = attention.kernel_obstacle(device, dtype)
        return Kernels("none", reason) if reason else Kernels("attention in windows")

    def recompute_blocks(self) -> None:
        for stage in self._stages:
            stage.recompute = True

    # ---- Attention and intermediate features ----

    def walk(self, images: Float[Tensor, "b c h w"], layers: int | None = None) -> Iterator[Step]:
        """Yield the tokens before and after each of the first `layers` layers (default: all layers)."""
        (tokens, grid), layer = self.embed(images), 0
        for number, stage in enumerate(self._stages):
            if layer == layers:
                return
            tokens, grid = stage.merged(tokens, grid)
            terms = stage.terms(grid, tokens.device)
            for block in range(len(stage.blocks)):
                if layer == layers:
                    return
                after = stage.step(block, tokens, terms)
                yield Step(layer, number, tokens, after, terms[block % 2])
                tokens, layer = after, layer + 1

    def attention_steps(self, images: Float[Tensor, "b c h w"]) -> Iterator[AttentionStep]:
        places, grid = self._places, (0, 0)
        for step in self.walk(images):
            stage, number = places[step.layer]
            merge = None if number or stage.merge is None else merge_of(stage.merge, grid, step.before.device)
            grid = step.terms.windows.grid
            yield AttentionStep(SwinLayer(cast(SwinBlock, stage.blocks[number]), step.terms, merge), *step[2:4])

    def walk_parts(self) -> WalkParts:
        config, layers = self.config, list[LayerParts]()
        for stage, (merged, grid) in enumerate(zip(self._stages, config.stage_grids, strict=True)):
            for number, block in enumerate(merged.blocks):
                windows = merged.windows(grid)[number % 2]
                layers.append(
                    LayerParts(
                        head_dim=cast(SwinBlock, block).attention.head_dim,
                        hidden=config.stage_mlp_widths[stage],
                        windows=WindowParts(windows.size, windows.shift, windows.cycle),
                        merge=stage > 0 and number == 0,
                    )
                )
        second = isinstance(config.version, SwinV2)
        return WalkParts(
            positions=("bias",),
            pool="mean",
            patch=config.patch_size,
            layers=tuple(layers),
            pre_norm=True,
            post_norm=second,
            cosine=second,
            computed_bias=second,
        )

    def patch_tensors(self, images: Float[Tensor, "b c h w"]) -> dict[str, Float[Tensor, "b n _"]]:
        return {"pixels": self.patches.cut(images), "projected": self.patches(images)[0]}

    def output_features(self, tokens: Float[Tensor, "b n d"], layout: Layout) -> Features:
        """Apply the final norm to tokens of the last stage; it does not fit the width of the others."""
        last = tokens.shape[2] == self.config.feature_width
        return _features(self.norm(tokens) if last else tokens, layout.grid)

    def attention(self, images: Float[Tensor, "b c h w"], layers: Sequence[int] | None = None) -> list[WindowAttention]:
        """Return the attention weights of `layers` (default: all layers)."""
        wanted = self._layers(layers)
        maps: dict[int, WindowAttention] = {}
        for step in self.walk(images, max(wanted, default=-1) + 1):
            if step.layer in wanted:
                weights = cast(SwinBlock, self.blocks[step.layer]).attention_weights(step.before, step.terms)
                maps[step.layer] = WindowAttention(weights, step.terms.windows)
        return [maps[layer] for layer in wanted]

    def intermediate(
        self, images: Float[Tensor, "b c h w"], layers: Sequence[int] | None = None, norm: bool = True
    ) -> list[Features]:
        """Return the features after each of `layers` (default: all layers).

        If `norm`, apply the final norm to the layers of the last stage; it does not fit the width of the others.
        """
        wanted, last = self._layers(layers), len(self.stages) - 1
        found: dict[int, Features] = {}
        for step in self.walk(images, max(wanted, default=-1) + 1):
            if step.layer in wanted:
                after = self.norm(step.after) if norm and step.stage == last else step.after
                found[step.layer] = _features(after, step.terms.windows.grid)
        return [found[layer] for layer in wanted]

    def stage_outputs(self, images: Float[Tensor, "b c h w"]) -> Iterator[tuple[str, Tensor]]:
        yield "patches", self.embed(images)[0]
        for step in self.walk(images):
            yield f"block {step.layer}", step.after
        features = self.features(images)
        yield "features", features.patches
        yield "logits" if self.config.num_classes else "pooled", self.classify(features)

    # ---- Another image size ----

    def resized(self, image_size: int | Size) -> "Swin":
        """Return a copy of the model for another image size, with tables resampled once instead of in every call."""
        model = super().resized(image_size)
        model._resize_windows()
        return model

    def resampled(self, fields: Mapping[str, Any], image_size: Size) -> "Swin":
        """Return a copy of the model with another `window`, for another image size.

        Relative positions are those of the old windows at the old image size. V1 resamples its tables. V2 computes the
        positions of larger windows in units of the old ones.
        """
        changes: dict[str, Any] = dict(fields)
        if isinstance(self.config.version, SwinV2):
            now = zip(self.config.pretrained_windows, self.config.stage_windows, strict=True)
            changes["version"] = SwinV2(tuple(before or min(size) for before, size in now))
        config = self.config.uncalibrated().override(changes).resized(image_size)
        model = copy.deepcopy(self)
        model.config = config
        model._resize_windows()
        return model

    def _resize_windows(self) -> None:
        units = self.config.pretrained_windows
        for number, (stage, window) in enumerate(zip(self._stages, self.config.stage_windows, strict=True)):
            stage.window = self.config.window
            for block in stage.blocks:
                cast(SwinBlock, block).attention.position.resize(window, units[number])

    @property
    def _stages(self) -> list[Stage]:
        return [cast(Stage, stage) for stage in self.stages]

    @property
    def _places(self) -> list[tuple[Stage, int]]:
        """Stage of each layer, and its number in the stage."""
        return [(stage, number) for stage in self._stages for number in range(len(stage.blocks))]


def _features(tokens: Float[Tensor, "b n d"], grid: Size) -> Features:
    return Features(tokens[:, :0], tokens, grid)
