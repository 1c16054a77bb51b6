"""Small models of each family, which share one preprocessing."""

import io
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image

import vitreous
from vitreous.model.options import (
    GlobalAverage,
    Learned1d,
    LinearDecoder,
    MultiLabel,
    Preprocessing,
    ResNetStem,
)
from vitreous.model.protocol import Model
from vitreous.model.swin_config import SwinConfig

# Tracing it takes longer than tracing a model, and is done only once.
HOW = Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SMALL = {"width": 32, "num_heads": 2, "mlp_width": 64, "depth": 2, "preprocessing": HOW}


def vit(num_classes: int = 7, **fields: object) -> Model:
    return vitreous.create("ViT-Ti/16", num_classes=num_classes, image_size=64, overrides={**SMALL, **fields})


def segmenter() -> Model:
    encoder = vit(0).config
    assert isinstance(encoder, vitreous.ViTConfig)
    return vitreous.build(vitreous.SegmenterConfig(encoder, LinearDecoder(2), num_classes=5))


MODELS: dict[str, Callable[[], Model]] = {
    "class token": vit,
    "average pooling": lambda: vit(pool=GlobalAverage("after"), class_token=False, output=MultiLabel()),
    "registers": lambda: vit(registers=4, position=Learned1d(interpolation="dinov2-registers"), layer_scale=0.5),
    "hybrid": lambda: vit(0, stem=ResNetStem((1, 1), 32), patch_size=(2, 2)),
    "BiT": lambda: vitreous.build(
        vitreous.ResNetConfig((64, 64), stages=(1, 1), width=32, num_classes=7, preprocessing=HOW)
    ),
    "Swin": lambda: vitreous.build(
        SwinConfig(
            (64, 64), width=16, depths=(2, 2), stage_heads=(1, 2), window=(4, 4), num_classes=7, preprocessing=HOW
        )
    ),
    "segmenter": segmenter,
}


def small_model(name: str) -> Model:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():  # heads and biases are zero at first
            parameter += 0.05 * torch.randn_like(parameter)
    return model


def decoded(jpeg: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.array(image.convert("RGB"))[None]
