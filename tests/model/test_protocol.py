"""Every preset and model family implements `ModelConfig` and `Model`."""

import dataclasses

import pytest
import torch

from every_model import BARE, CONFIGS, SMALL
from vitreous.common.checks import BadValue
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, SegmenterConfig
from vitreous.model.options import Rotary2d
from vitreous.model.presets import PRESETS
from vitreous.model.protocol import ModelConfig, UnsupportedModel, require_attention

RESNET = ResNetConfig(image_size=(24, 32), stages=(1, 1), width=32, num_classes=5)
SEGMENTER = SegmenterConfig(BARE, num_classes=3)


@pytest.mark.parametrize("config", [*PRESETS.values(), *CONFIGS.values()], ids=[*PRESETS, *CONFIGS])
def test_every_config_implements_the_protocol(config: ModelConfig) -> None:
    assert config.family in ("vision-transformer", "swin", "resnet")
    assert config.task == (
        "segment" if isinstance(config, SegmenterConfig) else "classify" if config.num_classes else "embed"
    )
    assert config.num_layers >= 1
    assert config.summary.startswith(config.backbone.summary)
    assert config.backbone.backbone is config.backbone
    assert all(label and text for label, text in config.details())
    assert config.has_attention == config.backbone.has_attention
    assert config.has_attention or config.family != "vision-transformer"
    stride = config.patch_stride
    assert config.resized((2 * stride[0], 3 * stride[1])).grid == (2, 3)
    assert config.channels == len(config.preprocessing.mean) or len(config.preprocessing.mean) == 1


@pytest.mark.parametrize("name", CONFIGS)
def test_model_outputs_match_the_config(name: str) -> None:
    config, images = CONFIGS[name], torch.randn(2, 3, 24, 32)
    model = build(config).eval()
    backbone = model.backbone
    assert backbone.config == config.backbone
    features, pooled = backbone.features(images), model.pooled(images)
    prefix, patches = features.prefix.shape[1], features.grid[0] * features.grid[1]
    width = SMALL.width if getattr(config, "projection", None) else config.feature_width
    assert features.prefix.shape == (2, prefix, width)
    assert features.patches.shape == (2, patches, width)
    assert config.num_tokens == (prefix + patches if config.family == "vision-transformer" else 0)
    assert features.grid == backbone.config.grid == backbone.config.grid_for((24, 32))
    assert pooled.shape == (2, config.feature_width)
    assert len(model.heads) == 1 + config.distillation_token
    assert len(backbone.blocks) == (backbone.config.num_layers if config.backbone.has_attention else 0)
    below = {id(weight) for module in backbone.embedding for weight in module.parameters()}
    inside = {id(weight) for block in backbone.blocks for weight in block.parameters()}
    assert not below & inside
    assert bool(below) == bool(inside) == config.backbone.has_attention
    if config.task == "classify" and not config.distillation_token:
        torch.testing.assert_close(model.heads[0](pooled), model(images))
    assert model.resized((48, 64)).config == config.resized((48, 64))


def test_override_changes_backbone_fields() -> None:
    assert SMALL.override({"position": {"kind": "Rotary2d"}}).position == Rotary2d()
    assert SEGMENTER.override({"layer_scale": 0.5}).encoder.layer_scale == 0.5
    with pytest.raises(BadValue, match=r"'num_layer' is not a field of ResNetConfig"):
        RESNET.override({"num_layer": 3})
    with pytest.raises(BadValue, match=r"'pool' is not a field of ResNetConfig.* stages, .*num_classes"):
        RESNET.override({"pool": {"kind": "ClassToken"}})


def test_replace_head_keeps_device_dtype_and_known_labels() -> None:
    model = build(dataclasses.replace(RESNET, num_classes=2, labels=("cat", "dog"))).to(torch.bfloat16)
    before = model.head.weight
    model.replace_head(3, ("owl", "dog", "emu"))
    assert model.config.labels == ("owl", "dog", "emu")
    assert model.head.weight.dtype == torch.bfloat16
    assert torch.equal(model.head.weight[1], before[1])
    with pytest.raises(BadValue, match=r"num_classes is 7.*segmenter"):
        build(SEGMENTER).replace_head(7)


def test_error_names_the_unsupported_model() -> None:
    resnet, segmenter = build(RESNET), build(SEGMENTER)
    assert require_attention(segmenter, "explaining") is segmenter.encoder
    for call in (lambda: require_attention(resnet, "explaining"), resnet.recompute_blocks):
        with pytest.raises(UnsupportedModel, match=r"BiT ResNet \(width 32, stages 1, 1\)"):
            call()
    with pytest.raises(UnsupportedModel, match="distillation"):
        resnet.classify_distilled(resnet.features(torch.zeros(1, 3, 24, 32)))
