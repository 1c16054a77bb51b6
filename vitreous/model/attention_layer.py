"""Attention layers of a forward pass. Explanations use only this interface, so that they work for every model family.

The attention weights of a layer are a matrix with one row per query token. Rows contain only the tokens that a query
attends to: all tokens (m = t) in a Vision Transformer, or the tokens of its window in a Swin Transformer.

b: batch; t: tokens; s: tokens of the previous layer; q: queries; m: keys of a query; d, e: widths.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from vitreous.model.tokens import Layout


class AttentionLayer(ABC):
    """An attention layer of a model, for tokens of one layout."""

    layout: Layout
    keys: Int[Tensor, "t m"] | None = None  # tokens that each token attends to, see `times`; None: all tokens
    merge: "Merge | None" = None  # applied to the output of the previous layer

    @property
    def index_tensors(self) -> Sequence[Tensor]:
        """Tensors that the layer computed from the image size. Layers can share them."""
        return ()

    @abstractmethod
    def weights(self, tokens: Float[Tensor, "b t d"], queries: slice = slice(None)) -> Float[Tensor, "b heads q m"]:
        """Return the attention weights for the input tokens of the layer. `queries` selects the rows to return."""

    @abstractmethod
    def explicit_step(
        self, tokens: Float[Tensor, "b t d"]
    ) -> tuple[Float[Tensor, "b *weights"], Float[Tensor, "b t d"]]:
        """Return the attention weights and the output of the layer. Gradients of the output reach the weights."""

    @abstractmethod
    def token_tensors(self, tokens: Float[Tensor, "b t d"], index: Int[Tensor, "1"]) -> dict[str, Tensor]:
        """Return the tensors of one token in the layer, for the walk on the page (see `vitreous.page.walk`)."""

    def rows(self, weights: Float[Tensor, "b *weights"]) -> Float[Tensor, "b heads t m"]:
        """Arrange the weights that `explicit_step` returns, or their gradients, as rows like those of `weights`."""
        return weights


@dataclass(frozen=True)
class Merge:
    """Merges tokens of the previous layer."""

    merged: Callable[[Tensor], Tensor]  # [b, s, d] to [b, t, e]: the merged tokens
    parts: Callable[[Tensor], Tensor]  # [b, s, d] to [b, t, m, e]: what each of m tokens adds to a merged token
    token_tensors: Callable[[Tensor, Tensor], dict[str, Tensor]]  # of one merged token, see `vitreous.page.walk`
    layout: Layout  # of the previous layer
    keys: Int[Tensor, "t m"]  # tokens that are merged into each token, see `times`
    weights: Float[Tensor, "t m"]  # equal weights; 0 beyond the edge


class AttentionStep(NamedTuple):
    """An attention layer of a forward pass, and the tokens before and after it."""

    layer: AttentionLayer
    before: Float[Tensor, "b t d"]
    after: Float[Tensor, "b t d"]


def head_tensors(
    query: Float[Tensor, "heads e"],
    keys: Float[Tensor, "heads m e"],
    values: Float[Tensor, "heads m e"],
    scale: Float[Tensor, "heads 1"],
    **added: Float[Tensor, "heads m"],
) -> dict[str, Tensor]:
    """Return the attention of one query in all heads, by name. `added` are the biases of its products."""
    products = (query[:, None] @ keys.transpose(-2, -1))[:, 0] * scale
    weights = sum(added.values(), start=products).softmax(dim=-1)
    mixed = (weights[:, None] @ values)[:, 0]
    found = {"query": query, "keys": keys, "values": values, "scale": scale, "products": products, **added}
    return {**found, "weights": weights, "mixed": mixed}


def times(
    row: Float[Tensor, "b q"], weights: Float[Tensor, "b q m"], keys: Int[Tensor, "q m"] | None, tokens: int
) -> Float[Tensor, "b t"]:
    """Multiply a row vector by a matrix of q rows and t = `tokens` columns.

    If `keys` is None, `weights` is this matrix. Otherwise each row has m entries, whose columns are in `keys`; entries
    that are not used, such as those of padding, have weight 0.
    """
    if keys is None:
        return (row[:, None] @ weights)[:, 0]
    products = (row[..., None] * weights).flatten(1)
    return row.new_zeros(row.shape[0], tokens).scatter_add(1, keys.flatten().expand_as(products), products)


def dense(weights: Float[Tensor, "*b q m"], keys: Int[Tensor, "q m"] | None, tokens: int) -> Float[Tensor, "*b q t"]:
    """Return the matrix of `times` with all columns."""
    if keys is None:
        return weights
    return weights.new_zeros(*weights.shape[:-1], tokens).scatter_add(-1, keys.expand_as(weights), weights)
