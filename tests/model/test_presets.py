import re

import pytest
import torch

import vitreous
from vitreous.model.build import build
from vitreous.model.options import Rotary2d
from vitreous.model.presets import PRESETS, configure, preset

# At the default image size and number of classes; these agree with the published counts.
COUNTS = {
    "ViT-Ti/8": 5_719_720,
    "ViT-Ti/16": 5_717_416,
    "ViT-Ti/32": 6_131_560,
    "ViT-S/8": 22_055_272,
    "ViT-S/16": 22_050_664,
    "ViT-S/32": 22_878_952,
    "ViT-B/8": 86_576_872,
    "ViT-B/16": 86_567_656,
    "ViT-B/32": 88_224_232,
    "ViT-L/14": 304_203_752,
    "ViT-L/16": 304_326_632,
    "ViT-L/32": 306_535_400,
    "ViT-H/14": 632_045_800,
    "ViT-H/16": 632_199_400,
    "ViT-g/14": 1_012_611_432,
    "ViT-G/14": 1_844_440_680,
    "ViT-Ti/4": 5_362_762,
    "ViT-S/4": 21_342_346,
    "ViT-Lite-6/4": 3_195_146,
    "ViT-Lite-7/4": 3_722_250,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
    "DeiT-Ti/16": 5_717_416,
    "DeiT-Ti/16-distilled": 5_910_800,
    "DeiT-S/16": 22_050_664,
    "DeiT-S/16-distilled": 22_436_432,
    "DeiT-B/16": 86_567_656,
    "DeiT-B/16-distilled": 87_338_192,
    "DeiT-III-S/16": 22_059_496,
    "DeiT-III-M/16": 38_849_512,
    "DeiT-III-B/16": 86_585_320,
    "DeiT-III-L/16": 304_374_760,
    "DeiT-III-H/14": 632_126_440,
    "DINOv2-S/14": 22_056_192,
    "DINOv2-B/14": 86_579_712,
    "DINOv2-L/14": 304_367_616,
    "DINOv2-g/14": 1_136_479_232,
    "DINOv2-S/14-reg": 22_057_728,
    "DINOv2-B/14-reg": 86_582_784,
    "DINOv2-L/14-reg": 304_371_712,
    "DINOv2-g/14-reg": 1_136_485_376,
    "DINOv3-S/16": 21_596_160,
    "DINOv3-S+/16": 28_692_480,
    "DINOv3-B/16": 85_659_648,
    "DINOv3-L/16": 303_128_576,
    "DINOv3-H+/16": 840_591_360,
    "DINOv3-7B/16": 6_716_030_976,
    "EVA02-Ti/14": 5_695_144,
    "EVA02-S/14": 22_006_120,
    "EVA02-B/14": 86_527_720,
    "EVA02-L/14": 304_293_800,
    "RoPE-ViT-S/16": 21_984_232,
    "RoPE-ViT-S/16-mixed": 21_988_840,
    "RoPE-ViT-S/16-ape": 22_059_496,
    "RoPE-ViT-S/16-mixed-ape": 22_064_104,
    "RoPE-ViT-B/16": 86_434_792,
    "RoPE-ViT-B/16-mixed": 86_444_008,
    "RoPE-ViT-B/16-ape": 86_585_320,
    "RoPE-ViT-B/16-mixed-ape": 86_594_536,
    "RoPE-ViT-L/16": 304_174_056,
    "RoPE-ViT-L/16-mixed": 304_198_632,
    "RoPE-ViT-L/16-ape": 304_374_760,
    "RoPE-ViT-L/16-mixed-ape": 304_399_336,
    "ViT-M/16-rope-reg1-gap": 38_743_016,
    "ViT-Md/16-rope-reg1-gap": 63_945_704,
    "ViT-Betwixt/16-rope-reg4-gap": 60_226_920,
    "ViT-B/16-rope-reg1-gap": 86_425_576,
    "CLIP-B/32": 87_849_216,
    "CLIP-B/16": 86_192_640,
    "CLIP-L/14": 303_966_208,
    "CLIP-L/14-336": 304_293_888,
    "OpenCLIP-B/32": 87_849_216,
    "OpenCLIP-B/16": 86_192_640,
    "OpenCLIP-L/14": 303_966_208,
    "OpenCLIP-H/14": 632_076_800,
    "OpenCLIP-g/14": 1_012_645_632,
    "OpenCLIP-bigG/14": 1_844_907_264,
    "SigLIP-B/16": 92_884_224,
    "SigLIP-B/16-256": 92_930_304,
    "SigLIP-B/16-384": 93_176_064,
    "SigLIP-B/16-512": 93_520_128,
    "SigLIP-L/16-256": 315_956_224,
    "SigLIP-L/16-384": 316_283_904,
    "SigLIP-So400m/14": 427_680_704,
    "SigLIP-So400m/14-384": 428_225_600,
    "SigLIP-So400m/16-256": 427_888_064,
    "SigLIP2-B/16": 92_884_224,
    "SigLIP2-B/16-256": 92_930_304,
    "SigLIP2-B/16-384": 93_176_064,
    "SigLIP2-B/16-512": 93_520_128,
    "SigLIP2-B/32-256": 94_552_320,
    "SigLIP2-L/16-256": 315_956_224,
    "SigLIP2-L/16-384": 316_283_904,
    "SigLIP2-L/16-512": 316_742_656,
    "SigLIP2-So400m/14": 427_680_704,
    "SigLIP2-So400m/14-384": 428_225_600,
    "SigLIP2-So400m/16-256": 427_888_064,
    "SigLIP2-So400m/16-384": 428_256_704,
    "SigLIP2-So400m/16-512": 428_772_800,
    "SigLIP2-g-opt/16-256": 1_163_168_256,
    "SigLIP2-g-opt/16-384": 1_163_659_776,
    "Swin-Ti/4": 28_288_354,  # Swin: equal to the models of timm with 1,000 classes
    "Swin-S/4": 49_606_258,
    "Swin-B/4": 87_768_224,
    "Swin-L/4": 196_532_476,
    "Swin-B/4-384": 87_903_584,
    "Swin-L/4-384": 196_735_516,
    "SwinV2-Ti/4-w8": 28_347_154,
    "SwinV2-Ti/4-w16": 28_347_154,
    "SwinV2-S/4-w8": 49_728_418,
    "SwinV2-S/4-w16": 49_728_418,
    "SwinV2-B/4-w8": 87_918_816,
    "SwinV2-B/4-w16": 87_918_816,
    "SwinV2-B/4-w12": 87_918_816,
    "SwinV2-B/4-w12to16": 87_918_816,
    "SwinV2-B/4-w12to24": 87_918_816,
    "SwinV2-L/4-w12": 196_739_932,
    "SwinV2-L/4-w12to16": 196_739_932,
    "SwinV2-L/4-w12to24": 196_739_932,
    "Swin-Ti/2": 6_822_028,
    "BiT-R50x1": 25_549_352,
}


