"""Every config field is applied to all modules that it configures."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from vitreous.model.attention import AttentionTerms
from vitreous.model.block import LayerScale
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.options import AttentionPool, ClassToken, Dropout, Gelu, GlobalAverage, ResNetStem, SwiGlu
from vitreous.model.resnet import PreActivationUnit


def found(model: nn.Module, kind: type[nn.Module]) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, kind)]


@pytest.mark.parametrize("pool", [ClassToken(), GlobalAverage("before"), GlobalAverage("after"), AttentionPool()])
def test_eps_is_applied_to_every_norm(small: ViTConfig, pool: Any) -> None:
    model = build(dataclasses.replace(small, norm_eps=3e-4, qk_norm=True, pool=pool))
    norms = found(model, nn.LayerNorm)
    assert len(norms) == 2 * (2 + 2) + 1 + (pool == AttentionPool())
    assert {norm.eps for norm in norms} == {3e-4}


def test_group_norm_eps_matches_released_code(small: ViTConfig) -> None:
    hybrid = build(dataclasses.replace(small, stem=ResNetStem(stages=(1,), width=32), patch_size=(2, 2)))
    assert {norm.eps for norm in found(hybrid, nn.GroupNorm)} == {1e-6}
    bit = build(ResNetConfig(stages=(1, 1), width=32))
    assert {norm.eps for norm in found(bit, nn.GroupNorm)} == {1e-5}
    assert all(norm.num_groups == 32 for norm in (*found(hybrid, nn.GroupNorm), *found(bit, nn.GroupNorm)))
    assert len(found(bit, PreActivationUnit)) == 2


@pytest.mark.parametrize(("approximation", "torchs"), [("tanh", "tanh"), ("erf", "none")])
def test_gelu_is_applied_to_every_mlp(small: ViTConfig, approximation: Any, torchs: str) -> None:
    model = build(dataclasses.replace(small, mlp=Gelu(approximation), pool=AttentionPool()))
    assert [gelu.approximate for gelu in found(model, nn.GELU)] == [torchs] * 3  # including the attention pooling


def test_swiglu_is_applied_to_every_mlp(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, mlp=SwiGlu()))
    assert not found(model, nn.GELU)
    assert [block.mlp.gate_and_up.out_features for block in model.encoder.blocks] == [2 * small.mlp_width] * 2


def test_attention_options_are_applied_to_every_block(small: ViTConfig) -> None:
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


def test_key_bias_and_norms_are_applied_to_every_block(small: ViTConfig) -> None:
    changes = {"key_bias": False, "attention_output_norm": True, "mlp": SwiGlu(norm=True), "norm_eps": 3e-4}
    for block in build(dataclasses.replace(small, **changes)).encoder.blocks:
        biases = [part.bias is not None for part in (block.attention.q, block.attention.k, block.attention.v)]
        assert biases == [True, False, True]
        assert (block.attention.output_norm.eps, block.mlp.norm.eps) == (3e-4, 3e-4)
        assert block.mlp.norm.normalized_shape == (small.mlp_width,)


@torch.no_grad()
def test_untied_norms_apply_to_prefix_tokens_and_patches(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, untied_norms=True, registers=2)).eval()
    model.norm.prefix.weight.fill_(2)
    model.norm.patches.bias.fill_(3)
    features = model.features(torch.randn(2, 3, *small.image_size))
    torch.testing.assert_close(features.prefix.std(dim=-1, correction=0), torch.full((2, 3), 2.0), atol=1e-3, rtol=0)
    torch.testing.assert_close(features.patches.mean(dim=-1), torch.full((2, 12), 3.0), atol=1e-5, rtol=0)


@torch.no_grad()
def test_qk_scale_changes_the_attention_weights(small: ViTConfig) -> None:
    tokens = torch.randn(2, 5, 32)
    attention = build(dataclasses.replace(small, qk_scale=0.77)).encoder.blocks[0].attention
    q, k = (part(tokens).reshape(2, 5, 4, 8).transpose(1, 2) for part in (attention.q, attention.k))
    expected = (0.77 * q @ k.transpose(-1, -2)).softmax(-1)
    torch.testing.assert_close(attention.weights(tokens, AttentionTerms()), expected)


def test_stem_width_sets_the_patch_projection_width(small: ViTConfig) -> None:
    for width, stages, channels in [(32, (), 32), (32, (1,), 128), (64, (1, 1), 512)]:
        stem = ResNetStem(stages=stages, width=width)
        model = build(dataclasses.replace(small, stem=stem, patch_size=(1, 1)))
        assert model.stem.root.out_channels == width
        assert model.patches.projection.in_channels == channels


def test_dropout_is_applied_to_every_layer(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, dropout=Dropout(embedding=0.1, attention=0.2, hidden=0.3)))
    assert model.embedding_dropout.p == 0.1
    for block in model.encoder.blocks:
        assert block.attention.dropout == 0.2
        assert (block.attention.output_dropout.p, block.mlp.dropout.p) == (0.3, 0.3)
    assert len(found(model, nn.Dropout)) == 1 + 2 * 2


def test_stochastic_depth_increases_linearly(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, depth=5, stochastic_depth=0.4))
    rates = [block.stochastic_depth.rate for block in model.encoder.blocks]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_patch_dropout_is_active_only_in_training(small: ViTConfig) -> None:
    model = build(dataclasses.replace(small, patch_dropout=0.5))
    images = torch.zeros(2, 3, *small.image_size)
    assert model.train().features(images).patches.shape[1] == 6
    assert model.eval().features(images).patches.shape[1] == 12
