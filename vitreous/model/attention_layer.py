"""Attention layers of a forward pass. Explanations use only this interface, so that they work for every model family.

The attention weights of a layer are a matrix with one row per query token. Rows contain only the tokens that a query
attends to: all tokens (m = t) in a Vision Transformer, or the tokens of a window.

b: batch; t: tokens; q: queries; m: keys of a query; d: width.
"""

from abc import ABC, abstractmethod
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from vitreous.model.tokens import Layout


class AttentionLayer(ABC):
    """An attention layer of a model, for tokens of one layout."""

    layout: Layout
    keys: Int[Tensor, "t m"] | None = None  # indices of the tokens that each token attends to; None: all tokens

    @abstractmethod
    def weights(self, tokens: Float[Tensor, "b t d"], queries: slice = slice(None)) -> Float[Tensor, "b heads q m"]:
        """Return the attention weights for the input tokens of the layer. `queries` selects the rows to return."""

    @abstractmethod
    def explicit_step(
        self, tokens: Float[Tensor, "b t d"]
    ) -> tuple[Float[Tensor, "b heads t m"], Float[Tensor, "b t d"]]:
        """Return the attention weights and the output of the layer. Gradients of the output reach the weights."""


class AttentionStep(NamedTuple):
    """An attention layer of a forward pass, and the tokens before and after it."""

    layer: AttentionLayer
    before: Float[Tensor, "b t d"]
    after: Float[Tensor, "b t d"]
