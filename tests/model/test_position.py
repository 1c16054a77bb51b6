import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.model import options
from vitreous.model.attention import AttentionTerms, rotate
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.position import (
    ConditionalPosition,
    Learned1dPosition,
    Learned2dPosition,
    MixedRotary2dPosition,
    RelativeBiasPosition,
    Rotary2dPosition,
    SinCos2dPosition,
)
from vitreous.model.tokens import Layout, keep_patches

KINDS: list[options.PositionConfig] = [
    options.NoPosition(),
    options.Learned1d(),
    options.Learned1d(prefix_entries=False, interpolation="timm"),
    options.Learned2d(),
    options.SinCos2d("mae"),
    options.SinCos2d("big_vision"),
    options.RelativeBias(),
    options.Rotary2d(),
    options.Rotary2d(10_000.0, "index", (16, 16), learned=options.Learned1d(interpolation="timm")),
    options.MixedRotary2d(learned=options.Learned1d(prefix_entries=False)),
    options.Conditional(),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
CPU = torch.device("cpu")


@every_kind
@pytest.mark.parametrize("size", [(24, 32), (40, 16)], ids=["own size", "another size"])
def test_forward_and_backward_at_any_size(
    kind: options.PositionConfig, size: tuple[int, int], small: ViTConfig
) -> None:
    model = build_vit(dataclasses.replace(small, position=kind, registers=2))
    model(torch.randn(2, 3, *size)).square().sum().backward()
    for name, parameter in model.position.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@every_kind
def test_resized_model_gives_the_same_outputs(kind: options.PositionConfig, small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=kind, registers=2)).eval()
    resized = model.resized((40, 16))
    images = torch.randn(2, 3, 40, 16)
    torch.testing.assert_close(resized(images), model(images))
    assert resized.config.grid == (5, 2)
    assert model.config.image_size == (24, 32)  # the original is unchanged
    rebuilt = build_vit(resized.config).eval()  # as if loaded from a checkpoint
    rebuilt.load_state_dict(resized.state_dict())
    torch.testing.assert_close(rebuilt(images), model(images))


@every_kind
def test_keeping_all_patches_changes_nothing(kind: options.PositionConfig, small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=kind)).eval()
    tokens, layout = model.embed(*model.patchify(torch.randn(2, 3, 24, 32)))
    whole = model.encode(tokens, layout)
    order = torch.stack([torch.randperm(12), torch.randperm(12)])
    shuffled = model.encode(*keep_patches(tokens, layout, order))
    torch.testing.assert_close(shuffled.prefix, whole.prefix, atol=1e-5, rtol=1e-5)
    expected = whole.patches.gather(1, order[..., None].expand(-1, -1, 32))
    torch.testing.assert_close(shuffled.patches, expected, atol=1e-5, rtol=1e-5)


@every_kind
@pytest.mark.parametrize("class_token", [True, False])
def test_embedding_a_subset_equals_keep_patches(
    kind: options.PositionConfig, class_token: bool, small: ViTConfig
) -> None:
    """Projecting only a subset gives the same outputs and gradients as selecting it afterwards."""
    pool = options.ClassToken() if class_token else options.GlobalAverage()
    config = dataclasses.replace(small, position=kind, class_token=class_token, registers=2, pool=pool)
    model = build_vit(config).double()
    with torch.no_grad():
        for parameter in model.position.parameters():
            parameter.normal_()
    images, keep_indices = torch.randn(2, 3, 24, 32).double(), torch.tensor([[7, 0, 11], [3, 4, 5]])
    patches, grid = model.patchify(images, keep_indices)
    subset = model.encode(*model.embed(patches, grid, keep_indices))
    selected = model.encode(*keep_patches(*model.embed(*model.patchify(images)), keep_indices))
    assert subset.keep_indices is not None
    assert torch.equal(subset.keep_indices, keep_indices)
    weights, gradients = list(model.parameters()), []
    for features in (subset, selected):
        outputs = torch.cat([features.prefix, features.patches], dim=1)
        gradients.append(torch.autograd.grad(outputs.square().sum(), weights, allow_unused=True, retain_graph=True))
    torch.testing.assert_close(subset.prefix, selected.prefix, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(subset.patches, selected.patches, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)


@every_kind
def test_only_no_position_ignores_patch_order(kind: options.PositionConfig, small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=kind)).eval()
    with torch.no_grad():
        for parameter in model.position.parameters():
            parameter.normal_()  # large enough to matter
    patches, grid = model.patchify(torch.randn(1, 3, 24, 32))
    outputs = [model.classify(model.encode(*model.embed(p, grid))) for p in (patches, patches.flip(1))]
    same = torch.allclose(*outputs, atol=1e-5)
    assert same == isinstance(kind, options.NoPosition)


