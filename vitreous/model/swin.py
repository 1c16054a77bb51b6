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
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.common.checks import Size
from vitreous.kernels import missing
from vitreous.model.attention import AttentionTerms, SelfAttention
from vitreous.model.attention_layer import AttentionLayer, AttentionStep, Merge, head_tensors
from vitreous.model.block import GeluMlp, StochasticDepth
from vitreous.model.fused_encoder import Kernels, compute_dtype, has_hooks, is_linear
from vitreous.model.init import small_
from vitreous.model.inputs import check_images, check_matches
from vitreous.model.options import Interpolation
from vitreous.model.patch import PatchEmbedding
from vitreous.model.pooling import AveragePooling
from vitreous.model.position import PositionEmbedding, resample
from vitreous.model.protocol import Model
from vitreous.model.swin_config import SwinConfig, SwinV2, WindowRule, fit_windows
from vitreous.model.tokens import Features, Layout
from vitreous.model.walk_parts import LayerParts, WalkParts, WindowParts
from vitreous.model.windows import (
    WindowAttention,
    Windows,
    WindowTerms,
    join,
    pad,
    pair_offsets,
    separated_pairs,
    split,
    token_indices,
)

# ---- Relative positions ----------------------------------------------------------------------------------------------


class BiasTable(nn.Module):
    """Swin V1: one learned bias per head for each offset (dy, dx) in a window."""

    def __init__(self, num_heads: int, window: Size, interpolation: Interpolation):
        super().__init__()
        self.interpolation = interpolation
        self.table = nn.Parameter(small_(torch.empty(2 * window[0] - 1, 2 * window[1] - 1, num_heads)))

    def forward(self, window: Size) -> Float[Tensor, "offsets heads"]:
        return self._at(self.table, window).flatten(0, 1)

    def resize(self, window: Size, pretrained_window: int = 0) -> None:
        table = self._at(self.table.detach(), window).clone(memory_format=torch.contiguous_format)
        self.table = nn.Parameter(table, requires_grad=self.table.requires_grad)

    def _at(self, table: Tensor, window: Size) -> Tensor:
        return resample(table, (2 * window[0] - 1, 2 * window[1] - 1), self.interpolation)


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


# ---- Blocks ----------------------------------------------------------------------------------------------------------

MASKED = -100.0  # added to the logits of separated tokens, as in the original code


def _to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast to the dtype of autocast before large copies, which then move half the bytes."""
    return x.to(compute_dtype(x)) if x.dtype == torch.float32 else x


class WindowSelfAttention(SelfAttention):
    """Self-attention in windows [windows, t, d], with a bias for each offset."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        position: BiasTable | BiasMlp,
        qkv_bias: bool = True,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ):
        super().__init__(
            width,
            num_heads,
            qkv_bias=qkv_bias,
            attention_dropout=attention_dropout,
            output_dropout=output_dropout,
        )
        self.position = position

    def bias(self, terms: WindowTerms) -> Float[Tensor, "heads t t"]:
        return self.position(terms.windows.size)[terms.offsets].permute(2, 0, 1)

    def fused(self, tokens: Float[Tensor, "b n d"], terms: WindowTerms) -> Float[Tensor, "b n d"] | None:
        """Compute the output for tokens on the grid with a fused kernel, or return None if that is not possible."""
        dtype = compute_dtype(tokens)
        if terms.indices is None or self.kernel_obstacle(tokens.device, dtype) or not tokens.shape[0]:
            return None
        from vitreous.kernels.window_attention import supports, window_attention

        if not supports(terms.indices.shape[1], self.head_dim):
            return None
        bias = self.packed_bias()
        qkv = F.linear(tokens.to(dtype), self.packed_weight().to(dtype), None if bias is None else bias.to(dtype))
        gathered = window_attention(qkv, terms.indices, self.bias(terms), terms.separated, self.scale)
        return self.output_dropout(self.output(gathered))

    def kernel_obstacle(self, device: torch.device, dtype: torch.dtype) -> str | None:
        """Return the reason why `fused` cannot be used, or None."""
        if type(self) is not WindowSelfAttention:
            return "cosine attention"
        if (self.training and self.dropout) or has_hooks(self) or not all(map(is_linear, (self.q, self.k, self.v))):
            return "dropout of attention weights, hooks, or other linear layers"
        return missing(device, dtype)

    def logit_scales(self) -> Float[Tensor, "heads 1"]:
        """Return the factor of each head by which products of queries and keys are multiplied."""
        return torch.full_like(self.q.weight[: self.num_heads, :1], self.scale)

    def terms(self, terms: WindowTerms, batch: int) -> AttentionTerms:
        """Compute the bias of all windows of a batch. It is the same in all windows, except those with a mask."""
        bias = self.bias(terms)
        if terms.separated is None:
            return AttentionTerms(bias=bias)
        masked = torch.where(terms.separated[:, None], bias + MASKED, bias)
        return AttentionTerms(bias=_to_autocast_dtype(masked).repeat(batch, 1, 1, 1))


