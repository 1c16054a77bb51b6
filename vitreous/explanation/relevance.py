"""Relevance of patches for one class: gradient times attention through all layers (Chefer et al., arXiv 2103.15679).

The positive part of A * dy/dA, averaged over heads, is what a layer passes on beside the residual. The product over all
layers, read at the output tokens, is the map. Product and gradients are computed from the last layer down, each layer
again from its captured input, so that only one layer's weights are in memory.

b: batch; t: tokens; gh, gw: grid height and width.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vitreous.explanation.captured import (
    CapturedForward,
    check_target,
    no_step,
    pooling_of,
    pooling_weights,
    split_tokens,
)
from vitreous.inference.engine import evaluation_mode
from vitreous.model.pooling import ClassTokenPooling
from vitreous.model.vit import ViT


def relevance(
    captured: CapturedForward, target: int | Sequence[int] | None = None, between: Callable[[], None] = no_step
) -> Float[Tensor, "b gh gw"]:
    """Relevance of each patch for the class `target`, one for all images or one for each; None is the top class.

    `between` is called between layers.
    """
    model, layout = captured.model, captured.layout
    *inputs, last = captured.states
    with evaluation_mode(model), torch.enable_grad():
        output, gradient = _output_relevance(captured, last.detach().requires_grad_(), target)
        row = output
        for layer in reversed(range(len(inputs))):
            between()
            before = inputs[layer].detach().requires_grad_()
            weights, after = model.encoder.explicit_step(layer, before, layout, model.position)
            slope, gradient = torch.autograd.grad(after, (weights, before), gradient)
            row = row + (row[:, None] @ _positive(slope, weights))[:, 0]
    # Without the output tokens' own weight: by then they hold information of all patches, so their place says little,
    # and with average pooling it would dominate the map. (A class token is no patch: nothing changes there.)
    return captured.on_grid(row - output)


def _positive(slope: Tensor, weights: Tensor) -> Tensor:
    """E_h[(dy/dA * A)+]"""
    return (slope * weights.detach()).clamp_min(0).mean(dim=1)


def _output_relevance(
    captured: CapturedForward, last: Float[Tensor, "b t d"], target: int | Sequence[int] | None
) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b t d"]]:
    """Relevance of every output token for the class score, and the score's gradient with respect to them.

    Average and attention pooling are treated as an attention layer with one query.
    """
    model = captured.model
    features, pool = split_tokens(model.norm(last), captured.layout), pooling_of(model)
    if isinstance(pool, ClassTokenPooling):
        score = _score(model, model.classify(features), target)
        return pooling_weights(model, features).detach(), torch.autograd.grad(score, last)[0]
    weights = pool.weights(features)
    if not weights.requires_grad:
        weights.requires_grad_()
    score = _score(model, model.head(pool.with_weights(features, weights)), target)
    slope, gradient = torch.autograd.grad(score, (weights, last))
    return _positive(slope, weights), gradient


def _score(model: ViT, logits: Float[Tensor, "b classes"], target: int | Sequence[int] | None) -> Tensor:
    if target is None:
        target = logits.argmax(dim=1).tolist()
    targets = [target] * len(logits) if isinstance(target, int) else list(target)
    for index in targets:
        check_target(model, index)
    return logits.gather(1, torch.tensor(targets, device=logits.device)[:, None]).sum()
