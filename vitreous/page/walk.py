"""The walk on the page: one patch through the model, with the numbers of one layer.

t: tokens; d: width; h: heads; e: head dimension.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from safetensors.torch import save
from torch import Tensor

from vitreous.explanation.attention_and_logit_lens import CapturedForward
from vitreous.model.attention import terms_of_layer
from vitreous.model.block import Block, SwiGluMlp
from vitreous.model.options import AttentionPool, ClassToken, GlobalAverage
from vitreous.model.patch import cut
from vitreous.model.position import PositionEmbedding
from vitreous.model.protocol import Model, UnsupportedModel
from vitreous.model.tokens import Layout
from vitreous.model.vit import ViT
from vitreous.page.results import NotFinite

PER_HEAD = ("query", "keys", "values", "products", "bias", "weights")  # tensors whose first dimension is the head


def global_attention(model: Model, purpose: str) -> ViT:
    """Return the backbone of a model. If its tokens do not all attend to each other, raise an error."""
    if not model.config.backbone.num_tokens:
        reason = "needs a model whose tokens all attend to each other"
        raise UnsupportedModel(f"{purpose} {reason}, but the model is a {model.config.summary}")
    return cast(ViT, model.backbone)


def walk_facts(backbone: Model) -> dict[str, Any] | None:
    """Return the parts that a model has, from which the page chooses the steps of the walk, or None without a walk."""
    if not backbone.config.num_tokens:
        return None
    model = cast(ViT, backbone)
    config, position = model.config, model.position
    terms = position.attend(Layout(config.num_prefix_tokens, config.grid), next(model.parameters()).device)
    kinds = {
        "added": position.added is not None,
        "rotary": terms.rotation is not None,
        "bias": terms.bias is not None,
        "conditional": type(position).between is not PositionEmbedding.between,
    }
    block = cast(Block, model.encoder.blocks[0])
    return {
        "positions": [kind for kind, present in kinds.items() if present],
        "pool": {ClassToken: "class", GlobalAverage: "mean", AttentionPool: "attention"}.get(
            type(config.pool), "other"
        ),
        "distilled": config.distillation_token,
        "hybrid": config.stem is not None,
        "patch": list(config.patch_size),
        "head_dim": block.attention.head_dim,
        "scale": block.attention.scale,
        "hidden": config.mlp_width,
        "gated": isinstance(block.mlp, SwiGluMlp),
        "layer_scale": config.layer_scale is not None,
        "pre_norm": config.pre_norm,
    }


def walk_bytes(captured: CapturedForward, layer: int, head: int, patch: int) -> bytes:
    """Encode the tensors of one patch, layer and head as a safetensors file."""
    index = torch.tensor([patch], device=captured.images.device)
    found = shared_tensors(captured, index) | layer_tensors(captured, layer, index)
    found |= {name: found[name][head] for name in PER_HEAD if name in found}
    if not all(tensor.isfinite().all() for tensor in found.values()):
        raise NotFinite("the tensors of this patch are not finite")
    return save({name: tensor.float().cpu().contiguous() for name, tensor in found.items()})


@torch.no_grad()
def shared_tensors(captured: CapturedForward, patch: Int[Tensor, "1"]) -> dict[str, Tensor]:
    """Return the tensors of a patch before and after the layers.

    pixels: the values that are projected, in the order (channel, row, column).
    projected: x_p E. position: the row of E_pos, only if positions are added.
    states: the token before the first layer and after each layer [layers + 1, d].
    pooled: the vector that the head gets. pooling: the weight of each token in it [t].
    """
    model, layout = global_attention(captured.model, "the walk"), captured.layout
    token = patch + layout.num_prefix_tokens
    patches, _ = model.patchify(captured.images)
    tensors = {"pixels": patch_pixels(captured), "projected": patches}
    if model.position.added is not None:
        zeros = torch.zeros_like(captured.states[0])
        tensors["position"] = model.position.embed(zeros, layout)[:, layout.num_prefix_tokens :]
    found = {name: tensor.index_select(1, patch)[0, 0] for name, tensor in tensors.items()}
    features = captured.features()
    return {
        **found,
        "states": torch.cat([state.index_select(1, token)[0] for state in captured.states]),
        "pooled": model.pool_features(features)[0],
        "pooling": captured.pooling_weights()[0],
    }


def patch_pixels(captured: CapturedForward) -> Float[Tensor, "1 n pixels"]:
    """Return the patches before the projection: pixels or, in a hybrid model, values of the stem's feature map."""
    model = cast(ViT, captured.model)
    whole = model.stem(captured.images)
    (ph, pw), (gh, gw) = model.config.patch_size, captured.layout.grid
    return cut(F.pad(whole, (0, gw * pw - whole.shape[3], 0, gh * ph - whole.shape[2])), (ph, pw))


@torch.no_grad()
def layer_tensors(captured: CapturedForward, layer: int, patch: Int[Tensor, "1"]) -> dict[str, Tensor]:
    """Return the tensors of a patch in one layer, for all heads.

    normed: LN(z). query [h, e], keys and values [h, t, e]. products: q k / sqrt(e) [h, t]. bias [h, t]: added to the
    products, only if positions are biases. weights [h, t]: their softmax. mixed [h, e]: the weighted sums of values.
    attended: the output of the attention. middle: z' of equation 2. middle_normed: LN(z'). hidden: the hidden layer of
    the MLP. mlp: its output. output: z of equation 3.
    """
    model, before, layout = cast(ViT, captured.model), captured.states[layer], captured.layout
    block, token = cast(Block, model.encoder.blocks[layer]), patch + layout.num_prefix_tokens
    attention, terms = block.attention, terms_of_layer(model.position.attend(layout, before.device), layer)
    own, normed = before.index_select(1, token), block.attention_norm(before)
    query, keys, values = attention.queries_keys_values(normed, terms)
    products = query.index_select(2, token) @ keys.transpose(-2, -1) * attention.scale
    bias = None if terms.bias is None else terms.bias.index_select(-2, token).expand_as(products)
    weights = (products if bias is None else products + bias).softmax(dim=-1)
    mixed = weights @ values
    attended = block.attention_scale(attention.project(mixed))
    middle = own + attended
    middle_normed = block.mlp_norm(middle)
    hidden = block.mlp.hidden(middle_normed)
    mlp = block.mlp_scale(block.mlp.down(hidden))
    return {
        "normed": normed.index_select(1, token)[0, 0],
        "query": query.index_select(2, token)[0, :, 0],
        "keys": keys[0],
        "values": values[0],
        "products": products[0, :, 0],
        **({} if bias is None else {"bias": bias[0, :, 0]}),
        "weights": weights[0, :, 0],
        "mixed": mixed[0, :, 0],
        "attended": attended[0, 0],
        "middle": middle[0, 0],
        "middle_normed": middle_normed[0, 0],
        "hidden": hidden[0, 0],
        "mlp": mlp[0, 0],
        "output": (middle + mlp)[0, 0],
    }