@every_kind
def test_bfloat16_and_autocast(kind: options.PositionConfig, small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=kind)).eval()
    images = torch.randn(2, 3, 24, 32)
    exact = model(images)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(images).float(), exact, atol=0.1, rtol=0.1)
    torch.testing.assert_close(model.bfloat16()(images.bfloat16()).float(), exact, atol=0.1, rtol=0.1)


@every_kind
@pytest.mark.parametrize("class_token", [True, False])
def test_tokens_stay_float32_under_autocast(kind: options.PositionConfig, class_token: bool, small: ViTConfig) -> None:
    pool = options.ClassToken() if class_token else options.GlobalAverage()
    model = build_vit(dataclasses.replace(small, position=kind, class_token=class_token, pool=pool))
    with torch.autocast("cpu", torch.bfloat16):
        patches, grid = model.patchify(torch.randn(1, 3, 24, 32))
        tokens, _ = model.embed(patches, grid)
    learned = model.position.added is not None and any(True for _ in model.position.added.parameters())
    assert tokens.dtype == (torch.float32 if class_token or learned else patches.dtype)


@every_kind
def test_resizing_keeps_frozen_parameters_frozen(kind: options.PositionConfig, small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, position=kind)).requires_grad_(False)
    assert not any(weight.requires_grad for weight in model.resized((40, 16)).parameters())


@every_kind
def test_double_precision_is_preserved(kind: options.PositionConfig, small: ViTConfig) -> None:
    """Gradients equal finite differences; any float32 step would break this."""
    model = build_vit(dataclasses.replace(small, position=kind, depth=1)).double().eval()
    images = torch.randn(1, 3, 40, 16, dtype=torch.float64)
    direction, step = torch.randn_like(images), 1e-5
    images.requires_grad_()
    model(images).sum().backward()
    assert images.grad is not None
    with torch.no_grad():
        numeric = (model(images + step * direction).sum() - model(images - step * direction).sum()) / (2 * step)
    torch.testing.assert_close((images.grad * direction).sum(), numeric, rtol=1e-6, atol=1e-9)


def test_registers_have_no_position() -> None:
    position = Learned1dPosition(8, (2, 3), entries=1, interpolation="google")
    added = position.embed(torch.zeros(1, 1 + 4 + 6, 8), Layout(5, (2, 3)))[0]
    assert torch.equal(added[0], position.prefix[0])
    assert torch.equal(added[1:5], torch.zeros(4, 8))
    assert torch.equal(added[5:].reshape(2, 3, 8), position.table)


def test_learned_2d_concatenates_column_and_row() -> None:
    position = Learned2dPosition(8, (2, 3), entries=0, interpolation="google")
    table = position.table_at((2, 3), CPU)
    for y in range(2):
        for x in range(3):
            assert torch.equal(table[y, x], torch.cat([position.columns[x], position.rows[y]]))


@pytest.mark.parametrize(("convention", "divisor"), [("mae", 4), ("big_vision", 3)])
def test_sin_cos_equals_explicit_computation(convention: str, divisor: int) -> None:
    table = SinCos2dPosition(16, convention, 10_000.0).table_at((3, 5), CPU).numpy()
    for y in range(3):
        for x in range(5):
            angles = lambda place: [place / 10_000 ** (i / divisor) for i in range(4)]  # noqa: E731
            expected = [f(a) for place in (x, y) for f in (math.sin, math.cos) for a in angles(place)]
            np.testing.assert_allclose(table[y, x], expected, atol=1e-6)


def test_rotary_logits_depend_only_on_offsets() -> None:
    position = Rotary2dPosition(head_dim=8, base=100.0)
    rotation = position.attend(Layout(1, (4, 5)), CPU).rotation
    assert rotation is not None
    same = torch.randn(1, 1, 1, 8).expand(1, 1, 21, 8)  # all tokens are equal, so only the position differs
    logits = (rotate(same, rotation) @ rotate(same, rotation).mT)[0, 0, 1:, 1:].reshape(4, 5, 4, 5)
    torch.testing.assert_close(logits[0, 0, 1, 2], logits[2, 2, 3, 4], atol=1e-5, rtol=0)
    torch.testing.assert_close(logits[3, 1, 1, 0], logits[2, 4, 0, 3], atol=1e-5, rtol=0)
    assert (logits[0, 0, 1, 2] - logits[0, 0, 2, 1]).abs() > 1e-3
    torch.testing.assert_close(rotate(same, rotation)[0, 0, 0], same[0, 0, 0])  # prefix tokens are not rotated


