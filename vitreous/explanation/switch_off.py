"""Vision Transformers with heads, layers or positions switched off, and the effect of each head on a prediction.

b: batch; t: tokens; d: width; h: heads; e: head dimension.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitreous.explanation.attention_and_logit_lens import CapturedForward, no_step
from vitreous.inference.forward_pass import evaluation_mode
from vitreous.model.attention import AttentionTerms, terms_of_layer
from vitreous.model.block import Block
from vitreous.model.position import AddedPosition, PositionEmbedding
from vitreous.model.protocol import Model, UnsupportedModel
from vitreous.model.tokens import Layout
from vitreous.model.top_labels import class_probabilities
from vitreous.model.vit import ViT

M = TypeVar("M", bound=Model)


@dataclass(frozen=True)
class SwitchedOff:
    """Parts of a model that do nothing."""

    heads: frozenset[tuple[int, int]] = frozenset()  # (layer, head)
    layers: frozenset[int] = frozenset()
    positions: Literal["kept", "zero", "shuffled"] = "kept"


def switch_off(model: M, off: SwitchedOff) -> M:
    """Return a copy of a model without some parts. It shares the weights of the model.

    The output of a head is replaced by zeros before the heads are joined; a layer returns its input. Zero positions
    leave the order of the patches unknown to the model. Shuffled positions belong to other patches.
    """
    if not model.config.backbone.num_tokens:
        reason = "needs a model whose tokens all attend to each other"
        raise UnsupportedModel(f"switching parts off {reason}, but the model is a {model.config.summary}")
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    clone = copy.deepcopy(model, shared)
    vit = cast(ViT, clone.backbone)
    for layer in off.layers:
        block = cast(Block, vit.encoder.blocks[layer])
        block.attention_scale, block.mlp_scale = ZeroOutput(), ZeroOutput()
    for layer in {layer for layer, _ in off.heads}:
        attention = cast(Block, vit.encoder.blocks[layer]).attention
        keep = torch.ones(attention.num_heads, attention.head_dim, device=attention.output.weight.device)
        keep[[head for other, head in off.heads if other == layer]] = 0
        attention.output_norm = nn.Sequential(Mask(keep.flatten()), attention.output_norm)
    if off.positions == "zero":
        vit.position = PositionEmbedding()
    if off.positions == "shuffled":
        vit.position = ShuffledPosition(vit.position)
    return clone


class ZeroOutput(nn.Module):
    def forward(self, tokens: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return tokens * 0  # relevance needs a gradient


class Mask(nn.Module):
    def __init__(self, keep: Float[Tensor, "d"]):
        super().__init__()
        self.keep = nn.Buffer(keep)

    def forward(self, joined: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return torch.where(self.keep > 0, joined, 0.0)


class ShuffledPosition(PositionEmbedding):
    """Gives each patch the position of another one, always in the same random order."""

    def __init__(self, position: PositionEmbedding):
        super().__init__()
        self.position = position

    @property
    def added(self) -> AddedPosition | None:
        return self.position.added

    def _order(self, layout: Layout) -> Tensor:
        p, n = layout.num_prefix_tokens, layout.grid[0] * layout.grid[1]
        shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(0)) + p
        return torch.cat([torch.arange(p), shuffled])

    def embed(self, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        return tokens + self.position.embed(torch.zeros_like(tokens), layout)[:, self._order(layout)]

    def attend(self, layout: Layout, device: torch.device) -> AttentionTerms:
        terms, order = self.position.attend(layout, device), self._order(layout)
        rotation = (
            None if terms.rotation is None else (terms.rotation[0][..., order, :], terms.rotation[1][..., order, :])
        )
        bias = None if terms.bias is None else terms.bias[..., order, :][..., order]
        return terms._replace(rotation=rotation, bias=bias)

    def between(self, layer: int, tokens: Float[Tensor, "b t d"], layout: Layout) -> Float[Tensor, "b t d"]:
        order = self._order(layout)
        return self.position.between(layer, tokens[:, order.argsort()], layout)[:, order]


@torch.no_grad()
def head_effects(
    captured: CapturedForward, target: int, batch_size: int = 16, between: Callable[[], None] = no_step
) -> Float[Tensor, "layers h"]:
    """Return how much the probability of a class drops if a head is switched off, for one image.

    The layers before that of the head are not computed again.
    """
    model, layout = cast(ViT, captured.model), captured.layout
    terms = model.position.attend(layout, captured.images.device)
    whole = class_probabilities(captured.logits()[0], model.config)[target]
    effects = []
    with evaluation_mode(model):
        for layer, before in enumerate(captured.inputs):
            block = cast(Block, model.encoder.blocks[layer])
            attention = block.attention
            _, _, values = attention.queries_keys_values(block.attention_norm(before), terms_of_layer(terms, layer))
            mixed = captured.weights(layer) @ values
            others = 1 - torch.eye(attention.num_heads, device=before.device)
            drops = []
            for some in torch.split(others, batch_size):
                between()
                tokens = before + block.attention_scale(attention.project(mixed * some[:, :, None, None]))
                tokens = tokens + block.mlp_scale(block.mlp(block.mlp_norm(tokens)))
                tokens = model.position.between(layer, tokens, layout)
                for later in range(layer + 1, len(captured.inputs)):
                    tokens = model.encoder.step(later, tokens, terms, layout, model.position)
                logits = model.classify(model.output_features(tokens, layout))
                drops.append(whole - class_probabilities(logits, model.config)[:, target])
            effects.append(torch.cat(drops))
    return torch.stack(effects)
