"""Model presets, named as in their papers. This module imports torch only to build a model."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vitreous.common.checks import BadValue, as_size, suggestion
from vitreous.model.config import AnyConfig, ResNetConfig, ViTConfig
from vitreous.model.options import (
    CLIP,
    IMAGENET,
    SIGLIP,
    AttentionPool,
    Gelu,
    GlobalAverage,
    Learned1d,
    MixedRotary2d,
    Preprocessing,
    ResNetStem,
    Rotary2d,
    SwiGlu,
)
from vitreous.model.swin_config import SwinConfig, SwinV2


class Shape(NamedTuple):
    width: int
    depth: int
    num_heads: int
    mlp_width: int


SIZES = {
    "Ti": Shape(192, 12, 3, 768),  # DeiT (arXiv 2012.12877), Table 1
    "S": Shape(384, 12, 6, 1536),
    "M": Shape(512, 12, 8, 2048),  # DeiT-III (arXiv 2204.07118)
    "B": Shape(768, 12, 12, 3072),  # the paper, Table 1
    "L": Shape(1024, 24, 16, 4096),
    "H": Shape(1280, 32, 16, 5120),
    "g": Shape(1408, 40, 16, 6144),  # Scaling Vision Transformers (arXiv 2106.04560), Table 2
    "G": Shape(1664, 48, 16, 8192),
    "g2": Shape(1536, 40, 24, 4096),  # DINOv2's giant, with SwiGLU (arXiv 2304.07193, Table 17)
    "So400m": Shape(1152, 27, 16, 4304),  # SoViT-400m (arXiv 2305.13035)
    "g-opt": Shape(1536, 40, 16, 6144),  # SigLIP 2's giant (arXiv 2502.14786)
    "H2": Shape(1280, 32, 20, 5120),  # DINOv3's H+ (arXiv 2508.10104)
    "7B": Shape(4096, 40, 32, 8192),
    "Ti2": Shape(192, 12, 3, 512),  # EVA-02 (arXiv 2303.11331): SwiGLU with 2/3 of the usual width
    "S2": Shape(384, 12, 6, 1024),
    "B2": Shape(768, 12, 12, 2048),
    "L2": Shape(1024, 24, 16, 2730),
    "Md": Shape(512, 20, 8, 2048),  # timm's "mediumd" and "betwixt"
    "Betwixt": Shape(640, 12, 10, 2560),
    "Lite6": Shape(256, 6, 4, 512),  # ViT-Lite (Compact Transformers, arXiv 2104.05704), for 32-pixel images
    "Lite7": Shape(256, 7, 4, 512),
}

# Hybrids: stem, ViT size, and patch size on the feature map (arXiv 2106.10270, Table 2).
# R+ViT-Ti/16 has 8 x 8 patches on a map with stride 4, so a patch covers 32 pixels, as in its released weights.
HYBRIDS = {
    "R+ViT-Ti/16": (ResNetStem(stages=()), "Ti", 8),
    "R26+ViT-S/32": (ResNetStem(stages=(2, 2, 2, 2)), "S", 1),
    "R26+ViT-B/32": (ResNetStem(stages=(2, 2, 2, 2)), "B", 1),
    "R50+ViT-B/16": (ResNetStem(stages=(3, 4, 9)), "B", 1),
    "R50+ViT-L/32": (ResNetStem(stages=(3, 4, 6, 3)), "L", 1),
}

PATCHES = {
    "Ti": (8, 16, 32),
    "S": (8, 16, 32),
    "B": (8, 16, 32),
    "L": (14, 16, 32),
    "H": (14, 16),
    "g": (14,),
    "G": (14,),
}

# CLIP and OpenCLIP: size, patch size, image size, and width of the image embedding.
CLIPS = {
    "CLIP-B/32": ("B", 32, 224, 512),
    "CLIP-B/16": ("B", 16, 224, 512),
    "CLIP-L/14": ("L", 14, 224, 768),
    "CLIP-L/14-336": ("L", 14, 336, 768),
    "OpenCLIP-B/32": ("B", 32, 224, 512),
    "OpenCLIP-B/16": ("B", 16, 224, 512),
    "OpenCLIP-L/14": ("L", 14, 224, 768),
    "OpenCLIP-H/14": ("H", 14, 224, 1024),
    "OpenCLIP-g/14": ("g", 14, 224, 1024),
    "OpenCLIP-bigG/14": ("G", 14, 224, 1280),
}
# SigLIP and SigLIP 2, whose vision towers are equal: patch size and image sizes of the published models.
SIGLIPS: dict[str, dict[str, dict[int, tuple[int, ...]]]] = {
    "SigLIP": {
        "B": {16: (224, 256, 384, 512)},
        "L": {16: (256, 384)},
        "So400m": {14: (224, 384), 16: (256,)},
    },
    "SigLIP2": {
        "B": {16: (224, 256, 384, 512), 32: (256,)},
        "L": {16: (256, 384, 512)},
        "So400m": {14: (224, 384), 16: (256, 384, 512)},
        "g-opt": {16: (256, 384)},
    },
}

# Swin V1 and V2: width, depths and heads of the stages (arXiv 2103.14030, section 3.3).
SWINS = {
    "Ti": (96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "S": (96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "B": (128, (2, 2, 18, 2), (4, 8, 16, 32)),
    "L": (192, (2, 2, 18, 2), (6, 12, 24, 48)),
}


# EVA-02's rows and columns are scaled to those of its pre-training, 16 x 16 patches.
EVA_ROTARY = Rotary2d(10_000.0, "index", (16, 16), learned=Learned1d(interpolation="timm"))


def _sized(size: str, patch: int, base: ViTConfig) -> ViTConfig:
    return dataclasses.replace(base, patch_size=(patch, patch), **SIZES[size]._asdict())


def _presets() -> dict[str, AnyConfig]:
    paper = ViTConfig()  # the numerics of Google's code: tanh GELU, eps 1e-6, bilinear positions, mean and std 0.5
    small = dataclasses.replace(paper, image_size=(32, 32), patch_size=(4, 4), num_classes=10)
    deit = dataclasses.replace(
        paper, mlp=Gelu("erf"), position=Learned1d(interpolation="huggingface"), preprocessing=IMAGENET
    )
    deit3 = dataclasses.replace(deit, position=Learned1d(prefix_entries=False, interpolation="timm"), layer_scale=1e-4)
    dinov2 = dataclasses.replace(
        deit,
        image_size=(518, 518),
        patch_size=(14, 14),
        position=Learned1d(interpolation="dinov2"),
        layer_scale=1e-5,
        num_classes=0,
    )
    registers = dataclasses.replace(dinov2, registers=4, position=Learned1d(interpolation="dinov2-registers"))

    presets: dict[str, AnyConfig] = {}
    for size, patches in PATCHES.items():
        presets |= {f"ViT-{size}/{patch}": _sized(size, patch, paper) for patch in patches}
    presets |= {f"ViT-{size}/4": _sized(size, 4, small) for size in ("Ti", "S")}
    presets |= {f"ViT-Lite-{depth}/4": _sized(f"Lite{depth}", 4, small) for depth in (6, 7)}
    for name, (stem, size, patch) in HYBRIDS.items():
        presets[name] = dataclasses.replace(_sized(size, patch, paper), stem=stem)
    for size in ("Ti", "S", "B"):
        presets[f"DeiT-{size}/16"] = _sized(size, 16, deit)
        presets[f"DeiT-{size}/16-distilled"] = _sized(size, 16, dataclasses.replace(deit, distillation_token=True))
    for size, patch in (("S", 16), ("M", 16), ("B", 16), ("L", 16), ("H", 14)):
        presets[f"DeiT-III-{size}/{patch}"] = _sized(size, patch, deit3)
    for name, base in (("", dinov2), ("-reg", registers)):
        presets |= {f"DINOv2-{size}/14{name}": _sized(size, 14, base) for size in ("S", "B", "L")}
        presets[f"DINOv2-g/14{name}"] = _sized("g2", 14, dataclasses.replace(base, mlp=SwiGlu()))
    presets |= _rotary(deit)
    presets |= _towers(paper)
    presets |= _swins()
    presets["BiT-R50x1"] = ResNetConfig()  # the paper's "ResNet (BiT)" baseline, section 4.1
    return presets


def _rotary(deit: ViTConfig) -> dict[str, AnyConfig]:
    """Return the models with rotary positions: DINOv3, EVA-02, RoPE-ViT and timm's `vit_*_rope_reg*_gap_256`."""
    squash = dataclasses.replace(IMAGENET, fit="squash", crop_fraction=1.0, interpolation="bilinear")
    dinov3 = dataclasses.replace(
        deit,
        registers=4,
        position=Rotary2d(),
        key_bias=False,
        norm_eps=1e-5,
        layer_scale=1e-5,
        num_classes=0,
        preprocessing=squash,
    )
    gated = dataclasses.replace(dinov3, mlp=SwiGlu())
    eva = dataclasses.replace(
        deit,
        position=EVA_ROTARY,
        key_bias=False,
        mlp=SwiGlu(),
        pool=GlobalAverage("after"),
        preprocessing=CLIP,
    )
    sub_norm = dataclasses.replace(eva, mlp=SwiGlu(norm=True))
    rope_vit = dataclasses.replace(
        deit, layer_scale=1e-5, preprocessing=dataclasses.replace(IMAGENET, crop_fraction=0.9)
    )
    patches_only = Learned1d(prefix_entries=False, interpolation="timm")
    average = dataclasses.replace(
        rope_vit,
        image_size=(256, 256),
        class_token=False,
        position=dataclasses.replace(EVA_ROTARY, learned=None),
        key_bias=False,
        pool=GlobalAverage("after"),
        preprocessing=Preprocessing(crop_fraction=0.95),
    )

    presets: dict[str, AnyConfig] = {f"DINOv3-{size}/16": _sized(size, 16, dinov3) for size in ("S", "B", "L")}
    presets["DINOv3-S+/16"] = _sized("S", 16, gated)
    presets["DINOv3-H+/16"] = _sized("H2", 16, gated)
    presets["DINOv3-7B/16"] = _sized("7B", 16, dataclasses.replace(gated, qkv_bias=False))
    presets |= {f"EVA02-{size}/14": _sized(f"{size}2", 14, eva) for size in ("Ti", "S")}
    presets |= {f"EVA02-{size}/14": _sized(f"{size}2", 14, sub_norm) for size in ("B", "L")}
    for size in ("S", "B", "L"):
        for name, learned in (("", None), ("-ape", patches_only)):
            axial, mixed = Rotary2d(coordinates="index", learned=learned), MixedRotary2d(learned=learned)
            presets[f"RoPE-ViT-{size}/16{name}"] = _sized(size, 16, dataclasses.replace(rope_vit, position=axial))
            presets[f"RoPE-ViT-{size}/16-mixed{name}"] = _sized(size, 16, dataclasses.replace(rope_vit, position=mixed))
    for size, registers in (("M", 1), ("Md", 1), ("Betwixt", 4), ("B", 1)):
        bias = size != "Md"
        tower = dataclasses.replace(average, registers=registers, qkv_bias=bias)
        presets[f"ViT-{size}/16-rope-reg{registers}-gap"] = _sized(size, 16, tower)
    return presets


