"""The numbers that no shape check sees: what the papers and their released code say, written here once more by hand."""

import dataclasses
import math
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from vitreous.model.attention import AttentionTerms, SelfAttention
from vitreous.model.block import Block, GeluMlp, LayerScale
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.options import (
    AttentionPool,
    ClassToken,
    Dropout,
    Gelu,
    GlobalAverage,
    Learned1d,
    Learned2d,
    ResNetStem,
    SwiGlu,
)
from vitreous.model.presets import preset
from vitreous.model.resnet import PostActivationUnit, PreActivationUnit

# ---- Presets ---------------------------------------------------------------------------------------------------------


class Numbers(NamedTuple):
    width: int
    depth: int
    heads: int
    mlp_width: int
    patch: int  # in pixels of the image, also behind a stem
    side: int = 224
    gelu: str = "tanh"
    eps: float = 1e-6
    layer_scale: float | None = None
    entries: bool = True  # the class token has a position of its own
    positions: str = "google"  # and how positions are resampled
    registers: int = 0
    distilled: bool = False
    classes: int = 1000
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)


IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
DEIT = {"gelu": "erf", "positions": "huggingface"} | IMAGENET
DEIT3 = {"gelu": "erf", "positions": "timm", "entries": False, "layer_scale": 1e-4} | IMAGENET
DINOV2 = {"gelu": "erf", "positions": "dinov2", "layer_scale": 1e-5, "side": 518, "classes": 0} | IMAGENET
REGISTERS = DINOV2 | {"positions": "dinov2-registers", "registers": 4}

NUMBERS = {
    "ViT-Ti/16": Numbers(192, 12, 3, 768, 16),
    "ViT-S/32": Numbers(384, 12, 6, 1536, 32),
    "ViT-B/16": Numbers(768, 12, 12, 3072, 16),
    "ViT-L/16": Numbers(1024, 24, 16, 4096, 16),
    "ViT-H/14": Numbers(1280, 32, 16, 5120, 14),
    "ViT-g/14": Numbers(1408, 40, 16, 6144, 14),
    "ViT-G/14": Numbers(1664, 48, 16, 8192, 14),
    "ViT-Ti/4": Numbers(192, 12, 3, 768, 4, side=32, classes=10),
    "R+ViT-Ti/16": Numbers(192, 12, 3, 768, 32),
    "R26+ViT-S/32": Numbers(384, 12, 6, 1536, 32),
    "R50+ViT-B/16": Numbers(768, 12, 12, 3072, 16),
    "R50+ViT-L/32": Numbers(1024, 24, 16, 4096, 32),
    "DeiT-S/16": Numbers(384, 12, 6, 1536, 16, **DEIT),
    "DeiT-Ti/16-distilled": Numbers(192, 12, 3, 768, 16, distilled=True, **DEIT),
    "DeiT-III-B/16": Numbers(768, 12, 12, 3072, 16, **DEIT3),
    "DeiT-III-H/14": Numbers(1280, 32, 16, 5120, 14, **DEIT3),
    "DINOv2-S/14": Numbers(384, 12, 6, 1536, 14, **DINOV2),
    "DINOv2-L/14-reg": Numbers(1024, 24, 16, 4096, 14, **REGISTERS),
    "DINOv2-g/14": Numbers(1536, 40, 24, 4096, 14, **DINOV2 | {"gelu": "swiglu"}),
    "DINOv2-g/14-reg": Numbers(1536, 40, 24, 4096, 14, **REGISTERS | {"gelu": "swiglu"}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_preset_is_its_papers(name: str) -> None:
    config = preset(name)
    assert isinstance(config, ViTConfig)
    assert isinstance(config.position, Learned1d)
    assert config.image_size[0] == config.image_size[1]
    found = Numbers(
        width=config.width,
        depth=config.depth,
        heads=config.num_heads,
        mlp_width=config.mlp_width,
        patch=config.image_size[0] // config.grid[0],
        side=config.image_size[0],
        gelu=config.mlp.approximation if isinstance(config.mlp, Gelu) else "swiglu",
        eps=config.norm_eps,
        layer_scale=config.layer_scale,
        entries=config.position.prefix_entries,
        positions=config.position.interpolation,
        registers=config.registers,
        distilled=config.distillation_token,
        classes=config.num_classes,
        mean=config.preprocessing.mean,
        std=config.preprocessing.std,
    )
    assert found == NUMBERS[name]
    assert config.qkv_bias
    assert (config.class_token, config.qk_norm, config.qk_scale) == (True, False, None)
    assert config.pool == ClassToken()


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("R+ViT-Ti/16", ()),
        ("R26+ViT-S/32", (2, 2, 2, 2)),
        ("R50+ViT-B/16", (3, 4, 9)),
        ("R50+ViT-L/32", (3, 4, 6, 3)),
    ],
)
def test_a_hybrids_stem_is_its_papers(name: str, stages: tuple[int, ...]) -> None:
    config = preset(name)
    assert isinstance(config, ViTConfig)
    assert config.stem == ResNetStem(stages=stages, width=64)


