"""Patch importance maps (attention rollout, relevance, occlusion) and tests of their faithfulness.

b: batch; t: tokens; q: queries; k: masks; s: steps; h, w: image height and width; gh, gw: grid height and width.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitreous.common.checks import Size, check_choice, check_fraction, check_real, check_whole
from vitreous.explanation.attention_and_logit_lens import (
    CapturedForward,
    check_target,
    layer_indices,
    no_step,
    pooling_weights,
)
from vitreous.explanation.methods import MapName
from vitreous.inference.forward_pass import evaluation_mode
from vitreous.model.attention_layer import AttentionLayer, Merge, dense, times
from vitreous.model.pooling import ClassTokenPooling
from vitreous.model.protocol import Model
from vitreous.model.top_labels import class_probabilities

# ---- Attention rollout -----------------------------------------------------------------------------------------------
# The product of attention and residual connections over all layers (Abnar and Zuidema, arXiv 2005.00928). It shows
# which input patches can influence the output, and is the same for every class.

Fusion = Literal["mean", "max", "min"]


@torch.no_grad()
def rollout(
    captured: CapturedForward,
    layers: Sequence[int] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
) -> Float[Tensor, "b t s"]:
    """Compute the weight of each input token (column) in each output token (row). Rows sum to 1.

    Args:
        fusion: Reduction over heads.
        discard: Fraction of weights in each row to set to 0, smallest first.
        residual: Weight of the residual connection in each layer.
    """
    _check(fusion, discard)
    check_real("residual", residual, 0, 1)
    b, t, _ = captured.inputs[0].shape
    total = torch.eye(t, device=captured.images.device).expand(b, t, t)
    wanted = layer_indices(captured.model.config, layers)
    for index, layer in enumerate(captured.layers):
        if layer.merge is not None:
            total = dense(layer.merge.weights, layer.merge.keys, total.shape[1]) @ total
        if index not in wanted:
            continue
        before, total = total, torch.empty_like(total)
        for rows, weights in captured.chunks(index):
            keys = None if layer.keys is None else layer.keys[rows]
            mixed = dense(fuse(weights.float(), fusion, discard), keys, total.shape[1])
            total[:, rows] = (1 - residual) * (mixed @ before) + residual * before[:, rows]
    return total


@torch.no_grad()
def rollout_map(
    captured: CapturedForward,
    layers: Sequence[int] | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
) -> Float[Tensor, "b gh gw"]:
    """Compute the weight of each patch in the pooled features, i.e. the pooling weights times `rollout`."""
    _check(fusion, discard)
    row = captured.pooling_weights().float()
    wanted = layer_indices(captured.model.config, layers)
    for index, layer in reversed(list(enumerate(captured.layers))):
        if index in wanted:
            gathered = torch.zeros_like(row)
            for rows, weights in captured.chunks(index):
                keys = None if layer.keys is None else layer.keys[rows]
                gathered += times(row[:, rows], fuse(weights.float(), fusion, discard), keys, row.shape[1])
            row = (gathered + row) / 2
        row = unmerged(row, layer)
    return captured.on_map(row)


def unmerged(
    row: Float[Tensor, "b t"], layer: AttentionLayer, weights: Float[Tensor, "b t m"] | None = None
) -> Float[Tensor, "b s"]:
    """Divide the value of each token among the tokens that were merged into it before the layer: equally by default."""
    if layer.merge is None:
        return row
    weights = layer.merge.weights.expand(row.shape[0], -1, -1) if weights is None else weights
    return times(row, weights, layer.merge.keys, math.prod(layer.merge.layout.grid))


def fuse(weights: Float[Tensor, "b heads q t"], fusion: Fusion, discard: float) -> Float[Tensor, "b q t"]:
    """Reduce attention weights over heads and renormalise each row to sum to 1."""
    match fusion:
        case "mean":
            fused = weights.mean(dim=1)
        case "max":
            fused = weights.amax(dim=1)
        case "min":
            fused = weights.amin(dim=1)
    if lost := int(discard * fused.shape[-1]):
        smallest = fused.topk(lost, dim=-1, largest=False).indices
        fused = fused.scatter(-1, smallest, 0.0)
    total = fused.sum(dim=-1, keepdim=True)  # if a row is all zero, use uniform weights
    return torch.where(total > 0, fused / total.clamp_min(1e-30), 1 / fused.shape[-1])


def _check(fusion: Fusion, discard: float) -> None:
    check_choice("fusion", fusion, get_args(Fusion))
    check_fraction("discard", discard)


# ---- Relevance -------------------------------------------------------------------------------------------------------
# Gradient times attention for one class, propagated through all layers (Chefer et al., arXiv 2103.15679). Each layer
# contributes the residual plus the positive part of A * dy/dA, averaged over heads. The map is the row of the product
# over all layers that belongs to the output tokens. Layers are recomputed from their captured inputs, starting with
# the last layer, so that the weights of only one layer are in memory. Where tokens were merged, the relevance of the
# merged token is divided among them, half of it by gradient times what each of them adds.

Target = int | Sequence[int] | Int[Tensor, "b"] | None


def relevance(
    captured: CapturedForward, target: Target = None, between: Callable[[], None] = no_step
) -> Float[Tensor, "b gh gw"]:
    """Compute the relevance of each patch for a class.

    `target` is a class index for all images, one index per image, or None for the top class. In an exported graph, it
    is a tensor.
    """
    with evaluation_mode(captured.model), torch.enable_grad():
        output, gradient = _output_relevance(captured, captured.outputs[-1].detach().requires_grad_(), target)
        row = output
        for index, layer in reversed(list(enumerate(captured.layers))):
            between()
            before = captured.inputs[index].detach().requires_grad_()
            weights, after = layer.explicit_step(before)
            slope, gradient = torch.autograd.grad(after, (weights, before), gradient)
            row = row + times(row, layer.rows(_positive(slope, weights)).mean(dim=1), layer.keys, row.shape[1])
            if layer.merge is not None:
                before = captured.outputs[index - 1].detach().requires_grad_()
                parts = layer.merge.parts(before)
                weights = _merge_weights(layer.merge, parts, gradient)
                row, output = unmerged(row, layer, weights), unmerged(output, layer, weights)
                (gradient,) = torch.autograd.grad(parts.sum(dim=2), before, gradient)
    # Subtract the weights of the output tokens. Output tokens mix all patches, so their positions carry little meaning,
    # and with average pooling they would dominate the map. With a class token, this changes nothing.
    return captured.on_map(row - output)


def _positive(slope: Tensor, weights: Tensor) -> Tensor:
    """Return the positive part of gradient times attention weights."""
    return (slope * weights.detach()).clamp_min(0)


def _merge_weights(
    merge: Merge, parts: Float[Tensor, "b t m e"], gradient: Float[Tensor, "b t e"]
) -> Float[Tensor, "b t m"]:
    """Weight merged tokens half equally and half by the positive part of gradient times what each of them adds.

    Without the first half, most patches would get nothing after several merges, and the test of faithfulness is worse.
    """
    positive = (parts.detach() * gradient[:, :, None]).sum(dim=-1).clamp_min(0) * (merge.weights > 0)
    total = positive.sum(dim=-1, keepdim=True)
    return (torch.where(total > 0, positive / total.clamp_min(1e-30), merge.weights) + merge.weights) / 2


def _output_relevance(
    captured: CapturedForward, last: Float[Tensor, "b t d"], target: Target
) -> tuple[Float[Tensor, "b t"], Float[Tensor, "b t d"]]:
    """Return the relevance of each output token for the class score, and the gradient of the score w.r.t. `last`.

    Average and attention pooling are treated as an attention layer with one query.
    """
    model, pool = captured.model, captured.model.pool
    features = model.output_features(last, captured.layers[-1].layout)
    if isinstance(pool, ClassTokenPooling):
        score = _score(model, model.classify(features), target)
        return pooling_weights(model, features).detach(), torch.autograd.grad(score, last)[0]
    weights = pool.weights(features)
    if not weights.requires_grad:
        weights.requires_grad_()
    score = _score(model, model.classify_pooled(pool.with_weights(features, weights)), target)
    slope, gradient = torch.autograd.grad(score, (weights, last))
    return _positive(slope, weights).mean(dim=1), gradient


def _score(model: Model, logits: Float[Tensor, "b classes"], target: Target) -> Tensor:
    if isinstance(target, Tensor):
        return logits.gather(1, target[:, None]).sum()
    if target is None:
        target = logits.argmax(dim=1).tolist()
    targets = [target] * len(logits) if isinstance(target, int) else list(target)
    for index in targets:
        check_target(model, index)
    return logits.gather(1, torch.tensor(targets, device=logits.device)[:, None]).sum()


# ---- Occlusion -------------------------------------------------------------------------------------------------------
# The drop in class probability when a window of the image is masked. This is slow, but it measures the model's output
# directly and so serves as a reference for the other maps.

Fill = Literal["mean", "blur"]  # replace masked pixels with the mean colour or with the blurred image
BATCH = 32


@torch.no_grad()
def occlusion(
    captured: CapturedForward,
    target: int,
    window: Size | None = None,
    stride: Size | None = None,
    batch_size: int = BATCH,
    between: Callable[[], None] = no_step,
) -> Float[Tensor, "h w"]:
    """Compute, for each pixel, the mean drop in the probability of `target` when a window over the pixel is masked.

    A negative value means that masking raises the probability. By default, the sides of a window are a seventh of the
    image, rounded to whole patches, and windows overlap by half.
    """
    check_target(captured.model, target)
    size = (captured.images.shape[2], captured.images.shape[3])
    usual = default_windows(captured)
    places = _windows(size, window or usual[0], stride or usual[1])
    masked = masked_probabilities(captured, _window_masks(places, size, batch_size), "mean", between)
    drops = class_probabilities(captured.logits(), captured.model.config)[0, target] - masked[:, target]
    total, times = torch.zeros(2, *size, device=drops.device)
    for place, drop in zip(places, drops, strict=True):
        total[place] += drop
        times[place] += 1
    return total / times


def default_windows(captured: CapturedForward) -> tuple[Size, Size]:
    """Return the default window size and stride in pixels."""
    (ph, pw), (gh, gw) = captured.model.config.map_stride, captured.layout.grid
    window = (ph * max(round(gh / 7), 1), pw * max(round(gw / 7), 1))
    return window, (ph * max(round(gh / 14), 1), pw * max(round(gw / 14), 1))


def _windows(size: Size, window: Size, stride: Size) -> list[tuple[slice, slice]]:
    """Return windows that cover an image. The last window of each row and column is aligned with the image edge."""
    tops, lefts = (
        [*range(0, max(side - length, 0), step), max(side - length, 0)]
        for side, length, step in zip(size, window, stride, strict=True)
    )
    return [(slice(top, top + window[0]), slice(left, left + window[1])) for top in tops for left in lefts]


def _window_masks(places: list[tuple[slice, slice]], size: Size, batch_size: int) -> Iterator[Bool[Tensor, "k h w"]]:
    for first in range(0, len(places), batch_size):
        batch = places[first : first + batch_size]
        masks = torch.zeros(len(batch), *size, dtype=torch.bool)
        for mask, place in zip(masks, batch, strict=True):
            mask[place] = True
        yield masks


def masked_probabilities(
    captured: CapturedForward,
    batches: Iterable[Bool[Tensor, "k h w"]],
    fill: Fill,
    between: Callable[[], None] = no_step,
) -> Float[Tensor, "masks classes"]:
    """Compute class probabilities for each masked copy of the image. `between` is called before each batch."""
    model, image, probabilities = captured.model, captured.images, []
    replacement = fill_image(captured, fill)
    with evaluation_mode(model):
        for masks in batches:
            between()
            images = torch.where(masks[:, None].to(image.device), replacement, image)
            probabilities.append(class_probabilities(model(images).float(), model.config))
    return torch.cat(probabilities)


def fill_image(captured: CapturedForward, fill: Fill) -> Float[Tensor, "1 c h w"]:
    """Return the image for masked pixels: the mean colour if `fill` is "mean", otherwise a blurred copy."""
    image = captured.images
    if fill == "mean":
        return image.mean(dim=(2, 3), keepdim=True).expand_as(image)
    return blurred(image, max(captured.model.config.map_stride) / 2 + max(image.shape[2:]) / 20)


def blurred(image: Float[Tensor, "b c h w"], sigma: float) -> Float[Tensor, "b c h w"]:
    """Apply a Gaussian blur with replicated borders."""
    reach = max(round(3 * sigma), 1)
    x = torch.arange(-reach, reach + 1, device=image.device, dtype=image.dtype)
    kernel = (-0.5 * (x / sigma) ** 2).exp()
    kernel = (kernel / kernel.sum()).expand(image.shape[1], 1, 1, -1)
    for weight, padding in ((kernel, (reach, reach, 0, 0)), (kernel.mT, (0, 0, reach, reach))):
        image = F.conv2d(F.pad(image, padding, mode="replicate"), weight, groups=image.shape[1])
    return image


def as_pixels(masks: Bool[Tensor, "k gh gw"], patch_stride: Size, size: Size) -> Bool[Tensor, "k h w"]:
    """Convert patch masks to pixel masks."""
    ph, pw = patch_stride
    return masks.repeat_interleave(ph, dim=1).repeat_interleave(pw, dim=2)[:, : size[0], : size[1]]


def as_patches(pixels: Float[Tensor, "h w"], patch_stride: Size) -> Float[Tensor, "gh gw"]:
    """Average pixel values over each patch."""
    (h, w), (ph, pw) = pixels.shape, patch_stride
    whole = F.pad(pixels[None, None], (0, -w % pw, 0, -h % ph), mode="replicate")
    return F.avg_pool2d(whole, patch_stride)[0, 0]


# ---- Faithfulness: deletion and insertion ----------------------------------------------------------------------------
# If a map is faithful, the class probability falls quickly when its most important patches are masked, and rises
# quickly when they are revealed (Petsiuk et al., arXiv 1806.07421).

STEPS = 16


@dataclass(frozen=True)
class Faithfulness:
    """Deletion and insertion curves of the class probability, and the areas under the curves."""

    fractions: Float[Tensor, "s"]  # fractions of masked or revealed patches, from 0 to 1
    deletion_curve: Float[Tensor, "s"]
    insertion_curve: Float[Tensor, "s"]

    @property
    def deletion(self) -> float:
        """Area under the deletion curve, from 0 to 1; lower is better."""
        return float(torch.trapezoid(self.deletion_curve, self.fractions))

    @property
    def insertion(self) -> float:
        """Area under the insertion curve, from 0 to 1; higher is better."""
        return float(torch.trapezoid(self.insertion_curve, self.fractions))


def faithfulness(
    captured: CapturedForward,
    target: int,
    importance: Float[Tensor, "gh gw"],
    steps: int = STEPS,
    batch_size: int = BATCH,
    between: Callable[[], None] = no_step,
) -> Faithfulness:
    """Measure the class probability while patches are masked or revealed in order of importance, in `steps` steps."""
    grid, size = captured.layout.grid, (captured.images.shape[2], captured.images.shape[3])
    if tuple(importance.shape) != grid:
        raise ValueError(f"importance must have the shape of the patch grid, {grid}, got {tuple(importance.shape)}")
    check_whole("steps", steps, 1, 2**20)
    check_target(captured.model, target)
    count = importance.numel()
    numbers = torch.linspace(0, count, min(steps, count) + 1).round().long()
    rank = torch.empty(count, dtype=torch.long)
    rank[importance.flatten().cpu().argsort(descending=True, stable=True)] = torch.arange(count)
    first = rank.view(grid) < numbers[:, None, None]

    def curve(masks: Tensor, fill: Fill) -> Float[Tensor, "s"]:
        stride = captured.model.config.map_stride
        batches = (as_pixels(batch, stride, size) for batch in torch.split(masks, batch_size))
        return masked_probabilities(captured, batches, fill, between)[:, target].cpu()

    return Faithfulness(numbers / count, curve(first, "mean"), curve(~first, "blur"))


def random_faithfulness(
    captured: CapturedForward,
    target: int,
    draws: int = 3,
    steps: int = STEPS,
    batch_size: int = BATCH,
    between: Callable[[], None] = no_step,
) -> Faithfulness:
    """Return the mean curves over `draws` random patch orders, as a baseline for the maps."""
    generator = torch.Generator().manual_seed(0)
    orders = [torch.rand(captured.layout.grid, generator=generator) for _ in range(draws)]
    runs = [faithfulness(captured, target, order, steps, batch_size=batch_size, between=between) for order in orders]
    return Faithfulness(
        runs[0].fractions,
        torch.stack([run.deletion_curve for run in runs]).mean(dim=0),
        torch.stack([run.insertion_curve for run in runs]).mean(dim=0),
    )


# ---- Maps by name ----------------------------------------------------------------------------------------------------


def importance_map(
    captured: CapturedForward,
    name: MapName,
    target: int | None,
    batch_size: int = BATCH,
    overlap: bool = True,
    between: Callable[[], None] = no_step,
) -> Float[Tensor, "gh gw"]:
    """Compute an importance map by name. If `overlap`, the occlusion windows overlap."""
    match name:
        case "relevance":
            return relevance(captured, target, between)[0]
        case "occlusion":
            assert target is not None
            window, stride = default_windows(captured)
            stride = stride if overlap else window
            drops = occlusion(captured, target, window, stride, batch_size=batch_size, between=between)
            return as_patches(drops, captured.model.config.map_stride)
        case "rollout":
            return rollout_map(captured)[0]
        case "attention":
            return captured.attention_map()[0]