def _towers(paper: ViTConfig) -> dict[str, AnyConfig]:
    """Return the vision towers of models for images and texts. Their output is the image embedding."""
    clip = dataclasses.replace(
        paper,
        patch_bias=False,
        pre_norm=True,
        norm_eps=1e-5,
        position=Learned1d(interpolation="timm"),  # as in OpenCLIP; OpenAI's code has a fixed image size
        num_classes=0,
        preprocessing=CLIP,
    )
    siglip = dataclasses.replace(paper, class_token=False, pool=AttentionPool(), num_classes=0, preprocessing=SIGLIP)
    presets: dict[str, AnyConfig] = {}
    for name, (size, patch, side, embedding) in CLIPS.items():
        mlp = Gelu("erf" if name.startswith("OpenCLIP") else "quick")
        tower = dataclasses.replace(clip, image_size=(side, side), projection=embedding, mlp=mlp)
        presets[name] = _sized(size, patch, tower)
    for family, sizes in SIGLIPS.items():
        for size, patches in sizes.items():
            for patch, sides in patches.items():
                for side in sides:
                    tower = dataclasses.replace(siglip, image_size=(side, side), truncate=side % patch > 0)
                    suffix = "" if side == 224 else f"-{side}"
                    presets[f"{family}-{size}/{patch}{suffix}"] = _sized(size, patch, tower)
    return presets


