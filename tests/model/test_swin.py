"""Swin Transformers: windows, shift, mask, padding and relative positions."""

import dataclasses
import math
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model.attention import AttentionTerms
from vitreous.model.build import build
from vitreous.model.swin import Swin
from vitreous.model.swin_block import PatchMerging, SwinBlock
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2, WindowRule, fit_windows
from vitreous.model.windows import Windows, join, pair_offsets, split
from vitreous.training.optimizer_step import learning_rates

TINY = SwinConfig(
    image_size=(48, 64),
    width=16,
    depths=(2, 2),
    stage_heads=(2, 4),
    window=(4, 4),
    num_classes=5,
)
VERSIONS = (SwinV1(), SwinV2())
RULES: tuple[WindowRule, ...] = ("microsoft", "timm", "torchvision")


def perturbed(config: SwinConfig) -> Swin:
    torch.manual_seed(0)
    model = build(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.2 * torch.randn_like(weight)
    return model


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("grid", [(8, 12), (7, 5), (3, 9), (1, 1), (10, 4)])
def test_windows_contain_every_token_once(grid: tuple[int, int], rule: WindowRule) -> None:
    windows = Windows(grid, *fit_windows(grid, (4, 4), rule), shift_first=rule == "timm")
    tokens = torch.randn(3, math.prod(grid), 2)
    assert torch.equal(join(split(tokens, windows), windows), tokens)
    indices = windows.token_indices()
    assert indices.shape == (math.prod(windows.counts), math.prod(windows.size))
    assert sorted(indices[indices >= 0].tolist()) == list(range(math.prod(grid)))
    padded = math.prod(side + extra for side, extra in zip(grid, windows.padding, strict=True))
    assert (indices < 0).sum() == padded - math.prod(grid)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_block_equals_masked_attention_over_the_whole_grid(version: SwinV1 | SwinV2, number: int) -> None:
    model = perturbed(dataclasses.replace(TINY, version=version))
    (gh, gw), side, shift = (12, 16), 4, 2 * number
    tokens, grid = model.embed(torch.randn(2, 3, 4 * gh, 4 * gw))
    assert grid == (gh, gw)
    stage = model._stages[0]
    block = stage.blocks[number]
    assert isinstance(block, SwinBlock)
    place = torch.arange(gh * gw)
    y, x = place // gw, place % gw
    window = (y - shift).div(side, rounding_mode="floor") * 100 + (x - shift).div(side, rounding_mode="floor")
    together = window[:, None] == window
    dy, dx = (axis[:, None] - axis + side - 1 for axis in (y, x))
    table = block.attention.position((side, side)).unflatten(0, (2 * side - 1, 2 * side - 1))
    bias = table[dy.clamp(0, 2 * side - 2), dx.clamp(0, 2 * side - 2)].permute(2, 0, 1)
    inputs = tokens if block.post_norm else block.attention_norm(tokens)
    q, k, v = block.attention.queries_keys_values(inputs, AttentionTerms())
    logits = q @ k.transpose(-2, -1) * block.attention.scale + bias
    gathered = logits.masked_fill(~together, -math.inf).softmax(dim=-1) @ v
    expected = block._add(tokens, block.attention.output(gathered.transpose(1, 2).flatten(2)))
    result = stage.step(number, tokens, stage.terms(grid, tokens.device))
    assert torch.allclose(result, expected, atol=2e-5)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rule", RULES)
def test_attention_equals_the_weights_of_the_forward_pass(version: SwinV1 | SwinV2, rule: WindowRule) -> None:
    model = perturbed(dataclasses.replace(TINY, version=version, window_rule=rule))
    images = torch.randn(2, 3, 50, 70)
    for (layer, before, after), maps in zip(model.attention_steps(images), model.attention(images), strict=True):
        explicit, tokens = layer.explicit_step(before)
        assert torch.allclose(explicit, maps.weights, atol=1e-5)
        assert torch.allclose(tokens, after, atol=2e-5)
        assert layer.layout.grid == maps.windows.grid
        assert maps.weights.shape[:2] == (2, math.prod(maps.windows.counts))
        assert torch.allclose(maps.weights.sum(dim=-1), torch.ones(()))
    features = model.features(images)
    assert features.grid == layer.layout.grid == model.config.grid_for((50, 70))
    assert torch.allclose(model.norm(tokens), features.patches, atol=2e-5)
    assert torch.equal(model.intermediate(images, [-1])[0].patches, features.patches)
    assert torch.allclose(model(images), model.head(features.patches.mean(dim=1)))


@pytest.mark.parametrize("version", VERSIONS)
def test_padded_windows_work_in_float16(version: SwinV1 | SwinV2) -> None:
    model = perturbed(dataclasses.replace(TINY, version=version))
    images = torch.randn(2, 3, 50, 70)  # grids of 13 x 18 and 7 x 9 patches
    expected = model(images)
    assert torch.allclose(model.half()(images.half()).float(), expected, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("rule", RULES)
def test_resizing_once_equals_resampling_in_every_call(version: SwinV1 | SwinV2, rule: WindowRule) -> None:
    model = perturbed(dataclasses.replace(TINY, version=version, window_rule=rule))
    images = torch.randn(1, 3, 20, 41)  # the windows of the last stage shrink
    resized = model.resized((20, 41))
    assert torch.equal(model(images), resized(images))
    assert {name: value.shape for name, value in resized.state_dict().items()} == {
        name: value.shape for name, value in build(resized.config).state_dict().items()
    }


def test_offsets_index_the_table_by_row_and_column() -> None:
    offsets = pair_offsets((2, 3), torch.device("cpu"))
    assert offsets[0, 0] == offsets[5, 5] == 1 * 5 + 2  # (dy, dx) = (0, 0)
    assert offsets[5, 0] == 2 * 5 + 4
    assert offsets[0, 5] == 0


def test_recomputed_blocks_have_the_same_gradients() -> None:
    model = perturbed(TINY).train()
    images = torch.randn(2, 3, 32, 32)

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(model(images).square().sum(), list(model.parameters())))

    before = gradients()
    model.recompute_blocks()
    for a, b in zip(before, gradients(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_half_precision_runs_with_masks_and_padding() -> None:
    for version in VERSIONS:
        model = perturbed(dataclasses.replace(TINY, version=version)).bfloat16()
        assert model(torch.randn(1, 3, 50, 70).bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stage_heads", (2, 5)),
        ("stage_heads", (2,)),
        ("depths", ()),
        ("window", (0, 7)),
        ("version", SwinV2(pretrained_windows=(7,))),
    ],
)
def test_invalid_fields_are_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(TINY, **{field: value})


@pytest.mark.parametrize("version", VERSIONS)
def test_larger_windows_keep_the_relative_positions(version: SwinV1 | SwinV2) -> None:
    model = perturbed(dataclasses.replace(TINY, version=version))
    size, ones = model.config.image_size, torch.ones(1, 3, 48, 64)
    larger = model.resampled({"window": 6}, size)
    assert larger.config.stage_windows == ((6, 6), (6, 6))
    assert torch.equal(model.resampled({"window": 4}, size)(ones), model(ones))
    old, new = (cast(SwinBlock, m.blocks[0]).attention.position for m in (model, larger))
    before, after = (p((side, side)).reshape(2 * side - 1, 2 * side - 1, 2) for p, side in ((old, 4), (new, 6)))
    if isinstance(version, SwinV1):  # as in Microsoft's load_pretrained
        table = F.interpolate(before.permute(2, 0, 1)[None], size=(11, 11), mode="bicubic")[0].permute(1, 2, 0)
        assert torch.allclose(after, table, atol=1e-6)
    else:  # the bias of an offset stays the same
        assert torch.allclose(after[2:-2, 2:-2], before, atol=1e-5)
    build(larger.config).load_state_dict(larger.state_dict(), strict=True)


def test_groups_of_learning_rates_contain_every_weight_before_the_final_norm_once() -> None:
    model = build(TINY)
    grouped = [id(weight) for group in model.lr_groups for module in group for weight in module.parameters()]
    output = {id(weight) for module in (model.norm, model.head) for weight in module.parameters()}
    assert len(grouped) == len(set(grouped))
    assert set(grouped) | output == {id(weight) for weight in model.parameters()}
    assert len(model.lr_groups) == 1 + 4
    rates = learning_rates(model, 1.0, 0.5)
    assert rates[cast(PatchMerging, model._stages[1].merge).reduction.weight] == 0.5**2


def test_pyramid_has_the_widths_and_grids_of_the_stages() -> None:
    model = perturbed(TINY)
    images = torch.randn(1, 3, 50, 70)
    first, last = model.pyramid(images)
    assert (first.grid, last.grid) == ((13, 18), (7, 9))
    assert (first.patches.shape[2], last.patches.shape[2]) == model.config.pyramid_widths
    assert torch.equal(last.patches, model.features(images).patches)
    assert torch.equal(first.patches, model.intermediate(images, [1])[0].patches)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_weight_gets_a_gradient_under_autocast(version: SwinV1 | SwinV2) -> None:
    model = perturbed(dataclasses.replace(TINY, version=version)).train()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(torch.randn(2, 3, 48, 64))
    logits.float().square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in model.parameters())
