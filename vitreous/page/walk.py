"""The walk on the page: one patch through the model, with the numbers of one layer.

t: tokens; m: keys of a token; d: width; h: heads; e: head dimension.
"""

from dataclasses import asdict
from typing import Any, cast

import torch
from jaxtyping import Int
from safetensors.torch import save
from torch import Tensor

from vitreous.explanation.attention_and_logit_lens import CapturedForward
from vitreous.model.protocol import Model, UnsupportedModel, require_attention
from vitreous.model.vit import ViT
from vitreous.page.results import NotFinite

PER_HEAD = ("query", "keys", "values", "scale", "products", "bias", "mask", "weights")  # first dimension: the head


def global_attention(model: Model, purpose: str) -> ViT:
    """Return the backbone of a model. If its tokens do not all attend to each other, raise an error."""
    if not model.config.backbone.num_tokens:
        reason = "needs a model whose tokens all attend to each other"
        raise UnsupportedModel(f"{purpose} {reason}, but the model is a {model.config.summary}")
    return cast(ViT, model.backbone)


def walk_facts(backbone: Model) -> dict[str, Any]:
    """Return the parts that a model has, from which the page chooses the steps of the walk."""
    return asdict(backbone.walk_parts())


def walk_bytes(captured: CapturedForward, layer: int, head: int, patch: int) -> bytes:
    """Encode the tensors of one patch, layer and head as a safetensors file."""
    index = torch.tensor([patch], device=captured.images.device)
    found = shared_tensors(captured, index) | layer_tensors(captured, layer, index)
    found |= {name: found[name][head] for name in PER_HEAD if name in found}
    if not all(tensor.isfinite().all() for tensor in found.values()):
        raise NotFinite("the tensors of this patch are not finite")
    return save({name: tensor.float().cpu().contiguous() for name, tensor in found.items()})


def token_of(captured: CapturedForward, layer: int, patch: Int[Tensor, "1"]) -> Int[Tensor, "1"]:
    """Return the index of the token of a layer that covers a patch of the map."""
    layout, (down, across), width = captured.layers[layer].layout, captured.scale(layer), captured.layout.grid[1]
    if (down, across) == (1, 1):
        return patch + layout.num_prefix_tokens
    row, column = patch // (width * down), patch % width // across
    return row * layout.grid[1] + column + layout.num_prefix_tokens


@torch.no_grad()
def shared_tensors(captured: CapturedForward, patch: Int[Tensor, "1"]) -> dict[str, Tensor]:
    """Return the tensors of a patch before and after the layers.

    pixels: the values that are projected, in the order (channel, row, column).
    projected: x_p E. position: the row of E_pos, only if positions are added.
    states: the token before the first layer and after each layer, one after the other. Their widths can differ.
    pooled: the vector that the head gets. pooling: the weight of each token of the last layer in it [t].
    """
    model = require_attention(captured.model, "the walk")
    tensors = model.patch_tensors(captured.images)
    tokens = [token_of(captured, layer, patch) for layer in range(len(captured.layers))]
    states = [state.index_select(1, token)[0, 0] for state, token in zip(captured.outputs, tokens, strict=True)]
    return {
        **{name: tensor.index_select(1, patch)[0, 0] for name, tensor in tensors.items()},
        "states": torch.cat([captured.inputs[0].index_select(1, tokens[0])[0, 0], *states]),
        "pooled": model.pool_features(captured.features())[0],
        "pooling": captured.pooling_weights()[0],
    }


@torch.no_grad()
def layer_tensors(captured: CapturedForward, layer: int, patch: Int[Tensor, "1"]) -> dict[str, Tensor]:
    """Return the tensors of a patch in one layer, for all heads.

    before: z. normed: LN(z), only if norms are before attention and MLP. query [h, e], keys and values [h, m, e].
    scale [h, 1]: the factor of the products, 1 / sqrt(e) or, for cosine attention, the learned one; query and keys then
    have length 1. products: query times keys times scale [h, m]. bias and mask [h, m]: added to the products, only if
    the layer has them. weights [h, m]: the softmax of the sum. mixed [h, e]: the weighted sums of values.
    attended: the output of the attention. middle: z' of equation 2. middle_normed: LN(z'). hidden: the hidden layer of
    the MLP. mlp: its output. output: z of equation 3.

    If norms are after attention and MLP, attention_output and mlp_output are the values before them.

    tokens [m]: the index of each key on the grid of the layer, or -1 for padding; only if tokens attend to windows.

    If tokens were merged before the layer: merge_tokens [4, d / 2], in the order (y, x), (y + 1, x), (y, x + 1),
    (y + 1, x + 1), with zeros beyond the edge, and merge_between, their value between the norm and the projection.
    """
    step = captured.layers[layer]
    token = token_of(captured, layer, patch)
    merged = {} if step.merge is None else step.merge.token_tensors(captured.outputs[layer - 1], token)
    return merged | step.token_tensors(captured.inputs[layer], token)
