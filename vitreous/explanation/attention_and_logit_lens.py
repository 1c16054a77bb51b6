"""Attention maps, attention distance and logit lens of a model, computed from one captured forward pass.

Only the tokens before and after each layer are kept. Attention weights are recomputed from these tokens on demand, one
layer and at most CHUNK values at a time.

b: batch; t = p + n: prefix and patch tokens; q: queries; m: keys of a query; gh, gw: grid height and width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import Size, check_whole, fail
from vitreous.inference.forward_pass import evaluation_mode
from vitreous.model.attention_layer import AttentionLayer, dense, times
from vitreous.model.base_config import ModelConfig
from vitreous.model.pooling import AttentionPooling
from vitreous.model.protocol import Model
from vitreous.model.tokens import Features, Layout

CHUNK = 2**24  # maximum number of attention weights per chunk: 64 MiB in float32


def no_step() -> None:
    """Do nothing. This is the default of `between` callbacks, which run between steps and may wait or raise."""


@dataclass(frozen=True)
class CapturedForward:
    """Tokens of one forward pass. Layer indices start at 0; negative ones count from the end."""

    model: Model
    images: Float[Tensor, "b c h w"]
    layers: tuple[AttentionLayer, ...]
    inputs: tuple[Float[Tensor, "b _ _"], ...]  # tokens before each layer
    outputs: tuple[Float[Tensor, "b _ _"], ...]  # tokens after each layer

    @property
    def states(self) -> tuple[Float[Tensor, "b _ _"], ...]:
        """Tokens before the first layer and after each layer: z_0 to z_L."""
        return (self.inputs[0], *self.outputs)

    @property
    def nbytes(self) -> int:
        """Size of all tensors. Layers share some: the output of one is usually the input of the next one."""
        indices = (tensor for layer in self.layers for tensor in layer.index_tensors)
        return sum({id(tensor): tensor.nbytes for tensor in (*self.inputs, *self.outputs, *indices)}.values())

    @property
    def layout(self) -> Layout:
        """Layout of the map: that of the first layer, or the last grid of a model without attention."""
        return self.layers[0].layout if self.layers else Layout(0, self.model.config.map_grid)

    @torch.no_grad()
    def weights(self, layer: int, queries: slice = slice(None)) -> Float[Tensor, "b heads q m"]:
        """Compute the attention weights of a layer for all queries or for a slice of the queries."""
        (layer,) = layer_indices(self.model.config, [layer])
        return self.layers[layer].weights(self.inputs[layer], queries)

    def chunks(self, layer: int, start: int = 0) -> Iterator[tuple[slice, Float[Tensor, "b heads q m"]]]:
        """Yield the attention weights of a layer in chunks of queries, beginning with query `start`."""
        (layer,) = layer_indices(self.model.config, [layer])
        (b, t, _), keys = self.inputs[layer].shape, self.layers[layer].keys
        m = t if keys is None else keys.shape[1]
        step = max(CHUNK // (b * self.model.config.attention_shapes[layer].heads * m), 1)
        for first in range(start, t, step):
            rows = slice(first, min(first + step, t))
            yield rows, self.weights(layer, rows)

    def attention_from(
        self, layer: int, query: int | Size | Literal["patches"] | None = None
    ) -> Float[Tensor, "b heads t"]:
        """Return the attention weights of one query, given as a token index or as the (row, column) of a patch.

        If `query` is "patches", return the mean over all patches. If it is None, return the weights of the class token
        or, without a class token, the mean over all patches.
        """
        (layer,) = layer_indices(self.model.config, [layer])
        p, keys, t = self.layout.num_prefix_tokens, self.layers[layer].keys, self.inputs[layer].shape[1]
        if query == "patches" or (query is None and not self.model.config.class_token):
            total = sum(_sum_of_rows(weights, keys, rows, t) for rows, weights in self.chunks(layer, start=p))
            return cast(Tensor, total) / (t - p)
        index = self.token_index(layer, query or 0)
        rows = slice(index, index + 1)
        return dense(self.weights(layer, rows), None if keys is None else keys[rows], t)[:, :, 0]

    def token_index(self, layer: int, query: int | Size) -> int:
        """Return the index of a query in the sequence of a layer: a token index, or a (row, column) of the map."""
        if isinstance(query, int):
            return token_index(self.layers[layer].layout, query)
        token_index(self.layout, query)  # raises if it is outside the map
        down, across = self.scale(layer)
        return token_index(self.layers[layer].layout, (query[0] // down, query[1] // across))

    def scale(self, layer: int) -> Size:
        """Return the height and width of a patch of a layer in patches of the map."""
        if not self.layers:
            return (1, 1)
        (fine_h, fine_w), (h, w) = (self.model.config.attention_shapes[each].stride for each in (0, layer))
        return (h // fine_h, w // fine_w)

    @torch.no_grad()
    def features(self, layer: int = -1) -> Features:
        """Return the features after a layer, with the final norm applied."""
        if not self.layers:
            with evaluation_mode(self.model):
                return self.model.features(self.images)
        (layer,) = layer_indices(self.model.config, [layer])
        return self.model.output_features(self.outputs[layer], self.layers[layer].layout)

    def logits(self, layer: int = -1) -> Float[Tensor, "b classes"]:
        """Apply the final norm, pooling and head to the tokens after a layer (the "logit lens")."""
        with evaluation_mode(self.model):
            return self.model.classify(self.features(layer)).float()

    def lens(self, layers: Sequence[int] | None = None) -> Float[Tensor, "layers b classes"]:
        """Return the logits after each of `layers` (default: all layers that the head can read)."""
        return torch.stack([self.logits(layer) for layer in lens_layers(self.model.config, layers)])

    @torch.no_grad()
    def pooling_weights(self) -> Float[Tensor, "b t"]:
        """Return the weight of each output token in the pooled feature vector."""
        return pooling_weights(self.model, self.features())

    def attention_map(self, layer: int = -1) -> Float[Tensor, "b gh gw"]:
        """Return the attention weight of each patch, averaged over heads.

        For the last layer of a model with attention pooling, the weights are those of the pooling query. Otherwise they
        are those of the class token or, without a class token, the mean over all patches.
        """
        if isinstance(self.model.pool, AttentionPooling) and layer in (-1, len(self.layers) - 1):
            return self.on_map(self.pooling_weights())
        return self.on_map(self.attention_from(layer).mean(dim=1), layer)

    def on_map(self, values: Float[Tensor, "*b t"], layer: int = 0) -> Float[Tensor, "*b gh gw"]:
        """Drop the prefix tokens of a layer, reshape the patch values to its grid, and enlarge them to the map."""
        prefix, grid, _ = self.layers[layer].layout
        return self.enlarged(values[..., prefix:].reshape(*values.shape[:-1], *grid), layer)

    def enlarged(self, values: Float[Tensor, "*b lh lw"], layer: int) -> Float[Tensor, "*b gh gw"]:
        """Repeat values on the grid of a layer, whose patches can be larger than those of the map."""
        (down, across), (gh, gw) = self.scale(layer), self.layout.grid
        return values.repeat_interleave(down, -2).repeat_interleave(across, -1)[..., :gh, :gw]


def capture(model: Model, images: Float[Tensor, "b c h w"]) -> CapturedForward:
    """Run the model once in evaluation mode and keep the tokens of each layer. A model without attention has none."""
    if not model.config.has_attention:
        return CapturedForward(model, images, (), (), ())
    with evaluation_mode(model):
        return capture_steps(model, images)


def capture_steps(model: Model, images: Float[Tensor, "b c h w"]) -> CapturedForward:
    """Do the same in the current mode."""
    layers, inputs, outputs = zip(*model.attention_steps(images), strict=True)
    return CapturedForward(model, images, layers, inputs, outputs)


def capture_traced(model: Model, images: Float[Tensor, "b c h w"], layers: Sequence[AttentionLayer]) -> CapturedForward:
    """Capture a pass with the layers of an earlier one, whose index tensors become constants of a traced graph."""
    tokens, inputs, outputs = first_tokens(model, images), list[Tensor](), list[Tensor]()
    for layer in layers:
        inputs.append(tokens if layer.merge is None else layer.merge.merged(tokens))
        tokens = layer.explicit_step(inputs[-1])[1]
        outputs.append(tokens)
    return CapturedForward(model, images, tuple(layers), tuple(inputs), tuple(outputs))


def first_tokens(model: Model, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b _ _"]:
    """Return the tokens before the first layer."""
    return next(iter(model.attention_steps(images))).before


def _sum_of_rows(weights: Tensor, keys: Tensor | None, rows: slice, tokens: int) -> Float[Tensor, "b heads t"]:
    if keys is None:
        return weights.sum(dim=2)
    ones, heads = weights.new_ones(len(weights), weights.shape[2]), weights.unbind(dim=1)
    return torch.stack([times(ones, each, keys[rows], tokens) for each in heads], dim=1)


def pooling_weights(model: Model, features: Features) -> Float[Tensor, "b t"]:
    weights = model.pool.weights(features).mean(dim=1)
    if not model.config.distillation_token:
        return weights
    return torch.cat([torch.full_like(weights[:, :2], 0.5), weights[:, 2:]], dim=1)  # the two heads are averaged


def layer_indices(config: ModelConfig, layers: Sequence[int] | None) -> list[int]:
    """Check layer numbers. Return sorted, non-negative indices. None or an empty sequence means all layers."""
    depth = len(config.attention_shapes)
    for layer in layers or ():
        if not -depth <= layer < depth:
            allowed = f"an integer from 0 to {depth - 1} (or -{depth} to -1, counting from the end)"
            fail("layer", layer, allowed if depth else "omitted for a model without attention layers")
    return sorted({layer % depth for layer in layers}) if layers else list(range(depth))


def lens_layers(config: ModelConfig, layers: Sequence[int] | None) -> list[int]:
    """Return the layers whose tokens have the width that the head reads: all, or those of the last stage of a Swin."""
    shapes = config.attention_shapes
    return [layer for layer in layer_indices(config, layers) if shapes[layer].width == shapes[-1].width]


def by_head(layers: Sequence[Float[Tensor, "_ *values"]]) -> Float[Tensor, "layers heads *values"]:
    """Stack values of the heads of each layer, with NaN for heads that a layer lacks."""
    most = max(map(len, layers))
    return torch.stack([torch.cat([row, row.new_full((most - len(row), *row.shape[1:]), torch.nan)]) for row in layers])


def token_index(layout: Layout, query: int | Size) -> int:
    """Return the sequence index of a query: a token index, or the (row, column) of a patch."""
    gh, gw = layout.grid
    if isinstance(query, tuple):
        if not (0 <= query[0] < gh and 0 <= query[1] < gw):
            fail("query", query, f"a patch in rows 0 to {gh - 1} and columns 0 to {gw - 1}")
        return layout.num_prefix_tokens + query[0] * gw + query[1]
    if not 0 <= query < layout.num_prefix_tokens + gh * gw:
        fail("query", query, f"a token index from 0 to {layout.num_prefix_tokens + gh * gw - 1}")
    return query


def check_target(model: Model, target: int) -> None:
    check_whole("num_classes", model.config.num_classes, 1, 2**31)
    check_whole("target", target, 0, model.config.num_classes - 1)


# ---- Mean attention distance -----------------------------------------------------------------------------------------
# Analogous to the receptive field of a convolution (ViT paper, figure 7, right, and appendix D.7).


def distances(grid: Size, patch_stride: Size, rows: slice = slice(None)) -> Float[Tensor, "q n"]:
    """Return the distances in pixels between the centres of the patches in the slice `rows` and of all patches."""
    y, x = (torch.arange(count) * float(stride) for count, stride in zip(grid, patch_stride, strict=True))
    centres = torch.cartesian_prod(y, x)
    return torch.cdist(centres[rows], centres, compute_mode="donot_use_mm_for_euclid_dist")


def attention_distance(
    captured: CapturedForward, layers: Sequence[int] | None = None, between: Callable[[], None] = no_step
) -> Float[Tensor, "layers heads"]:
    """Compute the attention distance of each head in pixels, averaged over all patches and images.

    Prefix tokens and padding are ignored.
    """
    device, means = captured.images.device, []
    for layer in layer_indices(captured.model.config, layers):
        between()
        (p, grid, _), shape = captured.layers[layer].layout, captured.model.config.attention_shapes[layer]
        total = torch.zeros(shape.heads, device=device)
        keys = captured.layers[layer].keys
        for rows, weights in captured.chunks(layer, start=p):
            apart = distances(grid, shape.stride, slice(rows.start - p, rows.stop - p)).to(device)
            patches = weights[..., p:].float()
            apart = apart if keys is None else apart.gather(1, keys[rows])
            patches = patches / patches.sum(dim=-1, keepdim=True).clamp_min(1e-30)
            total += (patches * apart).sum(dim=-1).sum(dim=(0, 2))
        means.append(total / (len(captured.images) * grid[0] * grid[1]))
    return by_head(means)
