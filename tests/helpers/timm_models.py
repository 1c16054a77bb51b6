"""Small timm models of every supported kind, and a config that timm can represent."""

from typing import Any

from torch import nn

from optional_imports import import_timm
from parity import noisy
from vitreous.model.config import ViTConfig
from vitreous.model.options import AttentionPool, Gelu, GlobalAverage, Learned1d, ResNetStem, SwiGlu

NATIVE, OTHER = (32, 32), (40, 24)
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 128, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
HYBRID = {"img_size": 64, "embed_dim": 128, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}
PLAIN = "vit_base_patch16_224"

# timm architecture, additional arguments, and config fields expected after loading.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": (PLAIN, {}, {"num_heads": 2, "layer_scale": None}),
    "mean, then norm": (PLAIN, {"global_pool": "avg"}, {"pool": GlobalAverage("after")}),
    "no class token": (PLAIN, {"global_pool": "avg", "class_token": False}, {"class_token": False}),
    "no class token, norm, then mean": (
        PLAIN,
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
        {"pool": GlobalAverage("before")},
    ),
    "no position for the class token": (PLAIN, {"no_embed_class": True}, {"position": Learned1d(False, "timm")}),
    "registers": (PLAIN, {"reg_tokens": 3, "no_embed_class": True}, {"registers": 3}),
    "registers with positions": (PLAIN, {"reg_tokens": 3}, {"registers": 3, "position": Learned1d(True, "timm")}),
    "registers with positions, no class token": (
        PLAIN,
        {"reg_tokens": 3, "class_token": False, "global_pool": "avg"},
        {"registers": 3},
    ),
    "LayerScale": (PLAIN, {"init_values": 0.1}, {"layer_scale": 1e-5}),
    "norms on queries and keys": (PLAIN, {"qk_norm": True}, {"qk_norm": True}),
    "no bias on queries, keys and values": (PLAIN, {"qkv_bias": False}, {"qkv_bias": False}),
    "attention pooling": (PLAIN, {"global_pool": "map", "class_token": False}, {"pool": AttentionPool()}),
    "no classifier": (PLAIN, {"num_classes": 0}, {"num_classes": 0}),
    "four channels": (PLAIN, {"in_chans": 4}, {"channels": 4}),
    "CLIP": ("vit_base_patch16_clip_224", {}, {"pre_norm": True, "patch_bias": False, "norm_eps": 1e-5}),
    "distilled": ("deit_base_distilled_patch16_224", {}, {"distillation_token": True}),
    "SwiGLU": (
        "vit_giant_patch14_dinov2",
        {"mlp_ratio": 3.0, "init_values": 0.1, "num_classes": 7},
        {"mlp": SwiGlu(), "mlp_width": 192},
    ),
    "R50": ("vit_base_r50_s16_224", {}, {"stem": ResNetStem((3, 4, 9), 64, "timm"), "image_size": (64, 64)}),
    "stem alone": ("vit_tiny_r_s16_p8_224", {}, {"stem": ResNetStem((), 64, "timm"), "patch_size": (8, 8)}),
}
SMALL = ViTConfig(
    image_size=(24, 48),
    patch_size=(8, 4),
    width=96,
    depth=2,
    num_heads=3,
    mlp_width=77,
    mlp=Gelu("erf"),
    position=Learned1d(interpolation="timm"),
    num_classes=3,
    labels=("a", "b", "c"),
)


def timm_model(case: str, **more: Any) -> nn.Module:
    name, given, _ = CASES[case]
    sizes = HYBRID if "_r" in name else SIZES
    return noisy(import_timm().create_model(name, **{**sizes, "num_classes": 7, **given}, **more))
