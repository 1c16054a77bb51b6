"""Logits equal timm's for the same random weights, at any image size."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optional_imports import import_timm
from vitreous.model.attention import rotate
from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.options import AttentionPool, Gelu, GlobalAverage, Learned1d, SwiGlu
from vitreous.model.position import Rotary2dPosition
from vitreous.model.tokens import Layout

TOLERANCE = 2e-5
OWN, OTHER = (24, 32), (40, 24)  # grids of 3 x 4 and 5 x 3 patches

PLAIN = ViTConfig(
    image_size=OWN,
    patch_size=(8, 8),
    width=48,
    depth=2,
    num_heads=4,
    mlp_width=96,
    mlp=Gelu("erf"),
    position=Learned1d(interpolation="timm"),
    num_classes=7,
)
OWN_PREFIX = Learned1d(prefix_entries=False, interpolation="timm")

# Changes to PLAIN, and timm's arguments. A string names a timm layer, because timm may not be installed.
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "class token": ({}, {}),
    "non-square patches": ({"patch_size": (8, 4)}, {"patch_size": (8, 4)}),
    "mean, then norm": (
        {"pool": GlobalAverage("after"), "class_token": False},
        {"global_pool": "avg", "class_token": False},
    ),
    "norm, then mean, without the class token": (
        {"pool": GlobalAverage("before")},
        {"global_pool": "avg", "fc_norm": False},
    ),
    "qk_norm and LayerScale": ({"qk_norm": True, "layer_scale": 0.1}, {"qk_norm": True, "init_values": 0.1}),
    "registers": ({"registers": 3, "position": OWN_PREFIX}, {"reg_tokens": 3, "no_embed_class": True}),
    "attention pooling": (
        {"pool": AttentionPool(), "class_token": False},
        {"global_pool": "map", "class_token": False},
    ),
    "no qkv bias": ({"qkv_bias": False}, {"qkv_bias": False}),
    "SwiGLU, packed": (
        {"mlp": SwiGlu()},
        {"mlp_layer": "SwiGLUPacked", "act_layer": nn.SiLU, "mlp_ratio": 4},
    ),
    "SwiGLU, separate": ({"mlp": SwiGlu()}, {"mlp_layer": "SwiGLU", "act_layer": nn.SiLU}),
    "tanh": ({"mlp": Gelu("tanh")}, {"act_layer": partial(nn.GELU, approximate="tanh")}),
    "eps": (
        {"norm_eps": 1e-3, "qk_norm": True},
        {"norm_layer": partial(nn.LayerNorm, eps=1e-3), "qk_norm": True},
    ),
    "eps of the norm after the mean": (
        {"norm_eps": 1e-3, "pool": GlobalAverage("after")},
        {"norm_layer": partial(nn.LayerNorm, eps=1e-3), "global_pool": "avg"},
    ),
    "distilled": ({"distillation_token": True}, {}),
    "CLIP": (
        {"pre_norm": True, "patch_bias": False, "norm_eps": 1e-3, "mlp": Gelu("quick")},
        {"pre_norm": True, "norm_layer": partial(nn.LayerNorm, eps=1e-3), "act_layer": "quick_gelu"},
    ),
}

# Slightly wrong configs with the same parameters, which the tolerance must detect.
MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "GELU": ("class token", {"mlp": Gelu("tanh")}),
    "GELU in the pooling": ("attention pooling", {"mlp": Gelu("tanh")}),
    "eps": ("eps", {"norm_eps": 1e-6}),
    "eps after the mean": ("eps of the norm after the mean", {"norm_eps": 1e-6}),
    "quick GELU": ("CLIP", {"mlp": Gelu("erf")}),
    "eps of the norm before the blocks": ("CLIP", {"norm_eps": 1e-5}),
    "scale": ("class token", {"qk_scale": 12**-0.5 * 1.01}),
    "heads": ("class token", {"num_heads": 6}),
    "order of norm and mean": ("norm, then mean, without the class token", {"pool": GlobalAverage("after")}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("size", [OWN, OTHER], ids=["own size", "other size"])
@torch.no_grad()
def test_logits_equal_timm(case: str, size: tuple[int, int]) -> None:
    changes, arguments = CASES[case]
    config = dataclasses.replace(PLAIN, **changes)
    timm_model = noisy_timm(config, arguments)
    model = build(config).eval()
    model.load_state_dict(convert_timm(timm_model.state_dict(), config), strict=True)
    images = torch.randn(3, 3, *size)
    expected = timm_model(images)
    assert expected.std(0).mean() > 200 * TOLERANCE  # logits differ clearly between images
    assert_close(model(images), expected)
    assert_close(model.resized(size)(images), expected)


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.no_grad()
def test_tolerance_detects_wrong_numerics(mistake: str) -> None:
    case, wrong = MISTAKES[mistake]
    changes, arguments = CASES[case]
    config = dataclasses.replace(PLAIN, **changes)
    timm_model = noisy_timm(config, arguments)
    model = build(dataclasses.replace(config, **wrong)).eval()
    state = convert_timm(timm_model.state_dict(), config)
    if mistake == "order of norm and mean":
        state = {name.replace("norm.", "pool.norm.") if name[:5] == "norm." else name: t for name, t in state.items()}
    model.load_state_dict(state, strict=True)
    images = torch.randn(3, 3, *OWN)
    assert (model(images) - timm_model(images)).abs().max() > 2 * TOLERANCE


@torch.no_grad()
def test_distilled_heads_equal_timm() -> None:
    config = dataclasses.replace(PLAIN, distillation_token=True)
    timm_model = noisy_timm(config, {})
    model = build(config).eval()
    model.load_state_dict(convert_timm(timm_model.state_dict(), config), strict=True)
    images = torch.randn(3, 3, *OWN)
    features = timm_model.forward_features(images)
    by_label, by_teacher = model.classify_distilled(model.features(images))
    assert_close(by_label, timm_model.head(features[:, 0]))
    assert_close(by_teacher, timm_model.head_dist(features[:, 1]))


@pytest.mark.parametrize("grid", [(3, 4), (1, 5), (7, 2)])
@pytest.mark.parametrize("base", [100.0, 37.0])
def test_rotation_equals_dinov3(grid: tuple[int, int], base: float) -> None:
    import_timm()  # transformers imports torchvision if it is installed
    dinov3 = pytest.importorskip("transformers.models.dinov3_vit.modeling_dinov3_vit")
    size = {"image_size": 32, "patch_size": 8, "hidden_size": 64, "num_attention_heads": 4}
    config = dinov3.DINOv3ViTConfig(**size, rope_theta=base)
    embedding = dinov3.DINOv3ViTRopePositionEmbedding(config).eval()
    assert embedding.base == base
    cos, sin = embedding(torch.zeros(1, 3, 8 * grid[0], 8 * grid[1]))
    q, k = torch.randn(2, 2, 4, 5 + grid[0] * grid[1], 16)  # a class token and four registers before the patches
    rotation = Rotary2dPosition(16, base).attend(Layout(5, grid), q.device).rotation
    assert rotation is not None
    assert_close(rotation[0][5:], cos[:, :8])
    assert_close(rotation[1][5:], sin[:, :8])
    for actual, expected in zip(
        (rotate(q, rotation), rotate(k, rotation)), dinov3.apply_rotary_pos_emb(q, k, cos, sin), strict=True
    ):
        assert_close(actual, expected)


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def noisy_timm(config: ViTConfig, arguments: dict[str, Any]) -> nn.Module:
    """Build the timm model for `config` with random parameters."""
    timm = import_timm()
    kind = timm.models.vision_transformer.VisionTransformer
    if config.distillation_token:
        kind = timm.models.deit.VisionTransformerDistilled
    arguments = {
        "img_size": OWN,
        "patch_size": 8,
        "num_classes": 7,
        "embed_dim": 48,
        "depth": 2,
        "num_heads": 4,
        "mlp_ratio": 2,
        "dynamic_img_size": True,
    } | arguments
    if isinstance(arguments.get("mlp_layer"), str):
        arguments["mlp_layer"] = getattr(timm.layers, arguments["mlp_layer"])
    model = kind(**arguments).eval()
    for name, parameter in model.named_parameters():
        # Small patch embeddings make eps matter; large norm weights keep later activations near 1.
        small, large = "patch_embed" in name, "norm" in name or parameter.ndim == 3
        nn.init.normal_(parameter, std=0.1 if small else 0.5 if large else 0.2)
    return model


NAMES = {
    "patch_embed.proj": "patches.projection",
    "cls_token": "prefix.class_token",
    "dist_token": "prefix.distillation_token",
    "reg_token": "prefix.registers",
    "blocks.": "encoder.blocks.",
    "norm1.": "attention_norm.",
    "norm2.": "mlp_norm.",
    "attn.proj.": "attention.output.",
    "attn.": "attention.",
    "ls1.gamma": "attention_scale.factor",
    "ls2.gamma": "mlp_scale.factor",
    "norm_pre.": "pre_norm.",
    "attn_pool.latent": "pool.attention.query",
    "attn_pool.proj": "pool.attention.output",
    "attn_pool.q.": "pool.attention.q.",
    "attn_pool.k.": "pool.attention.k.",
    "attn_pool.v.": "pool.attention.v.",
    "attn_pool.": "pool.",
    "fc_norm.": "pool.norm.",
    "fc2.": "down.",
    "head_dist.": "distillation_head.",
}


def convert_timm(state: dict[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    up = "gate_and_up." if config.mlp == SwiGlu() else "up."
    converted: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name == "pos_embed":
            entries = tensor.shape[1] - config.grid[0] * config.grid[1]
            if entries:
                converted["position.prefix"] = tensor[0, :entries]
            converted["position.table"] = tensor[0, entries:].reshape(*config.grid, config.width)
        elif packed := next((parts for parts in ("qkv", "kv") if f".{parts}." in name), ""):
            for part, piece in zip(packed, tensor.chunk(len(packed)), strict=True):
                converted[renamed(name.replace(f".{packed}.", f".{part}."))] = piece
        elif "fc1_g." in name:
            converted[renamed(name.replace("fc1_g.", up))] = torch.cat([tensor, state[name.replace("fc1_g", "fc1_x")]])
        elif "fc1_x." not in name:
            converted[renamed(name.replace("fc1.", up))] = tensor
    return converted


def renamed(name: str) -> str:
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name
