"""Small models in every readable format, and the files they are written to."""

import dataclasses
from pathlib import Path
from typing import Any

import vitreous
from parity import noisy
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig
from vitreous.model.options import AttentionPool, Gelu, MaskDecoder, ResNetStem
from vitreous.model.protocol import Model, ModelConfig

PLAIN = ViTConfig(
    image_size=(32, 32),
    patch_size=(8, 8),
    width=64,
    depth=2,
    num_heads=1,
    mlp_width=96,
    mlp=Gelu("erf"),
    num_classes=5,
    labels=(),
)
BARE = dataclasses.replace(PLAIN, num_classes=0)
HYBRID = dataclasses.replace(PLAIN, stem=ResNetStem((1, 1), 32), patch_size=(1, 1), image_size=(64, 64))
WITHOUT_BIAS = dataclasses.replace(
    PLAIN, width=128, num_heads=2, patch_norm=True, patch_method="linear", qkv_bias=False
)
MAPPED = {  # formats with the same matrix layout as Vitreous
    "vitreous": (PLAIN, "folder"),
    "huggingface": (PLAIN, "folder"),
    "timm": (PLAIN, "x.safetensors"),
    "timm, pooled": (dataclasses.replace(PLAIN, class_token=False, pool=AttentionPool()), "x.safetensors"),
    "timm, a pickle": (PLAIN, "x.pth"),
    "torchvision": (PLAIN, "x.pth"),
    "dinov2": (BARE, "x.pth"),
    "mae": (PLAIN, "x.pth"),
    "lucidrains": (WITHOUT_BIAS, "x.safetensors"),
}
COPIED = {  # formats with transposed matrices
    "google": (PLAIN, "x.npz"),
    "google, hybrid": (HYBRID, "x.npz"),
    "big_vision": (PLAIN, "x.npz"),
    "paddle": (PLAIN, "x.pdparams"),
    "paddlevit": (PLAIN, "x.pdparams"),
}
OTHERS = {
    "timm, hybrid": (dataclasses.replace(HYBRID, stem=ResNetStem((), 64, "timm"), patch_size=(8, 8)), "x.pth"),
    "vitreous, hybrid": (HYBRID, "folder"),
    "vitreous, ResNet": (ResNetConfig(stages=(1, 1), width=32, num_classes=3), "folder"),
    "vitreous, linear segmenter": (SegmenterConfig(BARE, num_classes=3), "folder"),
    "vitreous, mask segmenter": (SegmenterConfig(BARE, MaskDecoder(), num_classes=3), "folder"),
}
EVERY: dict[str, tuple[ModelConfig, str]] = MAPPED | COPIED | OTHERS


def written(case: str, folder: Path) -> Path:
    """Write a checkpoint in the format named at the start of `case`."""
    config, name = EVERY[case]
    vitreous.save(noisy(build(config)), folder / name, format=case.split(",")[0], lossy=True)  # type: ignore[arg-type]
    return folder / name


def loaded(case: str, folder: Path, **options: Any) -> Model:
    return vitreous.load(written(case, folder), **options)
