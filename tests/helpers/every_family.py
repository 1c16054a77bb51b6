"""One small model of every group of presets and of every class of configs."""

import dataclasses
import re

import torch

from vitreous.model.build import build
from vitreous.model.config import SegmenterConfig
from vitreous.model.options import LinearDecoder, PyramidDecoder, ResNetStem
from vitreous.model.presets import PRESETS, configure
from vitreous.model.protocol import Model, ModelConfig
from vitreous.model.swin_config import SwinConfig, SwinV2

SMALL = {"width": 32, "depth": 1, "num_heads": 2, "mlp_width": 64, "patch_size": (8, 8)}
# The windows do not fill the 9 x 7 patches. SwinV2 pads 8 x 7 patches after the shift; its last stage is one window.
WINDOWS = SwinConfig((36, 28), width=16, depths=(2, 1), stage_heads=(1, 2), window=(4, 4), num_classes=5)


def group(name: str) -> str:
    """Return the family of a preset: its first word. Hybrids with stems of different depth are one family."""
    if "-rope-" in name:
        return "ViT-rope"
    return re.sub(r"^R\d*\+", "R+", re.split(r"[-/]", name)[0])


def small(name: str, **fields: object) -> ModelConfig:
    """Return a small version of a preset, with five classes if the preset has a head."""
    return configure(
        name, num_classes=5 if PRESETS[name].num_classes else 0, image_size=32, overrides={**SMALL, **fields}
    )


FAMILIES: dict[str, ModelConfig] = {
    "ViT": small("ViT-Ti/16"),
    "R+ViT": small("R+ViT-Ti/16", stem=ResNetStem((), 32), patch_size=(2, 2)),
    "DeiT": small("DeiT-Ti/16-distilled"),
    "DINOv2": small("DINOv2-S/14-reg"),
    "DINOv3": small("DINOv3-S+/16"),
    "EVA02": small("EVA02-B/14"),
    "RoPE": small("RoPE-ViT-S/16-mixed-ape"),
    "ViT-rope": small("ViT-M/16-rope-reg1-gap"),
    "CLIP": small("CLIP-B/32", projection=12),
    "OpenCLIP": small("OpenCLIP-B/32", projection=12),
    "SigLIP": small("SigLIP-B/16"),
    "SigLIP2": small("SigLIP2-B/16"),
    "BiT": configure("BiT-R50x1", num_classes=5, image_size=32, overrides={"stages": (1, 1), "width": 32}),
    "Swin": WINDOWS,
    "SwinV2": dataclasses.replace(WINDOWS, image_size=(32, 28), version=SwinV2(), window_rule="timm"),
    "ViT segmenter": SegmenterConfig(small("DINOv2-S/14-reg"), LinearDecoder(2), num_classes=3),  # type: ignore[arg-type]
    "Swin segmenter": SegmenterConfig(WINDOWS.with_classes(0), PyramidDecoder(16), num_classes=3),
}


def small_model(family: str) -> Model:
    """Build a model in evaluation mode, with noise added to all parameters."""
    torch.manual_seed(0)
    model = build(FAMILIES[family]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model
