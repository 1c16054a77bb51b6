"""Which patches speak for a class: gradient times attention, through all layers (Chefer et al., arXiv 2103.15679).

Where attention flows and the class score would rise with it, there is relevance: the positive part of A * dy/dA,
averaged over heads, is what a layer hands on, beside the residual. The product of all layers, read at the token that
becomes the answer, is the map.

The product is built from the last layer down, and so are the gradients: every layer is computed again from the tokens
that came into it. So one layer's weights are held at a time, however deep the model.

b: batch; t: tokens; gh, gw: grid height and width.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.common.checks import check_whole
from vitreous.explanation.capture import Walk, at_rest, go_on, on_grid, pooling_of, readout, walked
from vitreous.model.pooling import ClassTokenPooling
from vitreous.model.tokens import Features, Layout
from vitreous.model.vit import ViT


def relevance(
    model: ViT, images: Float[Tensor, "b c h w"], target: int | Sequence[int] | None = None
) -> Float[Tensor, "b gh gw"]:
    """How much each patch speaks for the class `target`, one for all images or one for each; None: the likeliest."""
    return relevance_of(walked(model, images), target)


def relevance_of(
    walk: Walk, target: int | Sequence[int] | None = None, between: Callable[[], None] = go_on
) -> Float[Tensor, "b gh gw"]:
    """`relevance`, of a pass that was kept. `between` is called between layers."""
    model, layout = walk.model, walk.layout
    *inputs, last = walk.states
    with at_rest(model), torch.enable_grad():
        own, gradient = _from_the_head(model, last.detach().requires_grad_(), layout, target)
        row = own
        for layer in reversed(range(len(inputs))):
            between()
            before = inputs[layer].detach().requires_grad_()
            weights, after = model.encoder.explicit_step(layer, before, layout, model.position)
            slope, gradient = torch.autograd.grad(after, (weights, before), gradient)
            row = row + (row[:, None] @ _positive(slope, weights))[:, 0]
    # Without what output tokens keep of themselves: they have long gathered from all others, so it tells of no place,
    # and where patches are averaged it would drown the rest. (A class token is no patch: there it changes nothing.)
    return on_grid(row - own, layout)


def _positive(slope: Tensor, weights: Tensor) -> Tensor:
    """E_h[(dy/dA * A)+]"""
    return (slope * weights.detach()).clamp_min(0).mean(dim=1)


def _from_the_head(
    model: ViT, last: Float[Tensor, "b t d"], layout: Layout, target: int | Sequence[int] | None
) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b t d"]]:
    """How relevant every output token is to the class score, and the score's gradient to them.

    The mean over patches is attention with equal weights and MAP is attention by itself, so both are treated as a
    layer with one query is. A class token is the answer as it is.
    """
    normed = model.norm(last)
    features = Features(normed[:, : layout.num_prefix_tokens], normed[:, layout.num_prefix_tokens :], layout.grid)
    pool = pooling_of(model)
    if isinstance(pool, ClassTokenPooling):
        score = _score(model, model.classify(features), target)
        return readout(model, features).detach(), torch.autograd.grad(score, last)[0]
    weights = pool.weights(features)
    if not weights.requires_grad:
        weights.requires_grad_()
    score = _score(model, model.head(pool.with_weights(features, weights)), target)
    slope, gradient = torch.autograd.grad(score, (weights, last))
    return _positive(slope, weights), gradient


def _score(model: ViT, logits: Float[Tensor, "b classes"], target: int | Sequence[int] | None) -> Tensor:
    check_whole("num_classes", model.config.num_classes, 1, 2**31)
    if target is None:
        return logits.amax(dim=1).sum()
    wanted = [target] * len(logits) if isinstance(target, int) else list(target)
    for index in wanted:
        check_whole("target", index, 0, logits.shape[1] - 1)
    return logits.gather(1, torch.tensor(wanted, device=logits.device)[:, None]).sum()
