"""The Transformer encoder (ViT paper, Figure 1, right): L blocks in sequence.

b: batch; t: tokens; p: prefix tokens; d: width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitreous.model.attention import AttentionTerms, terms_of_layer
from vitreous.model.attention_layer import AttentionLayer, head_tensors
from vitreous.model.block import Block
from vitreous.model.fused_encoder import Kernels, compute_dtype, encode, unsupported
from vitreous.model.position import PositionEmbedding
from vitreous.model.tokens import Layout


class Encoder(nn.Module):
    """Transformer blocks with hooks for position embeddings."""

    def __init__(self, blocks: Sequence[Block]):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.recompute = False  # activation checkpointing: recompute blocks in the backward pass

    def forward(
        self, tokens: Float[Tensor, "b t d"], layout: Layout, position: PositionEmbedding
    ) -> Float[Tensor, "b t d"]:
        """Compute the tokens after the last layer (z_L) from the embedded tokens (z_0)."""
        terms = position.attend(layout, tokens.device)
        if self.kernels(position, tokens.device, compute_dtype(tokens)).scope == "blocks" and tokens.shape[0]:
            return encode(self.blocks, tokens, terms)
        for layer in range(len(self.blocks)):
            tokens = self.step(layer, tokens, terms, layout, position)
        return tokens

    def prefix(
        self, tokens: Float[Tensor, "b t d"], layout: Layout, position: PositionEmbedding
    ) -> Float[Tensor, "b p d"]:
        """Compute the prefix tokens of `forward`. The last block skips what only the patches need."""
        terms = position.attend(layout, tokens.device)
        *layers, last = range(len(self.blocks))
        for layer in layers:
            tokens = self.step(layer, tokens, terms, layout, position)
        return cast(Block, self.blocks[last])(tokens, terms_of_layer(terms, last), slice(layout.num_prefix_tokens))

    def kernels(self, position: PositionEmbedding, device: torch.device, dtype: torch.dtype) -> Kernels:
        """Return whether `forward` uses the fused kernels."""
        if self.recompute and self.training:
            return Kernels("none", "activation checkpointing")
        if type(position).between is not PositionEmbedding.between:
            return Kernels("none", "position embedding between the blocks")
        reason = unsupported(self.blocks, device, dtype)
        return Kernels("none", reason) if reason else Kernels("blocks")

    def walk(
        self, tokens: Float[Tensor, "b t d"], layout: Layout, position: PositionEmbedding
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the tokens before and after each layer."""
        terms = position.attend(layout, tokens.device)
        for layer in range(len(self.blocks)):
            after = self.step(layer, tokens, terms, layout, position)
            yield tokens, after
            tokens = after

    def step(
        self, layer: int, tokens: Tensor, terms: AttentionTerms, layout: Layout, position: PositionEmbedding
    ) -> Tensor:
        """Compute the tokens after `layer`. `terms` are those of all layers."""
        block, terms = self.blocks[layer], terms_of_layer(terms, layer)
        if self.recompute and self.training:
            after = checkpoint(block, tokens, terms, use_reentrant=False)
        else:
            after = block(tokens, terms)
        return position.between(layer, after, layout)

    def attention_weights(
        self,
        layer: int,
        before: Float[Tensor, "b t d"],
        layout: Layout,
        position: PositionEmbedding,
        queries: slice = slice(None),
    ) -> Float[Tensor, "b heads q t"]:
        """Return the attention weights of `layer` for its input tokens. `queries` selects the rows to return."""
        terms = terms_of_layer(position.attend(layout, before.device), layer)
        return cast(Block, self.blocks[layer]).attention_weights(before, terms, queries)

    def explicit_step(
        self, layer: int, before: Float[Tensor, "b t d"], layout: Layout, position: PositionEmbedding
    ) -> tuple[Float[Tensor, "b heads t t"], Float[Tensor, "b t d"]]:
        """Return the attention weights of `layer` and its output. Gradients of the output reach the weights."""
        terms = terms_of_layer(position.attend(layout, before.device), layer)
        block = cast(Block, self.blocks[layer])
        weights = block.attention_weights(before, terms)
        return weights, position.between(layer, block.with_weights(before, weights, terms), layout)


@dataclass(frozen=True)
class EncoderLayer(AttentionLayer):
    """A layer of an encoder, in which every token attends to all tokens."""

    encoder: Encoder
    index: int
    layout: Layout
    position: PositionEmbedding

    def weights(self, tokens: Float[Tensor, "b t d"], queries: slice = slice(None)) -> Float[Tensor, "b heads q t"]:
        return self.encoder.attention_weights(self.index, tokens, self.layout, self.position, queries)

    def explicit_step(
        self, tokens: Float[Tensor, "b t d"]
    ) -> tuple[Float[Tensor, "b heads t t"], Float[Tensor, "b t d"]]:
        return self.encoder.explicit_step(self.index, tokens, self.layout, self.position)

    def token_tensors(self, tokens: Float[Tensor, "b t d"], index: Int[Tensor, "1"]) -> dict[str, Tensor]:
        block = cast(Block, self.encoder.blocks[self.index])
        terms = terms_of_layer(self.position.attend(self.layout, tokens.device), self.index)
        attention, own, normed = block.attention, tokens.index_select(1, index), block.attention_norm(tokens)
        query, keys, values = (x[0] for x in attention.queries_keys_values(normed, terms))
        scale = torch.full_like(query[:, 0, :1], attention.scale)
        bias = terms.bias
        rows = {} if bias is None else {"bias": bias.index_select(-2, index).squeeze(-2).expand(len(query), -1)}
        heads = head_tensors(query.index_select(1, index)[:, 0], keys, values, scale, **rows)
        attended = block.attention_scale(attention.project(heads["mixed"][None, :, None]))
        middle = own + attended
        middle_normed = block.mlp_norm(middle)
        hidden = block.mlp.hidden(middle_normed)
        mlp = block.mlp_scale(block.mlp.down(hidden))
        vectors = {
            "before": own, "normed": normed.index_select(1, index), "attended": attended, "middle": middle,
            "middle_normed": middle_normed, "hidden": hidden, "mlp": mlp, "output": middle + mlp,
        }  # fmt: skip
        return heads | {name: vector[0, 0] for name, vector in vectors.items()}
