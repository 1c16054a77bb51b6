"""Preset hyperparameters match the papers and their released code."""

from typing import Any, NamedTuple

import pytest

from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.options import AttentionPool, ClassToken, Gelu, Learned1d, PoolConfig, ResNetStem
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
    class_token: bool = True
    pool: PoolConfig = ClassToken()
    pre_norm: bool = False  # and no bias of the patch projection
    embedding: int | None = None


IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
DEIT = {"gelu": "erf", "positions": "huggingface"} | IMAGENET
DEIT3 = {"gelu": "erf", "positions": "timm", "entries": False, "layer_scale": 1e-4} | IMAGENET
DINOV2 = {"gelu": "erf", "positions": "dinov2", "layer_scale": 1e-5, "side": 518, "classes": 0} | IMAGENET
REGISTERS = DINOV2 | {"positions": "dinov2-registers", "registers": 4}
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
CLIP = {"gelu": "quick", "eps": 1e-5, "positions": "timm", "pre_norm": True, "mean": MEAN, "std": STD, "classes": 0}
OPEN_CLIP = CLIP | {"gelu": "erf"}
SIGLIP = {"class_token": False, "pool": AttentionPool(), "classes": 0}
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
    "CLIP-B/32": Hyperparameters(768, 12, 12, 3072, 32, embedding=512, **CLIP),
    "CLIP-L/14-336": Hyperparameters(1024, 24, 16, 4096, 14, side=336, embedding=768, **CLIP),
    "OpenCLIP-H/14": Hyperparameters(1280, 32, 16, 5120, 14, embedding=1024, **OPEN_CLIP),
    "OpenCLIP-g/14": Hyperparameters(1408, 40, 16, 6144, 14, embedding=1024, **OPEN_CLIP),
    "OpenCLIP-bigG/14": Hyperparameters(1664, 48, 16, 8192, 14, embedding=1280, **OPEN_CLIP),
    "SigLIP-B/16-512": Hyperparameters(768, 12, 12, 3072, 16, side=512, **SIGLIP),
    "SigLIP-So400m/14-384": Hyperparameters(1152, 27, 16, 4304, 14, side=384, **SIGLIP),
    "SigLIP2-g-opt/16-256": Hyperparameters(1536, 40, 16, 6144, 16, side=256, **SIGLIP),
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
        class_token=config.class_token,
        pool=config.pool,
        pre_norm=config.pre_norm,
        embedding=config.projection,
    )
    assert found == NUMBERS[name]
    assert config.qkv_bias
    assert (config.qk_norm, config.qk_scale, config.patch_bias) == (False, None, not config.pre_norm)


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