class CosineSelfAttention(WindowSelfAttention):
    """Swin V2: the logits are cosines of queries and keys, times a learned factor per head of at most 100."""

    def __init__(
        self,
        width: int,
        num_heads: int,
        position: BiasTable | BiasMlp,
        qkv_bias: bool = True,
        attention_dropout: float = 0.0,
        output_dropout: float = 0.0,
    ):
        super().__init__(width, num_heads, position, qkv_bias, attention_dropout, output_dropout)
        self.k = nn.Linear(width, width, bias=False)
        self.scale = 1.0
        self.logit_scale = nn.Parameter(torch.full((num_heads,), math.log(10)))

    def queries_keys_values(self, tokens: Tensor, terms: AttentionTerms) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().queries_keys_values(tokens, terms)
        factor = self.logit_scales()[..., None]
        # Keys of padding are 0, and the default eps is 0 in float16.
        q, k = (F.normalize(x, dim=-1, eps=1e-6) for x in (q, k))
        return (q * factor).to(v.dtype), k.to(v.dtype), v

    def logit_scales(self) -> Float[Tensor, "heads 1"]:
        return self.logit_scale.clamp(max=math.log(100)).exp()[:, None]


class SwinBlock(nn.Module):
    """Attention in windows and an MLP, each with a residual connection and a norm: before it (V1) or after it (V2)."""

    def __init__(
        self,
        attention: WindowSelfAttention,
        mlp: GeluMlp,
        width: int,
        norm_eps: float,
        post_norm: bool,
        stochastic_depth: float = 0.0,
    ):
        super().__init__()
        self.post_norm = post_norm
        self.attention_norm, self.attention = nn.LayerNorm(width, norm_eps), attention
        self.mlp_norm, self.mlp = nn.LayerNorm(width, norm_eps), mlp
        self.stochastic_depth = StochasticDepth(stochastic_depth)
        if post_norm:  # blocks start as the identity
            nn.init.zeros_(self.attention_norm.weight)
            nn.init.zeros_(self.mlp_norm.weight)

    def forward(self, tokens: Float[Tensor, "b n d"], terms: WindowTerms) -> Float[Tensor, "b n d"]:
        inputs = self._inputs(tokens)
        attended = self.attention.fused(inputs, terms)
        if attended is None:
            bias = self.attention.terms(terms, tokens.shape[0])
            attended = join(self.attention(split(_to_autocast_dtype(inputs), terms.windows), bias), terms.windows)
        return self._add(tokens, attended)

    def with_weights(
        self, tokens: Float[Tensor, "b n d"], weights: Float[Tensor, "b windows heads t t"], terms: WindowTerms
    ) -> Float[Tensor, "b n d"]:
        """Compute the output of `forward` from given attention weights."""
        inputs, bias = self._windows(tokens, terms)
        return self._add(tokens, join(self.attention.gather(inputs, weights.flatten(0, 1), bias), terms.windows))

    def attention_weights(
        self, tokens: Float[Tensor, "b n d"], terms: WindowTerms
    ) -> Float[Tensor, "b windows heads t t"]:
        """Return the attention weights that `forward` uses for these tokens."""
        weights = self.attention.weights(*self._windows(tokens, terms))
        return weights.reshape(tokens.shape[0], -1, *weights.shape[1:])

    def _windows(self, tokens: Tensor, terms: WindowTerms) -> tuple[Tensor, AttentionTerms]:
        inputs = _to_autocast_dtype(self._inputs(tokens))
        return split(inputs, terms.windows), self.attention.terms(terms, tokens.shape[0])

    def _inputs(self, tokens: Tensor) -> Tensor:
        return tokens if self.post_norm else self.attention_norm(tokens)

    def _add(self, tokens: Tensor, attended: Tensor) -> Tensor:
        """Add the output of the attention and the MLP to the tokens."""
        if self.post_norm:
            tokens = tokens + self.stochastic_depth(self.attention_norm(attended))
            return tokens + self.stochastic_depth(self.mlp_norm(self.mlp(tokens)))
        tokens = tokens + self.stochastic_depth(attended)
        return tokens + self.stochastic_depth(self.mlp(self.mlp_norm(tokens)))


