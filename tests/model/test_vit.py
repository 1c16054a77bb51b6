import dataclasses
from typing import Any

import pytest
import torch

import vitreous
from vitreous.model.build import build_vit
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    AttentionPool,
    Conditional,
    Dropout,
    GlobalAverage,
    Learned1d,
    MixedRotary2d,
    RelativeBias,
    Rotary2d,
)


def images(config: ViTConfig, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, config.channels, *config.image_size)


def test_features_contain_prefix_and_patches(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, registers=4))
    features = model.features(images(small))
    assert features.prefix.shape == (2, 5, 32)
    assert features.patches.shape == (2, 12, 32)
    assert features.grid == (3, 4)
    torch.testing.assert_close(features.patches.mean(-1), torch.zeros(2, 12), atol=1e-5, rtol=0)  # after the norm


INDEX = Rotary2d(coordinates="index", learned=Learned1d())


@pytest.mark.parametrize("position", [None, Rotary2d(), INDEX, MixedRotary2d(), RelativeBias(), Conditional()], ids=str)
def test_attention_equals_the_fused_path(position: Any, small: ViTConfig) -> None:
    """Recompute every layer from the returned attention weights and compare the features."""
    model = build_vit(small if position is None else dataclasses.replace(small, position=position)).eval()
    batch = images(small)
    maps = model.attention(batch)
    assert [tuple(weights.shape) for weights in maps] == [(2, 4, 13, 13)] * 2
    tokens, layout = model.embed(*model.patchify(batch))
    for layer, (block, weights) in enumerate(zip(model.encoder.blocks, maps, strict=True)):
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 13))
        values = block.attention.v(block.attention_norm(tokens)).reshape(2, 13, 4, 8).transpose(1, 2)
        tokens = tokens + block.attention.output((weights @ values).transpose(1, 2).reshape(2, 13, 32))
        tokens = tokens + block.mlp(block.mlp_norm(tokens))
        tokens = model.position.between(layer, tokens, layout)
    torch.testing.assert_close(model.norm(tokens)[:, 1:], model.features(batch).patches, atol=1e-5, rtol=0)


def test_attention_of_selected_layers(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, depth=4)).eval()
    batch = images(small)
    every = model.attention(batch)
    last, first = model.attention(batch, layers=[-1, 0])
    assert torch.equal(last, every[3])
    assert torch.equal(first, every[0])
    assert model.attention(batch, layers=[]) == model.intermediate(batch, layers=[]) == []
    with pytest.raises(ValueError, match=r"layer must be from 0 to 3 .*got 4"):
        model.attention(batch, layers=[4])


def test_last_intermediate_output_equals_the_features(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, depth=3)).eval()
    batch = images(small)
    layers = model.intermediate(batch)
    assert len(layers) == 3
    torch.testing.assert_close(layers[-1].patches, model.features(batch).patches)
    assert not torch.allclose(layers[0].patches, layers[-1].patches)
    (raw,) = model.intermediate(batch, layers=[1], norm=False)
    torch.testing.assert_close(model.norm(raw.patches), layers[1].patches)


def test_average_pooling_with_norm_before_and_after(small: ViTConfig) -> None:
    before = build_vit(
        dataclasses.replace(small, class_token=False, pool=GlobalAverage("before"), num_classes=0)
    ).eval()
    after = build_vit(dataclasses.replace(small, class_token=False, pool=GlobalAverage("after"), num_classes=0)).eval()
    state = {name.replace("norm.", "pool.norm.") if name.startswith("norm.") else name: value
             for name, value in before.state_dict().items()}  # fmt: skip
    after.load_state_dict(state)
    batch = images(small)
    tokens = before.intermediate(batch, layers=[-1], norm=False)[0].patches
    torch.testing.assert_close(before(batch), before.norm(tokens).mean(1))
    torch.testing.assert_close(after(batch), before.norm(tokens.mean(1)))
    torch.testing.assert_close(after.features(batch).patches, tokens)


def test_distillation_averages_two_heads(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, distillation_token=True)).eval()
    batch = images(small)
    features = model.features(batch)
    by_label, by_teacher = model.classify_distilled(features)
    torch.testing.assert_close(by_label, model.head(features.prefix[:, 0]))
    torch.testing.assert_close(by_teacher, model.distillation_head(features.prefix[:, 1]))
    torch.testing.assert_close(model(batch), (by_label + by_teacher) / 2)
    plain = build_vit(small)
    features = plain.features(batch)
    with pytest.raises(ValueError, match="no distillation token"):
        plain.classify_distilled(features)


def test_model_without_classes_returns_the_pooled_features(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, num_classes=0)).eval()
    batch = images(small)
    torch.testing.assert_close(model(batch), model.features(batch).prefix[:, 0])


