"""Token merging (ToMe, arXiv 2210.09461): every block averages its r most similar pairs of patches, without training.

A merged token attends, and is attended to, like its original patches: its size is added to the scores as a
logarithm. After the last block, every patch gets the token that it became part of, so features keep their grid.

b: batch; t: tokens; n: patches, merged or not; g: patches of the grid; d: width; e: head_dim.
"""

import copy
from collections.abc import Iterable
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.common.checks import BadValue, check_whole
from vitreous.model.attention import AttentionTerms
from vitreous.model.block import Block
from vitreous.model.encoder import Encoder
from vitreous.model.fused_encoder import Kernels
from vitreous.model.options import Learned1d, Learned2d, NoPosition, SinCos2d
from vitreous.model.position import PositionEmbedding
from vitreous.model.protocol import Model
from vitreous.model.tokens import Layout
from vitreous.model.vit import ViT


class Merge(NamedTuple):
    """Result of merging patches: their number of original patches, and the index of each original patch among them."""

    patches: Float[Tensor, "b n d"]
    sizes: Float[Tensor, "b n"]
    owners: Int[Tensor, "b g"]


def merge(before: Merge, keys: Float[Tensor, "b n e"], r: int) -> Merge:
    """Merge the r most similar pairs of a patch at an odd index and its most similar patch at an even index.

    Patches that stay come first, in their order, then those at even indices.
    """
    b, n, _ = keys.shape
    r = min(r, n // 2)
    keys = F.normalize(keys.float(), dim=-1)
    similarity, partner = (keys[:, 1::2] @ keys[:, ::2].mT).max(dim=-1)
    order = similarity.argsort(dim=-1, descending=True)  # `stable` cannot be exported
    leaving, staying = order[:, :r], order[:, r:].sort(dim=-1).values
    partner = partner.gather(1, leaving)

    # A product with zeros and ones adds in the same order in every run, unlike scatter_add on a GPU.
    chosen = F.one_hot(partner, (n + 1) // 2).mT.float()
    weighted = before.patches.float() * before.sizes[..., None]
    sizes = before.sizes[:, ::2] + (chosen @ before.sizes[:, 1::2].gather(1, leaving)[..., None])[..., 0]
    added = chosen @ _rows(weighted[:, 1::2], leaving)
    merged = ((weighted[:, ::2] + added) / sizes[..., None]).to(before.patches.dtype)

    place = torch.empty(b, n, dtype=torch.long, device=keys.device)
    kept = staying.shape[1]
    place[:, ::2] = kept + torch.arange((n + 1) // 2, device=keys.device)
    place[:, 1::2].scatter_(1, staying, torch.arange(kept, device=keys.device).expand(b, -1))
    place[:, 1::2].scatter_(1, leaving, kept + partner)
    return Merge(
        torch.cat([_rows(before.patches[:, 1::2], staying), merged], dim=1),
        torch.cat([before.sizes[:, 1::2].gather(1, staying), sizes], dim=1),
        place.gather(1, before.owners),
    )


def _rows(x: Float[Tensor, "b n d"], indices: Int[Tensor, "b m"]) -> Float[Tensor, "b m d"]:
    return x.gather(1, indices[..., None].expand(-1, -1, x.shape[-1]))


class MergingEncoder(Encoder):
    """An encoder that merges r pairs of patches in every block. Attention maps are those without merging."""

    def __init__(self, encoder: Encoder, r: int):
        super().__init__(list(encoder.blocks))  # type: ignore[arg-type]
        self.r = r

    def kernels(self, position: PositionEmbedding, device: torch.device, dtype: torch.dtype) -> Kernels:
        return Kernels("none", "token merging")

    def forward(
        self, tokens: Float[Tensor, "b t d"], layout: Layout, position: PositionEmbedding
    ) -> Float[Tensor, "b t d"]:
        b, p = tokens.shape[0], layout.num_prefix_tokens
        n = tokens.shape[1] - p
        numbers = torch.arange(n, device=tokens.device).expand(b, -1)
        sizes, owners = torch.ones(b, n, device=tokens.device), numbers
        for block in cast(Iterable[Block], self.blocks):
            attention = block.attention
            q, k, v = attention.queries_keys_values(block.attention_norm(tokens), AttentionTerms())
            bias = F.pad(sizes, (p, 0), value=1.0).log()[:, None, None].to(q.dtype)
            gathered = F.scaled_dot_product_attention(q, k, v, bias, scale=attention.scale)
            tokens = tokens + block.attention_scale(attention.project(gathered))
            patches, sizes, owners = merge(Merge(tokens[:, p:], sizes, owners), k[:, :, p:].mean(dim=1), self.r)
            tokens = torch.cat([tokens[:, :p], patches], dim=1)
            tokens = tokens + block.mlp_scale(block.mlp(block.mlp_norm(tokens)))
        return torch.cat([tokens[:, :p], _rows(tokens[:, p:], owners)], dim=1)


def merging(model: Model, r: int) -> Model:
    """Return a model with the same tensors whose blocks merge r pairs of patches each. r = 0 returns the model."""
    check_whole("merge_tokens", r, 0, 2**20)
    if not r:
        return model
    if not isinstance(model, ViT):
        raise BadValue(f"merge_tokens needs a Vision Transformer, but the model is a {model.config.summary}")
    position = model.config.position
    if not isinstance(position, Learned1d | Learned2d | SinCos2d | NoPosition):
        raise BadValue(f"merge_tokens needs positions that are added to the patches, not {type(position).__name__}")
    merged = copy.copy(model)
    merged._modules = {**model._modules, "encoder": MergingEncoder(model.encoder, r)}
    return merged