def squares(tokens: Float[Tensor, "b n d"], grid: Size) -> Float[Tensor, "b m 4 d"]:
    """Group each 2 x 2 patches, column by column, with zeros beyond the edge."""
    (b, _, d), (gh, gw) = tokens.shape, grid
    rows, columns = -(-gh // 2), -(-gw // 2)
    x = pad(tokens.reshape(b, gh, gw, d), (gh % 2, gw % 2))
    return x.reshape(b, rows, 2, columns, 2, d).permute(0, 1, 3, 4, 2, 5).reshape(b, rows * columns, 4, d)


class PatchMerging(nn.Module):
    """Concatenates the tokens of each 2 x 2 patches and projects them to twice the width. V2 normalises after it."""

    def __init__(self, width: int, norm_eps: float, post_norm: bool):
        super().__init__()
        self.post_norm = post_norm
        self.norm = nn.LayerNorm(2 * width if post_norm else 4 * width, norm_eps)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, tokens: Float[Tensor, "b n d"], grid: Size) -> tuple[Float[Tensor, "b m e"], Size]:
        x = squares(tokens, grid).flatten(2)
        x = self.norm(self.reduction(x)) if self.post_norm else self.reduction(self.norm(x))
        return x, (-(-grid[0] // 2), -(-grid[1] // 2))

    def parts(self, tokens: Float[Tensor, "b n d"], grid: Size) -> Float[Tensor, "b m 4 e"]:
        """Return what each of the four patches adds to the output. The sum of the parts is the output."""
        x = squares(tokens, grid)
        x = x if self.post_norm else self.norm(x.flatten(2)).view_as(x)
        parts = torch.einsum("bmpd,epd->bmpe", x, self.reduction.weight.view(self.reduction.out_features, 4, -1))
        if not self.post_norm:
            return parts
        # The norm of V2 is linear once the standard deviation of the sum is known.
        std = (parts.sum(dim=2, keepdim=True).var(dim=-1, keepdim=True, correction=0) + self.norm.eps).sqrt()
        return (parts - parts.mean(dim=-1, keepdim=True)) / std * self.norm.weight + self.norm.bias / 4

    def token_tensors(self, tokens: Float[Tensor, "b n d"], grid: Size, index: Int[Tensor, "1"]) -> dict[str, Tensor]:
        """Return the tokens that are merged into one, and its value between the norm and the projection."""
        x = squares(tokens, grid).index_select(1, index)
        between = self.reduction(x.flatten(2)) if self.post_norm else self.norm(x.flatten(2))
        return {"merge_tokens": x[0, 0], "merge_between": between[0, 0]}


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


# ---- Model -----------------------------------------------------------------------------------------------------------


class SwinLayer(AttentionLayer):
    """A block with its windows, for explanations. Rows exclude padding."""

    def __init__(self, block: SwinBlock, terms: WindowTerms, merge: Merge | None):
        self.block, self.terms, self.merge = block, terms, merge
        self.layout = Layout(0, terms.windows.grid)
        neighbours = terms.windows.neighbours().to(terms.offsets.device)
        self.keys, self.padding = neighbours.clamp_min(0), neighbours < 0
        if terms.windows.counts == (1, 1) and terms.windows.padding == (0, 0):  # one window, with all tokens in order
            self.keys = None

    @property
    def index_tensors(self) -> Sequence[Tensor]:
        merge = () if self.merge is None else (self.merge.keys, self.merge.weights)
        found = (self.keys, self.padding, self.terms.offsets, self.terms.separated, *merge)
        return [tensor for tensor in found if tensor is not None]

    def weights(self, tokens: Float[Tensor, "b n d"], queries: slice = slice(None)) -> Float[Tensor, "b heads q t"]:
        return self.rows(self.block.attention_weights(tokens, self.terms))[:, :, queries]

    def explicit_step(
        self, tokens: Float[Tensor, "b n d"]
    ) -> tuple[Float[Tensor, "b windows heads t t"], Float[Tensor, "b n d"]]:
        weights = self.block.attention_weights(tokens, self.terms)
        return weights, self.block.with_weights(tokens, weights, self.terms)

    def token_tensors(self, tokens: Float[Tensor, "b n d"], index: Int[Tensor, "1"]) -> dict[str, Tensor]:
        block, windows, own = self.block, self.terms.windows, tokens.index_select(1, index)
        attention, t = block.attention, math.prod(windows.size)
        members = windows.neighbours().to(tokens.device).index_select(0, index)[0]
        padded = F.pad(block._inputs(tokens), (0, 0, 0, 1))  # the last token is that of the padding
        inputs = padded.index_select(1, torch.where(members < 0, tokens.shape[1], members))
        query, keys, values = (x[0] for x in attention.queries_keys_values(inputs, AttentionTerms()))
        places = torch.arange(t, device=tokens.device, dtype=torch.float64).expand(math.prod(windows.counts), t)
        place = join(places[..., None], windows)[0, :, 0].long().index_select(0, index)
        scale = attention.logit_scales()
        query = query.index_select(1, place)[:, 0] * (attention.scale / scale)
        added = {"bias": attention.bias(self.terms).index_select(1, place)[:, 0]}
        if self.terms.separated is not None:
            separated = join(self.terms.separated.double(), windows)[0].index_select(0, index)
            added["mask"] = (separated * MASKED).to(query.dtype).expand(len(query), t)
        heads = head_tensors(query, keys, values, scale, **added)
        attended = attention_output = attention.project(heads["mixed"][None, :, None])
        if block.post_norm:
            attended = block.attention_norm(attention_output)
        middle = own + attended
        mlp_input = middle if block.post_norm else block.mlp_norm(middle)
        hidden = block.mlp.hidden(mlp_input)
        mlp = mlp_output = block.mlp.down(hidden)
        if block.post_norm:
            mlp = block.mlp_norm(mlp_output)
            norms = {"attention_output": attention_output, "mlp_output": mlp_output}
        else:
            norms = {"normed": block.attention_norm(own), "middle_normed": mlp_input}
        vectors = {"before": own, "attended": attended, "middle": middle, "hidden": hidden, "mlp": mlp}
        vectors |= {"output": middle + mlp, **norms}
        return heads | {"tokens": members.to(query.dtype)} | {name: vector[0, 0] for name, vector in vectors.items()}

    def rows(self, weights: Float[Tensor, "b windows heads t t"]) -> Float[Tensor, "b heads n t"]:
        b, _, heads, t, _ = weights.shape
        joined = join(weights.transpose(2, 3).flatten(3).flatten(0, 1), self.terms.windows)
        return joined.reshape(b, -1, heads, t).transpose(1, 2).masked_fill(self.padding, 0)


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
            merge = None if number or stage.merge is None else self._merge(stage.merge, grid, step.before.device)
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

    def resampled(self, fields: Mapping[str, Any]) -> "Swin":
        """Return a copy of the model with another `window`. Its relative positions are those of the old windows.

        V1 resamples its tables. V2 computes the positions of larger windows in units of the old ones.
        """
        changes: dict[str, Any] = dict(fields)
        if isinstance(self.config.version, SwinV2):
            now = zip(self.config.pretrained_windows, self.config.stage_windows, strict=True)
            changes["version"] = SwinV2(tuple(before or min(size) for before, size in now))
        config = self.config.uncalibrated().override(changes)
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

    def _merge(self, module: PatchMerging, grid: Size, device: torch.device) -> Merge:
        numbers = torch.arange(1, 1 + math.prod(grid), device=device).double()[None, :, None]
        numbers = squares(numbers, grid)[0, ..., 0].long()
        inside = (numbers > 0).float()  # the others are beyond the edge
        weights = inside / inside.sum(dim=1, keepdim=True)
        return Merge(
            merged=lambda tokens: module(tokens, grid)[0],
            parts=lambda tokens: module.parts(tokens, grid),
            token_tensors=lambda tokens, index: module.token_tensors(tokens, grid, index),
            layout=Layout(0, grid),
            keys=(numbers - 1).clamp_min(0),
            weights=weights,
        )

    @property
    def _stages(self) -> list[Stage]:
        return [cast(Stage, stage) for stage in self.stages]

    @property
    def _places(self) -> list[tuple[Stage, int]]:
        """Stage of each layer, and its number in the stage."""
        return [(stage, number) for stage in self._stages for number in range(len(stage.blocks))]


def _features(tokens: Float[Tensor, "b n d"], grid: Size) -> Features:
    return Features(tokens[:, :0], tokens, grid)
