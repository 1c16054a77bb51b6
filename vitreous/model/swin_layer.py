"""The interface of `attention_layer.py` for a Swin Transformer, which explanations use.

b: batch; n = gh x gw: patches; t: tokens in a window; d: width.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model.attention import AttentionTerms
from vitreous.model.attention_layer import AttentionLayer, Merge, head_tensors
from vitreous.model.swin_block import MASKED, PatchMerging, SwinBlock, squares
from vitreous.model.tokens import Layout
from vitreous.model.windows import WindowTerms, join


class SwinLayer(AttentionLayer):
    """A block with its windows, for explanations. Rows exclude padding."""

    def __init__(self, block: SwinBlock, terms: WindowTerms, merge: Merge | None):
        self.block, self.terms, self.merge = block, terms, merge
        self.layout = Layout(0, terms.windows.grid)
        neighbours = terms.windows.neighbours().to(terms.offsets.device)
        self.neighbours, self.padding = neighbours.clamp_min(0), neighbours < 0
        one = terms.windows.counts == (1, 1) and terms.windows.padding == (0, 0)  # with all tokens in order
        self.keys = None if one else self.neighbours

    @property
    def index_tensors(self) -> Sequence[Tensor]:
        merge = () if self.merge is None else (self.merge.keys, self.merge.weights)
        found = (self.neighbours, self.padding, self.terms.offsets, self.terms.separated, *merge)
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
        padding, members = (table.index_select(0, index)[0] for table in (self.padding, self.neighbours))
        members = torch.where(padding, -1, members)
        place = (members == index).long().argmax(dim=0, keepdim=True)  # in the window
        padded = F.pad(block._inputs(tokens), (0, 0, 0, 1))  # the last token is that of the padding
        inputs = padded.index_select(1, torch.where(padding, tokens.shape[1], members))
        query, keys, values = (x[0] for x in attention.queries_keys_values(inputs, AttentionTerms()))
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


def merge_of(module: PatchMerging, grid: Size, device: torch.device) -> Merge:
    """Describe the merging of the patches of a grid."""
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
