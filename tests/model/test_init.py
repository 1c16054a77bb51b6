"""Initial weights match the papers' released code."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import AttentionPool, GlobalAverage, Learned2d, ResNetStem, SwiGlu
from vitreous.model.resnet import PostActivationUnit

START = ViTConfig(
    image_size=(128, 160),
    patch_size=(8, 8),
    width=192,
    depth=1,
    num_heads=3,
    mlp_width=384,
    distillation_token=True,
    registers=24,
    num_classes=100,
)
POOLED = dataclasses.replace(START, distillation_token=False, pool=AttentionPool())


def assert_uniform(matrix: Tensor, bound: float) -> None:
    """Assert the bound and std of a uniform distribution."""
    largest = matrix.abs().max().item()
    assert 0.98 * bound < largest <= bound * (1 + 1e-6)
    assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_matrices_use_xavier_init() -> None:
    d, h = START.width, START.mlp_width
    block = build(START).encoder.blocks[0]
    for part in (block.attention.q, block.attention.k, block.attention.v, block.attention.output):
        assert_uniform(part.weight, math.sqrt(6 / (2 * d)))
    assert_uniform(block.mlp.up.weight, math.sqrt(6 / (d + h)))
    assert_uniform(block.mlp.down.weight, math.sqrt(6 / (d + h)))
    gated = build(dataclasses.replace(START, mlp=SwiGlu())).encoder.blocks[0].mlp
    for matrix in gated.gate_and_up.weight.chunk(2):
        assert_uniform(matrix, math.sqrt(6 / (d + h)))  # not 6 / (d + 2 h), as for one packed matrix
    pooling = build(POOLED).pool.attention
    for part in (pooling.q, pooling.k, pooling.v, pooling.output):
        assert_uniform(part.weight, math.sqrt(6 / (2 * d)))


def test_positions_tokens_and_classifier_are_small() -> None:
    model = build(START)
    pooled = build(POOLED)
    two = build(dataclasses.replace(START, position=Learned2d())).position
    for tensor, tolerance in [
        (model.position.table, 0.1),
        (two.rows, 0.1),
        (two.columns, 0.1),
        (model.prefix.registers, 0.1),
        (model.head.weight, 0.1),
        (model.distillation_head.weight, 0.1),
        (torch.cat([model.prefix.class_token[0], model.prefix.distillation_token[0], model.position.prefix]), 0.1),
        (pooled.pool.attention.query, 0.2),  # only 192 values
    ]:
        assert tensor.std().item() == pytest.approx(0.02, rel=tolerance)
        assert abs(tensor.mean().item()) < 4 * 0.02 / math.sqrt(tensor.numel())


def test_patch_projection_uses_lecun_init() -> None:
    weight = build(START).patches.projection.weight
    assert weight.std().item() == pytest.approx(1 / math.sqrt(3 * 8 * 8), rel=0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"qk_norm": True, "layer_scale": 0.1},
        {"mlp": SwiGlu()},
        {"distillation_token": False, "pool": AttentionPool()},
        {"distillation_token": False, "pool": GlobalAverage("after")},
        {"stem": ResNetStem(stages=(1, 2), width=32), "patch_size": (1, 1)},
    ],
)
def test_biases_are_zero_and_norms_one(changes: dict[str, Any]) -> None:
    model = build(dataclasses.replace(START, **changes))
    biases = [tensor for name, tensor in model.named_parameters() if name.endswith("bias")]
    assert len(biases) > 8
    assert not any(bias.any() for bias in biases)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all()


def test_hybrid_units_start_as_the_identity() -> None:
    stem = ResNetStem(stages=(2, 3), width=32)
    model = build(dataclasses.replace(START, stem=stem, patch_size=(1, 1)))
    units = list(model.stem.stages)
    assert len(units) == 5
    for unit in units:
        assert isinstance(unit, PostActivationUnit)
        assert not unit.norm3.weight.any()
        assert not unit.norm3.bias.any()
        x = torch.rand(2, unit.conv1.in_channels, 6, 6)
        expected = x if isinstance(unit.shortcut, nn.Identity) else unit.shortcut(x).relu()
        torch.testing.assert_close(unit(x), expected, rtol=0, atol=0)
    assert sum(isinstance(unit.shortcut, nn.Identity) for unit in units) == 3
