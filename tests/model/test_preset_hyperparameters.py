"""Preset hyperparameters match the papers and their released code."""

from typing import Any, NamedTuple

import pytest

from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.options import ClassToken, Gelu, Learned1d, ResNetStem
from vitreous.model.presets import preset


class Hyperparameters(NamedTuple):
    width: int
    depth: int
    heads: int
    mlp_width: int
    patch: int  # in image pixels, including the stem
    side: int = 224
    gelu: str = "tanh"
    eps: float = 1e-6
    layer_scale: float | None = None
    entries: bool = True  # the class token has a position
    positions: str = "google"  # position resampling
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
    "ViT-Ti/16": Hyperparameters(192, 12, 3, 768, 16),
    "ViT-S/32": Hyperparameters(384, 12, 6, 1536, 32),
    "ViT-B/16": Hyperparameters(768, 12, 12, 3072, 16),
    "ViT-L/16": Hyperparameters(1024, 24, 16, 4096, 16),
    "ViT-H/14": Hyperparameters(1280, 32, 16, 5120, 14),
    "ViT-g/14": Hyperparameters(1408, 40, 16, 6144, 14),
    "ViT-G/14": Hyperparameters(1664, 48, 16, 8192, 14),
    "ViT-Ti/4": Hyperparameters(192, 12, 3, 768, 4, side=32, classes=10),
    "R+ViT-Ti/16": Hyperparameters(192, 12, 3, 768, 32),
    "R26+ViT-S/32": Hyperparameters(384, 12, 6, 1536, 32),
    "R50+ViT-B/16": Hyperparameters(768, 12, 12, 3072, 16),
    "R50+ViT-L/32": Hyperparameters(1024, 24, 16, 4096, 32),
    "DeiT-S/16": Hyperparameters(384, 12, 6, 1536, 16, **DEIT),
    "DeiT-Ti/16-distilled": Hyperparameters(192, 12, 3, 768, 16, distilled=True, **DEIT),
    "DeiT-III-B/16": Hyperparameters(768, 12, 12, 3072, 16, **DEIT3),
    "DeiT-III-H/14": Hyperparameters(1280, 32, 16, 5120, 14, **DEIT3),
    "DINOv2-S/14": Hyperparameters(384, 12, 6, 1536, 14, **DINOV2),
    "DINOv2-L/14-reg": Hyperparameters(1024, 24, 16, 4096, 14, **REGISTERS),
    "DINOv2-g/14": Hyperparameters(1536, 40, 24, 4096, 14, **DINOV2 | {"gelu": "swiglu"}),
    "DINOv2-g/14-reg": Hyperparameters(1536, 40, 24, 4096, 14, **REGISTERS | {"gelu": "swiglu"}),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_preset_matches_its_paper(name: str) -> None:
    config = preset(name)
    assert isinstance(config, ViTConfig)
    assert isinstance(config.position, Learned1d)
    assert config.image_size[0] == config.image_size[1]
    found = Hyperparameters(
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
def test_hybrid_stem_matches_its_paper(name: str, stages: tuple[int, ...]) -> None:
    config = preset(name)
    assert isinstance(config, ViTConfig)
    assert config.stem == ResNetStem(stages=stages, width=64)


@pytest.mark.parametrize("depth", [6, 7])
def test_vit_lite_matches_its_paper(depth: int) -> None:
    config = preset(f"ViT-Lite-{depth}/4")
    assert isinstance(config, ViTConfig)
    assert (config.width, config.depth, config.num_heads, config.mlp_width) == (256, depth, 4, 512)
    assert (config.image_size, config.patch_size, config.num_classes) == ((32, 32), (4, 4), 10)


def test_bit_matches_its_paper() -> None:
    config = preset("BiT-R50x1")
    assert isinstance(config, ResNetConfig)
    assert (config.stages, config.width, config.image_size) == ((3, 4, 6, 3), 64, (224, 224))
    assert (config.preprocessing.mean, config.preprocessing.std) == ((0.5,), (0.5,))