@pytest.mark.parametrize(
    "change",
    [
        {"dropout": Dropout(embedding=0.5)},
        {"dropout": Dropout(attention=0.5)},
        {"dropout": Dropout(hidden=0.5)},
        {"stochastic_depth": 0.5},
        {"patch_dropout": 0.5},
    ],
    ids=str,
)
def test_regularisation_is_active_only_in_training(change: dict[str, Any], small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, depth=4, **change))
    batch = images(small, batch=8)
    assert not torch.allclose(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(2, 1, 24, 32), r"images must have 3 channels, got 1"),
        (torch.zeros(3, 24, 32), r"images must have shape \[batch, channels, height, width\], got \(3, 24, 32\)"),
        (torch.zeros(2, 3, 25, 32), r"25 x 32 .* use 24 x 32 or 32 x 32"),
        (torch.zeros(2, 3, 0, 0), r"image of 0 x 0"),
        (torch.zeros(2, 3, 24, 32, dtype=torch.uint8), r"images must be floating point.*got torch.uint8"),
    ],
)
def test_invalid_images_are_rejected(batch: torch.Tensor, message: str, small: ViTConfig) -> None:
    model = build_vit(small)
    with pytest.raises(ValueError, match=message):
        model(batch)


def test_padding_accepts_any_size(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, pad=True)).eval()
    batch = torch.randn(1, 3, 21, 30)
    whole = torch.nn.functional.pad(batch, (0, 2, 0, 3))
    torch.testing.assert_close(model(batch), model(whole))


def test_projection_gives_the_embedding_and_the_input_of_the_head(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, projection=6, num_classes=0)).eval()
    batch = images(small)
    embedding = model.projection(model.features(batch).prefix[:, 0])
    assert model.config.feature_width == 6
    for result in (model(batch), model.pooled(batch), *model.logits_and_pooled(batch)):
        torch.testing.assert_close(result, embedding)
    model.replace_head(3)
    torch.testing.assert_close(model.pooled(batch), embedding)
    torch.testing.assert_close(model(batch), model.head(embedding))


def test_norm_before_the_blocks_is_part_of_the_embedding(small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, pre_norm=True)).eval()
    batch = images(small)
    tokens, layout = model.embed(*model.patchify(batch))
    torch.testing.assert_close(tokens.mean(dim=-1), torch.zeros(tokens.shape[:2]), atol=1e-5, rtol=0)
    assert torch.equal(model.classify(model.encode(tokens, layout)), model(batch))
    assert model.pre_norm in model.embedding  # for layer-wise learning rates


def test_modules_can_be_replaced(small: ViTConfig) -> None:
    """Replace one module of a model."""
    model = build_vit(dataclasses.replace(small, pool=AttentionPool())).eval()
    batch = images(small)
    before = model(batch)
    model.pool = build_vit(dataclasses.replace(small, pool=GlobalAverage())).pool
    assert model(batch).shape == before.shape
    assert not torch.allclose(model(batch), before)


def test_public_names() -> None:
    assert set(vitreous.__all__) <= set(dir(vitreous))
    assert vitreous.ViTConfig is ViTConfig
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vitreous.nothing  # noqa: B018


def test_hybrid_error_names_image_sizes_not_feature_map_sizes() -> None:
    model = vitreous.create("R+ViT-Ti/16", overrides={"depth": 1}, num_classes=0)
    with pytest.raises(ValueError, match=r"225 x 224 .*32 x 32 patches.*224 x 224 or 256 x 224"):
        model(torch.zeros(1, 3, 225, 224))


@pytest.mark.usefixtures("unchecked")
def test_wrong_number_of_patches_is_rejected(small: ViTConfig) -> None:
    model, keep_indices = build_vit(small), torch.tensor([[0, 3], [1, 2]])
    patches, grid = model.patchify(images(small), keep_indices)
    with pytest.raises(ValueError, match=r"expected 12 patches for a 3 x 4 grid, got 2; pass keep_indices"):
        model.embed(patches, grid)
    with pytest.raises(ValueError, match=r"expected 3 patches for keep_indices, got 2"):
        model.embed(patches, grid, torch.tensor([[0, 3, 4], [1, 2, 5]]))
    assert model.embed(patches, grid, keep_indices)[0].shape == (2, 3, 32)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"registers": 4, "distillation_token": True, "layer_scale": 0.1},
        {"position": RelativeBias(), "head_dim": 16},
        {"position": MixedRotary2d()},
        {"position": Conditional()},
        {"untied_norms": True},
        {"pool": GlobalAverage(), "class_token": False},
    ],
    ids=str,
)
def test_an_exported_program_computes_the_same_with_fewer_tokens(options: dict[str, Any], small: ViTConfig) -> None:
    model = build_vit(dataclasses.replace(small, **options)).eval()
    batch = images(small)
    program = torch.export.export(model, (batch,), strict=False)
    torch.testing.assert_close(program.module()(batch), model(batch), atol=1e-5, rtol=1e-5)
    hidden = [node.meta["val"].shape[1] for node in program.graph.nodes if "gelu" in str(node.target)]
    last = model.config.num_prefix_tokens if model.pools_prefix else model.config.num_tokens
    assert hidden == [model.config.num_tokens, last]  # tokens in the MLP of each block
    assert model.pools_prefix == (
        not {"pool", "untied_norms"} & {*options} and options.get("position") != Conditional()
    )