def _swins() -> dict[str, AnyConfig]:
    """Return the published Swin Transformers, and a small one for 32-pixel images."""

    def sized(size: str, window: int, pixels: int, pretrained: int | None = None) -> SwinConfig:
        width, depths, heads = SWINS[size]
        swin = SwinConfig((pixels, pixels), width=width, depths=depths, stage_heads=heads, window=(window, window))
        if pretrained is None:
            return swin
        return dataclasses.replace(swin, version=SwinV2((pretrained,) * 3 + (pretrained // 2,) if pretrained else ()))

    presets: dict[str, AnyConfig] = {f"Swin-{size}/4": sized(size, 7, 224) for size in SWINS}
    presets |= {f"Swin-{size}/4-384": sized(size, 12, 384) for size in ("B", "L")}
    for size in ("Ti", "S", "B"):
        presets |= {f"SwinV2-{size}/4-w{window}": sized(size, window, 256, 0) for window in (8, 16)}
    for size in ("B", "L"):  # pre-trained at 192 pixels, then fine-tuned with larger windows
        presets[f"SwinV2-{size}/4-w12"] = sized(size, 12, 192, 0)
        presets |= {f"SwinV2-{size}/4-w12to{side}": sized(size, side, 16 * side, 12) for side in (16, 24)}
    presets["Swin-Ti/2"] = SwinConfig(
        (32, 32),
        patch_size=(2, 2),
        depths=(2, 6, 2),
        stage_heads=(3, 6, 12),
        window=(4, 4),
        num_classes=10,
        preprocessing=ViTConfig().preprocessing,
    )
    return presets


PRESETS = _presets()


def preset(name: str) -> AnyConfig:
    """Return the config of a preset.

    >>> preset("ViT-B16")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    vitreous.common.checks.BadValue: unknown preset 'ViT-B16' (did you mean 'ViT-B/16'?); ...
    """
    if name not in PRESETS:
        meant = _preset_name(name)
        hint = f" (did you mean {meant!r}?)" if meant in PRESETS else suggestion(name, PRESETS)
        raise BadValue(f"unknown preset {name!r}{hint}; `vitreous info` lists all presets")
    return PRESETS[name]


FAMILIES = {"vit": "ViT", "deit": "DeiT", "deit3": "DeiT-III", "siglip": "SigLIP", "siglip2": "SigLIP2"}
LETTERS = {
    "tiny": "Ti",
    "small": "S",
    "medium": "M",
    "base": "B",
    "large": "L",
    "huge": "H",
    "giant": "g",
    "gigantic": "G",
    "so400m": "So400m",
    "giantopt": "g-opt",
    "giant-opt": "g-opt",
}


def _preset_name(name: str) -> str:
    """Return the preset name for a timm or transformers model name, or "" if the name is not recognised.

    >>> _preset_name("vit_base_patch16_224"), _preset_name("facebook/deit-tiny-distilled-patch16-224")
    ('ViT-B/16', 'DeiT-Ti/16-distilled')
    >>> _preset_name("vit_small_patch14_reg4_dinov2.lvd142m")
    'DINOv2-S/14-reg'
    >>> _preset_name("vit_large_patch14_clip_336.openai"), _preset_name("google/siglip2-base-patch16-512")
    ('CLIP-L/14-336', 'SigLIP2-B/16-512')
    >>> _preset_name("vit_base_patch16_clip_384.laion2b_ft_in12k_in1k"), _preset_name("vit_base_patch16_siglip_gap_224")
    ('OpenCLIP-B/16', '')
    >>> _preset_name("facebook/dinov3-vits16plus-pretrain-lvd1689m"), _preset_name("vit_small_patch16_rope_mixed_224")
    ('DINOv3-S+/16', 'RoPE-ViT-S/16-mixed')
    >>> _preset_name("swin_base_patch4_window12_384"), _preset_name("microsoft/swinv2-tiny-patch4-window8-256")
    ('Swin-B/4-384', 'SwinV2-Ti/4-w8')
    """
    if rotary := _rotary_name(name.lower()):
        return rotary
    name, sizes = name.lower(), "|".join(LETTERS)
    if swin := re.search(rf"swin(v2)?[-_]({sizes})[-_](?:patch4[-_])?window(\d+(?:to\d+)?)[-_](\d+)", name):
        second, size, window, side = swin.groups()
        suffix = f"-w{window}" if second else f"-{side}" if side != "224" else ""
        return f"Swin{(second or '').upper()}-{LETTERS[size]}/4{suffix}"
    named = re.search(rf"(vit|deit3?|siglip2?)[-_]({sizes})[-_](distilled[-_])?patch(\d+)(?:.*[-_](\d{{3}})\b)?", name)
    if named is None:
        return ""
    family, size, distilled, patch, side = named.groups()
    suffix = f"-{side}" if side and side != "224" else ""
    if "siglip" in name:
        if "_gap_" in name:  # these variants have no attention pooling
            return ""
        return _with_side(
            f"{'SigLIP2' if 'v2' in name or 'siglip2' in name else 'SigLIP'}-{LETTERS[size]}/{patch}", suffix
        )
    if "clip" in name:
        letter = LETTERS[size].replace("G", "bigG")
        return _with_side(f"{'CLIP' if 'openai' in name else 'OpenCLIP'}-{letter}/{patch}", suffix)
    if "dinov2" in name:
        return f"DINOv2-{LETTERS[size]}/{patch}{'-reg' if 'reg' in name else ''}"
    return f"{FAMILIES[family]}-{LETTERS[size]}/{patch}{'-distilled' if distilled else ''}"


def _with_side(name: str, suffix: str) -> str:
    """Append the image size if there is a preset for it."""
    return name + suffix if name + suffix in PRESETS else name


def _rotary_name(name: str) -> str:
    """Return the name of a preset with rotary positions, like `_preset_name`."""
    letters = LETTERS | {"mediumd": "Md", "betwixt": "Betwixt", "small_plus": "S+", "huge_plus": "H+", "7b": "7B"}
    sizes = "|".join(letters)
    if named := re.search(r"dinov3[-_]vit(s|b|l|h|7b)16(plus)?", name):
        return f"DINOv3-{named[1].upper()}{'+' if named[2] else ''}/16"
    if named := re.search(rf"vit_({sizes})_patch(\d+)_dinov3", name):
        return f"DINOv3-{letters[named[1]]}/{named[2]}"
    if named := re.search(rf"eva02_({sizes})_patch(\d+)_\d", name):
        return f"EVA02-{letters[named[1]]}/{named[2]}"
    if named := re.search(rf"vit_({sizes})_patch(\d+)_rope_reg(\d)_gap", name):
        return f"ViT-{letters[named[1]]}/{named[2]}-rope-reg{named[3]}-gap"
    if named := re.search(rf"vit_({sizes})_patch(\d+)_rope((?:_mixed)?(?:_ape)?)_", name):
        return f"RoPE-ViT-{letters[named[1]]}/{named[2]}{named[3].replace('_', '-')}"
    return ""


def configure(
    name: str,
    num_classes: int | None = None,
    image_size: int | Sequence[int] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> AnyConfig:
    """Return the config of a preset with some fields replaced."""
    changes = dict(overrides or {})
    if num_classes is not None:
        changes["num_classes"] = num_classes
    if image_size is not None:
        changes["image_size"] = as_size(image_size)
    return preset(name).override(changes)