@pytest.mark.parametrize("depth", [6, 7])
def test_vit_lites_sizes_are_its_papers(depth: int) -> None:
    config = preset(f"ViT-Lite-{depth}/4")
    assert isinstance(config, ViTConfig)
    assert (config.width, config.depth, config.num_heads, config.mlp_width) == (256, depth, 4, 512)
    assert (config.image_size, config.patch_size, config.num_classes) == ((32, 32), (4, 4), 10)


def test_bits_numbers_are_its_papers() -> None:
    config = preset("BiT-R50x1")
    assert isinstance(config, ResNetConfig)
    assert (config.stages, config.width, config.image_size) == ((3, 4, 6, 3), 64, (224, 224))
    assert (config.preprocessing.mean, config.preprocessing.std) == ((0.5,), (0.5,))


# ---- How weights start out -------------------------------------------------------------------------------------------

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
    """No entry beyond the bound, the largest close to it, and the deviation of a uniform distribution."""
    largest = matrix.abs().max().item()
    assert 0.98 * bound < largest <= bound * (1 + 1e-6)
    assert matrix.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_matrices_start_from_xavier() -> None:
    d, h = START.width, START.mlp_width
    block = build(START).encoder.blocks[0]
    for part in (block.attention.q, block.attention.k, block.attention.v, block.attention.output):
        assert_uniform(part.weight, math.sqrt(6 / (2 * d)))
    assert_uniform(block.mlp.up.weight, math.sqrt(6 / (d + h)))
    assert_uniform(block.mlp.down.weight, math.sqrt(6 / (d + h)))
    gated = build(dataclasses.replace(START, mlp=SwiGlu())).encoder.blocks[0].mlp
    for matrix in gated.gate_and_up.weight.chunk(2):
        assert_uniform(matrix, math.sqrt(6 / (d + h)))  # not 6 / (d + 2 h), as one packed matrix would
    pooling = build(POOLED).pool.attention
    for part in (pooling.q, pooling.k, pooling.v, pooling.output):
        assert_uniform(part.weight, math.sqrt(6 / (2 * d)))


def test_positions_tokens_and_the_last_layer_start_small() -> None:
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
        (pooled.pool.attention.query, 0.2),  # 192 numbers only
    ]:
        assert tensor.std().item() == pytest.approx(0.02, rel=tolerance)
        assert abs(tensor.mean().item()) < 4 * 0.02 / math.sqrt(tensor.numel())


def test_patches_start_from_lecun() -> None:
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
def test_biases_start_at_zero_and_norms_at_one(changes: dict[str, Any]) -> None:
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


# ---- LayerScale and stochastic depth, on both branches ---------------------------------------------------------------


def noisy_block(layer_scale: float | None = None, stochastic_depth: float = 0.0) -> Block:
    block = Block(SelfAttention(16, 4), GeluMlp(16, 32, "erf"), 16, 1e-6, layer_scale, stochastic_depth)
    for name, parameter in block.named_parameters():
        if "scale" not in name:
            nn.init.normal_(parameter, std=0.3)
    return block.eval()


