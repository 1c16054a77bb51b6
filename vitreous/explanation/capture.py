"""Attention as it happens, a layer at a time and, where there are many tokens, some rows at a time.

Nothing here holds more than a layer's weights, and of those no more than CHUNK numbers unless all are asked for. What
comes into each layer is small beside them, and is all that is needed to compute them: a `Walk` holds that.

b: batch; t = p + n: tokens, prefix and patches; q: tokens that ask; gh, gw: grid height and width.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size, fail
from vitreous.model.pooling import AttentionPooling, AveragePooling, ClassTokenPooling
from vitreous.model.tokens import Features, Layout
from vitreous.model.vit import ViT

CHUNK = 2**24  # attention weights at once: 64 MiB in float32

# Who asks: a token by its number, a patch by its row and column, or None for whatever speaks for the whole image.
Query = int | Size | None


def go_on() -> None:
    """What long computations call between their steps. Others hand in what waits there, or raises in order to stop."""


@contextmanager
def at_rest(model: ViT) -> Iterator[None]:
    """In evaluation mode, so that nothing is dropped; afterwards in whichever it was."""
    was = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was)


def layout_of(model: ViT, images: Float[Tensor, "b c h w"]) -> Layout:
    return Layout(model.prefix.length, model.config.grid_for((images.shape[2], images.shape[3])))


def on_grid(values: Float[Tensor, "*b t"], layout: Layout) -> Float[Tensor, "*b gh gw"]:
    """What belongs to the patches, as a map; what belongs to the prefix is left out."""
    return values[..., layout.num_prefix_tokens :].reshape(*values.shape[:-1], *layout.grid)


@dataclass(frozen=True)
class Layer:
    """One layer and the tokens that come into it; its attention weights are computed when asked for."""

    index: int
    model: ViT
    before: Float[Tensor, "b t d"]
    layout: Layout

    @torch.no_grad()
    def weights(self, queries: slice = slice(None)) -> Float[Tensor, "b heads q t"]:
        return self.model.encoder.attention_weights(self.index, self.before, self.layout, self.model.position, queries)

    def chunks(self, start: int = 0) -> Iterator[tuple[slice, Float[Tensor, "b heads q t"]]]:
        """All rows from `start` on, some at a time."""
        b, t, _ = self.before.shape
        step = max(CHUNK // (b * self.model.config.num_heads * t), 1)
        for first in range(start, t, step):
            rows = slice(first, min(first + step, t))
            yield rows, self.weights(rows)


@torch.no_grad()
def each_layer(model: ViT, images: Float[Tensor, "b c h w"], layers: Sequence[int] | None = None) -> Iterator[Layer]:
    """The layers asked for, from the first to the last; none is computed beyond those."""
    wanted = set(which_layers(model, layers))
    with at_rest(model):
        tokens, layout = model.embed(*model.patchify(images))
        for index, (before, _) in enumerate(model.encoder.walk(tokens, layout, model.position)):
            if index in wanted:
                yield Layer(index, model, before, layout)
            if index >= max(wanted):
                return


@dataclass(frozen=True)
class Walk:
    """One pass through the model, kept: the tokens before the first layer and after each. Much can be asked of it."""

    model: ViT
    states: tuple[Float[Tensor, "b t d"], ...]  # z_0 to z_L
    layout: Layout

    def layer(self, index: int) -> Layer:
        """From 0; negative numbers count from the end."""
        (index,) = which_layers(self.model, [index])
        return Layer(index, self.model, self.states[index], self.layout)

    @torch.no_grad()
    def features(self, index: int = -1) -> Features:
        """After a layer, through the final norm: those of the last are the model's."""
        (index,) = which_layers(self.model, [index])
        normed, p = self.model.norm(self.states[index + 1]), self.layout.num_prefix_tokens
        return Features(normed[:, :p], normed[:, p:], self.layout.grid)


@torch.no_grad()
def walked(model: ViT, images: Float[Tensor, "b c h w"]) -> Walk:
    with at_rest(model):
        tokens, layout = model.embed(*model.patchify(images))
        after = [tokens for _, tokens in model.encoder.walk(tokens, layout, model.position)]
    return Walk(model, (tokens, *after), layout)


def which_layers(model: ViT, layers: Sequence[int] | None) -> list[int]:
    """Layers in ascending order, counted from 0; negative numbers count from the end.

    >>> from vitreous.model.presets import create
    >>> which_layers(create("ViT-Lite-6/4"), [-1, 2])
    [2, 5]
    """
    depth = model.config.depth
    for layer in layers or ():
        if not -depth <= layer < depth:
            fail("layer", layer, f"from 0 to {depth - 1} (or from -{depth} to -1, from the end)")
    return sorted({layer % depth for layer in layers}) if layers else list(range(depth))


def token_index(layout: Layout, query: int | Size) -> int:
    """The place in the sequence of a token, or of a patch given by its row and column.

    >>> token_index(Layout(1, (14, 20)), (2, 3))
    44
    """
    gh, gw = layout.grid
    if isinstance(query, tuple):
        if not (0 <= query[0] < gh and 0 <= query[1] < gw):
            fail("query", query, f"a row from 0 to {gh - 1} and a column from 0 to {gw - 1}")
        return layout.num_prefix_tokens + query[0] * gw + query[1]
    if not 0 <= query < layout.num_prefix_tokens + gh * gw:
        fail("query", query, f"a token from 0 to {layout.num_prefix_tokens + gh * gw - 1}")
    return query


def attention_from(
    model: ViT, images: Float[Tensor, "b c h w"], query: Query = None, layers: Sequence[int] | None = None
) -> Float[Tensor, "layers b heads t"]:
    """What one token takes from every token, in each layer and head. Rows sum to 1.

    Without a query it is the class token; in a model without one, the mean over all patches that ask.
    """
    return torch.stack([_row(layer, query) for layer in each_layer(model, images, layers)])


def _row(layer: Layer, query: Query) -> Float[Tensor, "b heads t"]:
    if query is None and not layer.model.config.class_token:
        patches = sum(weights.sum(dim=2) for _, weights in layer.chunks(start=layer.layout.num_prefix_tokens))
        return cast(Tensor, patches) / (layer.before.shape[1] - layer.layout.num_prefix_tokens)
    index = token_index(layer.layout, query or 0)
    return layer.weights(slice(index, index + 1))[:, :, 0]


def readout(model: ViT, features: Features) -> Float[Tensor, "b t"]:
    """The share of every token in the vector that stands for the image: all of the class token, the mean, or MAP's."""
    weights = pooling_of(model).weights(features).mean(dim=1)
    if model.distillation_head is not None:
        weights[:, :2] = 0.5  # its two heads are averaged
    return weights


def pooling_of(model: ViT) -> ClassTokenPooling | AveragePooling | AttentionPooling:
    return cast(ClassTokenPooling | AveragePooling | AttentionPooling, model.pool)


def attention_map(model: ViT, images: Float[Tensor, "b c h w"], layer: int = -1) -> Float[Tensor, "b gh gw"]:
    """Where the image's vector looks, averaged over heads; by MAP's own attention where the last layer is asked for."""
    return attention_of(walked(model, images), layer)


@torch.no_grad()
def attention_of(walk: Walk, layer: int = -1) -> Float[Tensor, "b gh gw"]:
    """`attention_map`, of a pass that was kept."""
    model = walk.model
    if isinstance(model.pool, AttentionPooling) and layer in (-1, model.config.depth - 1):
        return on_grid(readout(model, walk.features()), walk.layout)
    return on_grid(_row(walk.layer(layer), None).mean(dim=1), walk.layout)