@pytest.mark.parametrize(
    ("arguments", "coordinate"),
    [
        ({}, lambda i, side, reference: 2 * math.pi * ((2 * i + 1) / side - 1)),
        ({"coordinates": "index"}, lambda i, side, reference: i),
        ({"coordinates": "index", "reference_grid": (4, 7)}, lambda i, side, reference: i * reference / side),
    ],
    ids=["edges", "index", "reference grid"],
)
@pytest.mark.parametrize("grid", [(3, 5), (4, 1)])
def test_rotary_angles_equal_explicit_computation(arguments: Any, coordinate: Any, grid: tuple[int, int]) -> None:
    angles = Rotary2dPosition(8, 50.0, **arguments).angles(grid, CPU).reshape(*grid, 4)
    for y in range(grid[0]):
        for x in range(grid[1]):
            places = coordinate(y, grid[0], 4), coordinate(x, grid[1], 7)
            expected = [place / period for place in places for period in (1, math.sqrt(50))]
            np.testing.assert_allclose(angles[y, x], expected, rtol=1e-5, atol=1e-5)


def test_rotary_periods_are_rounded() -> None:
    exact, rounded = (Rotary2dPosition(16, 100.0, period_dtype=dtype) for dtype in ("float32", "bfloat16"))
    periods = rounded.angles((1, 2), CPU)[1, 4:].reciprocal() * math.pi  # the second column is at x = 1/2
    assert torch.equal(periods.bfloat16(), torch.tensor([1.0, 3.15625, 10.0, 31.625]).bfloat16())
    assert not torch.equal(exact.angles((1, 2), CPU), rounded.angles((1, 2), CPU))


def test_mixed_rotary_angles_equal_explicit_computation() -> None:
    position = MixedRotary2dPosition(depth=2, num_heads=3, head_dim=8, base=10.0, learned=None)
    frequencies, angles = position.frequencies.detach(), position.angles((3, 5), CPU).detach()
    assert angles.shape == (2, 3, 15, 4)
    for y in range(3):
        for x in range(5):
            torch.testing.assert_close(angles[:, :, 5 * y + x], x * frequencies[0] + y * frequencies[1])
    # At first, each frequency occurs in two perpendicular directions.
    first, second = frequencies.chunk(2, dim=-1)
    torch.testing.assert_close((first * second).sum(dim=0), torch.zeros(2, 3, 2), atol=1e-6, rtol=0)
    torch.testing.assert_close(first.square().sum(dim=0), torch.tensor([1, 0.1]).expand(2, 3, 2))


@pytest.mark.parametrize("keep_indices", [None, torch.tensor([[5, 0, 2], [1, 3, 4]])], ids=["all", "keep_indices"])
def test_relative_bias_equals_explicit_computation(keep_indices: torch.Tensor | None) -> None:
    position = RelativeBiasPosition(num_heads=2, grid=(2, 3), interpolation="google")
    torch.nn.init.normal_(position.prefix)
    bias = position.attend(Layout(1, (2, 3), keep_indices), CPU).bias
    assert bias is not None
    bias = bias.expand(2, -1, -1, -1)
    places = [list(range(6))] * 2 if keep_indices is None else keep_indices.tolist()
    for b, row in enumerate(places):
        for i, asks in enumerate([None, *row]):
            for j, answers in enumerate([None, *row]):
                if asks is None or answers is None:
                    expected = position.prefix[
                        {(True, False): 1, (False, True): 0, (True, True): 2}[asks is None, answers is None]
                    ]
                else:
                    expected = position.table[asks // 3 - answers // 3 + 1, asks % 3 - answers % 3 + 2]
                assert torch.equal(bias[b, :, i, j], expected)


@pytest.mark.parametrize("blocks", [1, 3])
def test_conditional_changes_patches_after_the_first_blocks(blocks: int) -> None:
    position = ConditionalPosition(4, kernel_size=3, blocks=blocks)
    tokens, layout = torch.randn(1, 2 + 6, 4), Layout(2, (2, 3))
    assert torch.equal(position.between(blocks, tokens, layout), tokens)
    image = tokens[:, 2:].transpose(1, 2).reshape(1, 4, 2, 3)
    for layer, convolution in enumerate(position.convolutions):
        after = position.between(layer, tokens, layout)
        assert torch.equal(after[:, :2], tokens[:, :2])
        expected = image + convolution(image)
        torch.testing.assert_close(after[:, 2:], expected.flatten(2).transpose(1, 2))
    assert position.attend(layout, CPU) == AttentionTerms()