def branches(block: Block, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Equations 2 and 3 without their sums: what each branch says, the other left alone."""
    return block.attention(block.attention_norm(tokens), AttentionTerms()), block.mlp(block.mlp_norm(tokens))


@torch.no_grad()
def test_layer_scale_acts_on_both_branches() -> None:
    tokens = torch.randn(2, 5, 16)
    for dead, alive, says in [("attention_scale", "mlp_scale", 1), ("mlp_scale", "attention_scale", 0)]:
        block = noisy_block(layer_scale=0.25)
        getattr(block, dead).factor.zero_()
        expected = tokens + 0.25 * branches(block, tokens)[says]
        torch.testing.assert_close(block(tokens, AttentionTerms()), expected)
        assert (expected - tokens).abs().max() > 0.01
        getattr(block, alive).factor.zero_()
        torch.testing.assert_close(block(tokens, AttentionTerms()), tokens, rtol=0, atol=0)


@torch.no_grad()
def test_stochastic_depth_acts_on_both_branches_in_training_only() -> None:
    tokens = torch.randn(8, 5, 16)
    block = noisy_block(layer_scale=1.0, stochastic_depth=0.999999)
    for alive in ("attention_scale", "mlp_scale"):
        for name in ("attention_scale", "mlp_scale"):
            getattr(block, name).factor.fill_(float(name == alive))
        assert (block.eval()(tokens, AttentionTerms()) - tokens).abs().max() > 0.01
        torch.testing.assert_close(block.train()(tokens, AttentionTerms()), tokens, rtol=0, atol=0)


@torch.no_grad()
def test_the_two_branches_are_dropped_independently() -> None:
    block = noisy_block(stochastic_depth=0.5).train()
    for linear, said in ((block.attention.output, 1.0), (block.mlp.down, 10.0)):
        linear.weight.zero_()
        linear.bias.fill_(said)
    heard = block(torch.zeros(400, 3, 16), AttentionTerms())
    assert (heard == heard[:, :1, :1]).all()  # a whole image at a time
    values, counts = heard[:, 0, 0].unique(return_counts=True)
    assert values.tolist() == [0, 2, 20, 22]  # each that is kept counts double
    assert counts.min() > 60


# ---- A config reaches the parts --------------------------------------------------------------------------------------


def found(model: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


@pytest.mark.parametrize("pool", [ClassToken(), GlobalAverage("before"), GlobalAverage("after"), AttentionPool()])
def test_eps_reaches_every_norm(small: ViTConfig, pool: Any) -> None:
    model = build(dataclasses.replace(small, norm_eps=3e-4, qk_norm=True, pool=pool))
    norms = found(model, nn.LayerNorm)
    assert len(norms) == 2 * (2 + 2) + 1 + (pool == AttentionPool())
    assert {norm.eps for norm in norms} == {3e-4}


def test_eps_of_group_norm_is_the_released_codes(small: ViTConfig) -> None:
    hybrid = build(dataclasses.replace(small, stem=ResNetStem(stages=(1,), width=32), patch_size=(2, 2)))
    assert {norm.eps for norm in found(hybrid, nn.GroupNorm)} == {1e-6}
    bit = build(ResNetConfig(stages=(1, 1), width=32))
    assert {norm.eps for norm in found(bit, nn.GroupNorm)} == {1e-5}
    assert all(norm.num_groups == 32 for norm in (*found(hybrid, nn.GroupNorm), *found(bit, nn.GroupNorm)))
    assert len(found(bit, PreActivationUnit)) == 2


@pytest.mark.parametrize(("approximation", "torchs"), [("tanh", "tanh"), ("erf", "none")])
def test_gelu_reaches_every_mlp(small: ViTConfig, approximation: Any, torchs: str) -> None:
    model = build(dataclasses.replace(small, mlp=Gelu(approximation), pool=AttentionPool()))
    assert [gelu.approximate for gelu in found(model, nn.GELU)] == [torchs] * 3  # the pool's as well


def test_swiglu_reaches_every_mlp(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, mlp=SwiGlu()))
    assert not found(model, nn.GELU)
    assert [block.mlp.gate_and_up.out_features for block in model.encoder.blocks] == [2 * small.mlp_width] * 2


def test_attentions_options_reach_every_block(small: ViTConfig) -> None:
    for block in build(small).encoder.blocks:
        assert block.attention.scale == pytest.approx((32 / 4) ** -0.5)
        assert all(part.bias is not None for part in (block.attention.q, block.attention.k, block.attention.v))
        assert not found(block, LayerScale)
    changed = dataclasses.replace(small, qkv_bias=False, qk_scale=0.77, num_heads=8, layer_scale=0.3)
    for block in build(changed).encoder.blocks:
        assert (block.attention.scale, block.attention.num_heads) == (0.77, 8)
        assert all(part.bias is None for part in (block.attention.q, block.attention.k, block.attention.v))
        assert block.attention.output.bias is not None
        assert [scale.factor.unique().tolist() for scale in found(block, LayerScale)] == [[pytest.approx(0.3)]] * 2


@torch.no_grad()
def test_qk_scale_changes_the_weights(small: ViTConfig) -> None:
    tokens = torch.randn(2, 5, 32)
    attention = build(dataclasses.replace(small, qk_scale=0.77)).encoder.blocks[0].attention
    q, k = (part(tokens).reshape(2, 5, 4, 8).transpose(1, 2) for part in (attention.q, attention.k))
    expected = (0.77 * q @ k.transpose(-1, -2)).softmax(-1)
    torch.testing.assert_close(attention.weights(tokens, AttentionTerms()), expected)


def test_the_stems_width_reaches_the_patches(small: ViTConfig) -> None:
    for width, stages, channels in [(32, (), 32), (32, (1,), 128), (64, (1, 1), 512)]:
        stem = ResNetStem(stages=stages, width=width)
        model = build(dataclasses.replace(small, stem=stem, patch_size=(1, 1)))
        assert model.stem.root.out_channels == width
        assert model.patches.projection.in_channels == channels


def test_dropout_reaches_its_places(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, dropout=Dropout(embedding=0.1, attention=0.2, hidden=0.3)))
    assert model.embedding_dropout.p == 0.1
    for block in model.encoder.blocks:
        assert block.attention.dropout == 0.2
        assert (block.attention.output_dropout.p, block.mlp.dropout.p) == (0.3, 0.3)
    assert len(found(model, nn.Dropout)) == 1 + 2 * 2


def test_stochastic_depth_rises_linearly(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, depth=5, stochastic_depth=0.4))
    rates = [block.stochastic_depth.rate for block in model.encoder.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_patch_dropout_acts_in_training_only(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, patch_dropout=0.5))
    images = torch.zeros(2, 3, *small.image_size)
    assert model.train().features(images).patches.shape[1] == 6
    assert model.eval().features(images).patches.shape[1] == 12
