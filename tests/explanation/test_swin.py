"""Explanations of Swin Transformers, compared with dense matrices over all tokens of a layer."""

import itertools
import math
import random

import pytest
import torch
from torch import Tensor

from vitreous.explanation.attention_and_logit_lens import CapturedForward, attention_distance, capture, distances
from vitreous.explanation.rollout_relevance_occlusion import relevance, rollout, rollout_map
from vitreous.model.build import build
from vitreous.model.swin import Swin
from vitreous.model.swin_block import PatchMerging
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2
from vitreous.model.windows import WindowAttention, Windows

RULES = ("microsoft", "timm", "torchvision")
CASES = list(itertools.product(RULES, (SwinV1(), SwinV2()), range(3)))


def random_swin(rule: str, version: SwinV1 | SwinV2, seed: int) -> tuple[Swin, Tensor]:
    """Build a model of random shape, with windows that are shifted and padded, and two images."""
    draw = random.Random(f"{rule} {version} {seed}")
    patch, depths = draw.choice([1, 2]), draw.choice([(2, 2), (1, 2, 1), (3, 1)])
    config = SwinConfig(
        image_size=(patch * draw.randint(5, 11) - patch // 2, patch * draw.randint(5, 13)),
        patch_size=(patch, patch),
        version=version,
        width=8,
        depths=depths,
        stage_heads=(2, 4, 4)[: len(depths)],
        window=(draw.randint(2, 4), draw.randint(2, 4)),
        window_rule=rule,  # type: ignore[arg-type]
        num_classes=3,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = build(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model, torch.randn(2, 3, *config.image_size)


def places(windows: Windows) -> list[tuple[int, int]]:
    """Return the window and the place in the window of each token, by arithmetic with its row and column."""
    (gh, gw), (wh, ww), (down, across) = windows.grid, windows.size, windows.shift
    rows, columns = -(-gh // wh), -(-gw // ww)
    around = windows.grid if windows.shift_first else (rows * wh, columns * ww)  # sides of the cyclic shift
    found = []
    for y, x in itertools.product(range(gh), range(gw)):
        y, x = (y - down) % around[0], (x - across) % around[1]
        found.append((y // wh * columns + x // ww, y % wh * ww + x % ww))
    return found


def dense_attention(weights: Tensor, windows: Windows) -> Tensor:
    """Write the weights of all windows into matrices over all tokens: [b, heads, n, n]."""
    at = places(windows)
    whole = torch.zeros(weights.shape[0], weights.shape[2], len(at), len(at))
    for (q, (window, row)), (k, (other, column)) in itertools.product(enumerate(at), enumerate(at)):
        if window == other:
            whole[:, :, q, k] = weights[:, window, :, row, column]
    return whole


def dense_merge(grid: tuple[int, int]) -> Tensor:
    """Return the matrix that averages each 2 x 2 tokens."""
    after = (-(-grid[0] // 2), -(-grid[1] // 2))
    whole = torch.zeros(*after, *grid)
    for y, x in itertools.product(range(grid[0]), range(grid[1])):
        whole[y // 2, x // 2, y, x] = 1
    whole = whole.reshape(math.prod(after), math.prod(grid))
    return whole / whole.sum(dim=1, keepdim=True)


def shares(module: PatchMerging, tokens: Tensor, grid: tuple[int, int], merged: Tensor) -> Tensor:
    """Divide merged tokens among their patches, half of them by gradient times part: [b, m, n], patch by patch."""
    (gh, gw), (b, n, d) = grid, tokens.shape
    columns, rest = -(-gw // 2), merged.detach().clone()
    found = torch.zeros(b, merged.shape[1], n)
    assert merged.grad is not None
    for at in range(merged.shape[1]):
        y, x = 2 * (at // columns), 2 * (at % columns)
        square = [(y, x), (y + 1, x), (y, x + 1), (y + 1, x + 1)]
        inside = [place for place, (row, column) in enumerate(square) if row < gh and column < gw]
        whole = torch.zeros(b, 4 * d)
        for place in inside:
            whole[:, place * d : place * d + d] = tokens[:, square[place][0] * gw + square[place][1]].detach()
        for place in range(4):
            alone = torch.zeros(b, 4 * d)
            piece = slice(place * d, place * d + d)
            if module.post_norm:  # the norm divides by the standard deviation of the whole
                alone[:, piece] = whole[:, piece]
                part, total = module.reduction(alone).detach(), module.reduction(whole).detach()
                std = (total.var(dim=1, correction=0, keepdim=True) + module.norm.eps).sqrt()
                part = (part - part.mean(dim=1, keepdim=True)) / std * module.norm.weight + module.norm.bias / 4
            else:
                alone[:, piece] = module.norm(whole)[:, piece].detach()
                part = module.reduction(alone)
            rest[:, at] -= part.detach()
            if place in inside:
                index = square[place][0] * gw + square[place][1]
                found[:, at, index] = (part * merged.grad[:, at]).sum(dim=1).clamp_min(0).detach()
    torch.testing.assert_close(rest, torch.zeros_like(rest), atol=1e-4, rtol=0)  # nothing is lost
    total = found.sum(dim=-1, keepdim=True)
    return (torch.where(total > 0, found / total, dense_merge(grid)) + dense_merge(grid)) / 2


def merges(captured: CapturedForward) -> list[Tensor | None]:
    grids = [layer.layout.grid for layer in captured.layers]
    return [None, *(dense_merge(a) if a != b else None for a, b in itertools.pairwise(grids))]


@pytest.mark.parametrize(("rule", "version", "seed"), CASES, ids=str)
def test_rollout_equals_the_product_of_dense_matrices(rule: str, version: SwinV1 | SwinV2, seed: int) -> None:
    model, images = random_swin(rule, version, seed)
    captured = capture(model, images)
    expected = torch.eye(captured.inputs[0].shape[1])
    for found, merge in zip(model.attention(images), merges(captured), strict=True):
        mean = dense_attention(found.weights.detach(), found.windows).mean(dim=1)
        mean = mean / mean.sum(dim=-1, keepdim=True)  # padding carries nothing of the image
        expected = expected if merge is None else merge @ expected
        expected = 0.5 * (mean @ expected) + 0.5 * expected
    torch.testing.assert_close(rollout(captured), expected)
    pooled = expected.mean(dim=1).reshape(2, *model.config.map_grid)
    torch.testing.assert_close(rollout_map(captured), pooled)
    torch.testing.assert_close(pooled.sum(dim=(1, 2)), torch.ones(2))


@pytest.mark.parametrize(("rule", "version", "seed"), CASES, ids=str)
def test_relevance_equals_one_backward_pass_with_dense_matrices(rule: str, version: SwinV1 | SwinV2, seed: int) -> None:
    model, images = random_swin(rule, version, seed)
    captured = capture(model, images)
    tokens, grid = model.embed(images)
    steps: list[WindowAttention] = []
    merged: list[tuple[PatchMerging, Tensor, tuple[int, int], Tensor]] = []
    for layer, merge in zip(captured.layers, merges(captured), strict=True):
        if merge is not None:
            module = model.stages[len(merged) + 1].merge
            merged.append((module, tokens, grid, module(tokens, grid)[0]))
            tokens, grid = merged[-1][3], layer.layout.grid
            tokens.retain_grad()
        weights, tokens = layer.explicit_step(tokens)
        weights.retain_grad()
        steps.append(WindowAttention(weights, layer.terms.windows))  # type: ignore[attr-defined]
    features = model.output_features(tokens, captured.layers[-1].layout)
    weights = model.pool.weights(features).detach().requires_grad_()
    logits = model.head(model.pool.with_weights(features, weights))
    torch.testing.assert_close(logits, model(images), atol=1e-4, rtol=1e-4)
    logits[:, 1].sum().backward()
    assert weights.grad is not None
    output = row = (weights * weights.grad).clamp_min(0).mean(dim=1).detach()
    for found, merge in zip(reversed(steps), reversed(merges(captured)), strict=True):
        assert found.weights.grad is not None
        positive = (found.weights * found.weights.grad).clamp_min(0).detach()
        row = row + (row[:, None] @ dense_attention(positive, found.windows).mean(dim=1))[:, 0]
        if merge is not None:
            divided = shares(*merged.pop())
            row, output = ((each[:, None] @ divided)[:, 0] for each in (row, output))
    expected = (row - output).reshape(2, *model.config.map_grid)
    torch.testing.assert_close(relevance(captured, 1), expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("rule", RULES)
def test_maps_and_distances_of_a_layer_equal_its_dense_matrix(rule: str) -> None:
    model, images = random_swin(rule, SwinV1(), 0)
    captured = capture(model, images)
    found = attention_distance(captured)
    for layer, (attention, shape) in enumerate(
        zip(model.attention(images), model.config.attention_shapes, strict=True)
    ):
        whole = dense_attention(attention.weights.detach(), attention.windows)
        query = (model.config.map_grid[0] - 1, model.config.map_grid[1] // 2)
        scale = shape.stride[0] // model.config.map_stride[0]
        row = whole[:, :, query[0] // scale * shape.grid[1] + query[1] // scale]
        torch.testing.assert_close(captured.attention_from(layer, query), row)
        torch.testing.assert_close(captured.attention_from(layer), whole.mean(dim=2))
        on_map = captured.on_map(row, layer)
        for y, x in itertools.product(*map(range, model.config.map_grid)):
            assert torch.equal(on_map[..., y, x], row[..., y // scale * shape.grid[1] + x // scale])
        apart = distances(shape.grid, shape.stride)
        mean = (whole / whole.sum(dim=-1, keepdim=True) * apart).sum(dim=-1).mean(dim=(0, 2))
        torch.testing.assert_close(found[layer, : shape.heads], mean)
        assert found[layer, shape.heads :].isnan().all()


def test_size_of_a_captured_pass_includes_index_tensors_once() -> None:
    model, images = random_swin("timm", SwinV1(), 0)
    captured = capture(model, images)
    tensors = {id(tensor): tensor for layer in captured.layers for tensor in layer.index_tensors}
    tokens = {id(tensor): tensor for tensor in (*captured.inputs, *captured.outputs)}
    assert len(tensors) > len(captured.layers)
    assert captured.nbytes == sum(tensor.nbytes for tensor in (tensors | tokens).values())
    assert all(id(layer.keys) in tensors for layer in captured.layers if layer.keys is not None)
