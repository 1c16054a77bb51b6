import dataclasses
import json
import math
from typing import Any

import pytest

from vitreous.common.codec import from_dict, to_dict
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    AttentionPool,
    Conditional,
    Dropout,
    GlobalAverage,
    Learned1d,
    Learned2d,
    MlpHead,
    Preprocessing,
    RelativeBias,
    ResNetStem,
    Rotary2d,
    SinCos2d,
    SwiGlu,
    TanhHead,
)
from vitreous.model.presets import PRESETS

BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"image_size": 224}, r"image_size is 224, but must be a \(height, width\) pair"),
    ({"image_size": (225, 224)}, r"225 x 224 .* 224 x 224 or 240 x 224.*pad=True"),
    ({"image_size": (8, 8)}, r"8 x 8 .* use 16 x 16, or"),
    ({"image_size": (2**20, 16)}, r"image_size is \(1048576, 16\)"),
    ({"image_size": (2**16, 2**16)}, "1048576 patches.*16777216"),
    ({"image_size": (0, 0)}, r"image_size is \(0, 0\)"),
    ({"head": TanhHead(2**16), "num_classes": 10**7}, r"about 6.6e\+11 parameters"),
    ({"stem": ResNetStem((256,) * 4, 1024), "patch_size": (1, 1)}, r"about 3.9e\+11 parameters"),
    ({"layer_scale": 10**400}, r"layer_scale is 10000"),
    ({"channels": 0}, r"channels is 0, but must be an integer from 1"),
    ({"patch_size": (0, 16)}, r"patch_size is \(0, 16\)"),
    ({"patch_method": "convolution"}, r"patch_method is 'convolution', but must be one of 'conv', 'linear'"),
    ({"width": 100, "num_heads": 12}, r"num_heads is 12, but must be a divisor of width \(100\)"),
    ({"width": 10**9}, r"width is 1000000000, but must be an integer from 1 to 65536"),
    ({"depth": 0}, r"depth is 0"),
    ({"depth": 12.0}, r"depth is 12.0, but must be an integer"),
    ({"depth": True}, r"depth is True, but must be an integer"),
    ({"width": 65536, "num_heads": 16, "mlp_width": 262144, "depth": 1000}, r"about 6.9e\+13 parameters"),
    ({"num_classes": 10**9}, r"num_classes is 1000000000"),
    ({"norm_eps": math.nan}, r"norm_eps is nan"),
    ({"layer_scale": math.inf}, r"layer_scale is inf, but must be a finite number above 0"),
    ({"qk_scale": -1.0}, r"qk_scale is -1.0"),
    ({"stochastic_depth": 1.0}, r"stochastic_depth is 1.0, but must be less than 1"),
    ({"patch_dropout": math.nan}, r"patch_dropout is nan"),
    ({"position": "learned"}, r"position is 'learned', but must be one of Learned1d\(\.\.\.\), Learned2d"),
    ({"class_token": False}, r"pool is ClassToken\(\), but must be GlobalAverage\(\) or AttentionPool\(\)"),
    ({"distillation_token": True, "pool": GlobalAverage()}, r"pool is .*, but must be ClassToken\(\)"),
    ({"distillation_token": True, "projection": 8}, r"projection is 8, but must be None"),
    ({"projection": 0}, r"projection is 0, but must be an integer from 1"),
    ({"truncate": True, "pad": True}, r"truncate is True, but must be False if the model pads"),
    ({"truncate": True, "image_size": (15, 40)}, r"15 x 40 .* use 16 x 32 or 16 x 48"),
    ({"position": SinCos2d(), "width": 6, "num_heads": 1}, r"width is 6, .*SinCos2d"),
    ({"position": Learned2d(), "width": 3, "num_heads": 1}, r"width is 3, .*Learned2d"),
    ({"position": Rotary2d(), "width": 36, "num_heads": 6}, r"Rotary2d .*multiple of 4, got 6 \(num_heads=6\)"),
    ({"labels": ("cat",), "num_classes": 2}, r"labels must .* 2 names .*got 1"),
    ({"channels": 1, "preprocessing": Preprocessing(mean=(0.1, 0.2, 0.3))}, r"preprocessing.mean .*channels=1"),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("fields", "message"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_error_names_the_invalid_field(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViTConfig(**fields)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Learned1d(interpolation="tim"), r"position.interpolation is 'tim'.*did you mean 'timm'"),
        (lambda: SinCos2d(temperature=math.nan), r"position.temperature is nan"),
        (lambda: Rotary2d(base=0), r"position.base is 0"),
        (lambda: Rotary2d(reference_grid=(16, 16)), r"position.reference_grid .* unless coordinates are 'index'"),
        (lambda: Conditional(kernel_size=4), r"position.kernel_size is 4, but must be odd"),
        (lambda: Dropout(attention=-0.1), r"dropout.attention is -0.1"),
        (lambda: GlobalAverage("last"), r"pool.norm is 'last', but must be one of 'before', 'after'"),
        (lambda: TanhHead(width=0), r"head.width is 0"),
        (
            lambda: ResNetStem(stages=(3, 4, 6, 3, 2)),
            r"stem.stages is \(3, 4, 6, 3, 2\), but must be a tuple of at most 4",
        ),
        (lambda: ResNetStem(width=100), r"stem.width is 100, but must be a multiple of 32"),
        (lambda: Preprocessing(std=(0.0,)), r"preprocessing.std is 0.0"),
        (lambda: Preprocessing(crop_fraction=2.0), r"preprocessing.crop_fraction is 2.0"),
    ],
)
def test_error_names_the_invalid_option(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


UNUSUAL = ViTConfig(
    image_size=(30, 50),
    channels=2,
    patch_size=(4, 7),
    pad=True,
    position=SinCos2d("big_vision", 500.0),
    width=24,
    num_heads=2,
    mlp=SwiGlu(),
    pool=AttentionPool(),
    head=MlpHead(8),
    num_classes=2,
    labels=("猫", "dog"),
    layer_scale=1e-5,
    dropout=Dropout(0.1, 0.2, 0.3),
)
KINDS = [dataclasses.replace(ViTConfig(), position=position) for position in (RelativeBias("timm"), Conditional(5))]


@pytest.mark.parametrize(
    "config", [*PRESETS.values(), UNUSUAL, *KINDS], ids=[*PRESETS, "unusual", "bias", "conditional"]
)
def test_json_round_trip(config: Any) -> None:
    text = json.dumps(to_dict(config), allow_nan=False)
    assert from_dict(type(config), json.loads(text)) == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widht": 3}, r"config.widht is not a field of ViTConfig \(did you mean 'width'\?\)"),
        ({"width": "768"}, r"config.width must be of type int, got '768'"),
        ({"image_size": [1, 2, 3]}, r"config.image_size must have 2 entries, got \[1, 2, 3\]"),
        (
            {"position": {"kind": "Learned3d"}},
            r"config.position.kind must be .*, got 'Learned3d'.*did you mean 'Learned[12]d'",
        ),
        ({"mlp": {"kind": "Gelu"}}, r"config.mlp lacks approximation, which Gelu requires"),
        ({"mlp": {"kind": "Gelu", "tanh": True}}, r"config.mlp.tanh is not a field of Gelu"),
        ({"stem": 3}, r"config.stem must be an object with the fields of ResNetStem, got 3"),
        ({"layer_scale": 10**400}, r"config.layer_scale must be of type float, got 1000"),
        ({"position": {"kind": ["a"]}}, r"config.position.kind must be .*, got \['a'\]"),
        ({"position": "Rotary2d"}, r"config.position must be an object whose kind is one of"),
        ({"width": 10**12}, r"width is 1000000000000"),
        ({"kind": "ResNetConfig"}, r"config.kind must be 'ViTConfig', got 'ResNetConfig'"),
    ],
)
def test_error_names_the_invalid_json_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(ViTConfig, {**to_dict(ViTConfig()), **change})


def test_square_size_can_be_one_integer() -> None:
    assert from_dict(ViTConfig, {"patch_size": 32}).patch_size == (32, 32)


def test_hybrid_grid_accounts_for_the_stem() -> None:
    config = ViTConfig(stem=ResNetStem(stages=(3, 4, 9)), patch_size=(1, 1), image_size=(225, 320))
    assert config.grid == (15, 20)  # the stem pads 225 to 15 * 16