def test_every_preset_has_a_count() -> None:
    assert set(PRESETS) == set(COUNTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", COUNTS)
def test_parameter_count(name: str) -> None:
    with torch.device("meta"):
        model = build(preset(name))
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]


def test_unknown_name_suggests_the_closest_preset() -> None:
    with pytest.raises(ValueError, match=r"preset 'vit-b/16' \(did you mean 'ViT-B/16'\?\)"):
        preset("vit-b/16")


def test_create_accepts_classes_size_and_overrides() -> None:
    model = vitreous.create(
        "ViT-Ti/16", num_classes=7, image_size=(32, 48), overrides={"depth": 1, "registers": 2, "position": Rotary2d()}
    )
    assert model(torch.zeros(1, 3, 32, 48)).shape == (1, 7)
    assert model.config.num_tokens == 1 + 2 + 2 * 3
    assert configure("ViT-Ti/16", overrides={"position": {"kind": "Rotary2d", "base": 50}}).position == Rotary2d(50.0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("size", [224.0, (1, 2, 3), "224", None])
def test_invalid_size_is_rejected(size: object) -> None:
    from vitreous.common.checks import as_size

    with pytest.raises(ValueError, match=r"image_size is .*, but must be one integer"):
        as_size(size)  # type: ignore[arg-type]


def test_error_names_the_unknown_override() -> None:
    with pytest.raises(ValueError, match=r"'num_head' is not a field of ViTConfig \(did you mean 'num_heads'\?\)"):
        configure("ViT-Ti/16", overrides={"num_head": 4})


@pytest.mark.parametrize(
    ("foreign_name", "preset_name"),
    [
        ("vit_base_patch16_224.augreg_in21k", "ViT-B/16"),
        ("google/vit-large-patch32-384", "ViT-L/32"),
        ("vit_giant_patch14_224", "ViT-g/14"),
        ("deit_tiny_distilled_patch16_224", "DeiT-Ti/16-distilled"),
        ("deit3_medium_patch16_224", "DeiT-III-M/16"),
        ("vit_base_patch14_dinov2", "DINOv2-B/14"),
        ("vit_small_patch14_reg4_dinov2", "DINOv2-S/14-reg"),
        ("vit_small_plus_patch16_dinov3.lvd1689m", "DINOv3-S+/16"),
        ("facebook/dinov3-vit7b16-pretrain-lvd1689m", "DINOv3-7B/16"),
        ("dinov3_vith16plus", "DINOv3-H+/16"),
        ("eva02_base_patch14_448.mim_in22k_ft_in1k", "EVA02-B/14"),
        ("vit_large_patch16_rope_mixed_ape_224.naver_in1k", "RoPE-ViT-L/16-mixed-ape"),
        ("vit_mediumd_patch16_rope_reg1_gap_256.sbb_in1k", "ViT-Md/16-rope-reg1-gap"),
        ("openai/clip-vit-large-patch14-336", "CLIP-L/14-336"),
        ("vit_gigantic_patch14_clip_224.laion2b", "OpenCLIP-bigG/14"),
        ("vit_so400m_patch14_siglip_384.webli", "SigLIP-So400m/14-384"),
        ("google/siglip2-giant-opt-patch16-256", "SigLIP2-g-opt/16-256"),
    ],
)
def test_foreign_model_name_suggests_the_preset(foreign_name: str, preset_name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"preset '{foreign_name}' (did you mean '{preset_name}'?)")):
        preset(foreign_name)


def test_unrelated_name_gets_no_suggestion() -> None:
    with pytest.raises(ValueError, match=r"preset 'vit_base_patch99_224'; `vitreous info`"):
        preset("vit_base_patch99_224")
