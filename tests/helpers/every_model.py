"""A small model for every position, pooling, head, stem, token and decoder option."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.model import options
from vitreous.model.build import build
from vitreous.model.config import ResNetConfig, SegmenterConfig, ViTConfig
from vitreous.model.masked import MaskedAutoencoder, MaskedPatchPrediction
from vitreous.model.options import LinearDecoder, MaskDecoder, PyramidDecoder
from vitreous.model.protocol import ModelConfig
from vitreous.model.swin_config import SwinConfig, SwinV2

SMALL = ViTConfig(image_size=(24, 32), patch_size=(8, 8), width=32, depth=2, num_heads=4, mlp_width=48, num_classes=5)
BARE = dataclasses.replace(SMALL, num_classes=0)
CHANGES: dict[str, dict[str, Any]] = {
    "Learned1d": {},
    "Learned1d for patches only": {"position": options.Learned1d(False)},
    "Learned2d": {"position": options.Learned2d()},
    "SinCos2d": {"position": options.SinCos2d()},
    "RelativeBias": {"position": options.RelativeBias()},
    "Rotary2d": {"position": options.Rotary2d()},
    "MixedRotary2d": {"position": options.MixedRotary2d(learned=options.Learned1d())},
    "Conditional": {"position": options.Conditional()},
    "NoPosition": {"position": options.NoPosition()},
    "average, norm before": {"pool": options.GlobalAverage("before")},
    "average, norm after": {"pool": options.GlobalAverage("after")},
    "attention pooling": {"pool": options.AttentionPool(), "class_token": False},
    "tanh head": {"head": options.TanhHead(8)},
    "MLP head": {"head": options.MlpHead(8)},
    "no head": {"num_classes": 0},
    "registers": {"registers": 3},
    "distillation": {"distillation_token": True, "registers": 2},
    "SwiGLU, LayerScale, QK norm": {"mlp": options.SwiGlu(), "layer_scale": 0.1, "qk_norm": True},
    "attention and MLP norms, untied norms": {
        "mlp": options.SwiGlu(norm=True),
        "attention_output_norm": True,
        "untied_norms": True,
        "key_bias": False,
    },
    "linear patches with norms": {"patch_method": "linear", "patch_norm": True},
    "CLIP": {"pre_norm": True, "patch_bias": False, "mlp": options.Gelu("quick"), "projection": 12},
    "padded": {"pad": True},
    "truncated": {"patch_size": (7, 7), "truncate": True},
    "stem": {"stem": options.ResNetStem((1, 1), 32), "patch_size": (1, 1)},
    "stem without stages": {"stem": options.ResNetStem((), 32), "patch_size": (2, 2)},
}
SWIN = SwinConfig((24, 32), width=16, depths=(1, 2), stage_heads=(1, 2), window=(4, 4), num_classes=5)
VITS: dict[str, ViTConfig] = {name: dataclasses.replace(SMALL, **changes) for name, changes in CHANGES.items()}
CONFIGS: dict[str, ModelConfig] = {
    **VITS,
    "ResNet": ResNetConfig(image_size=(24, 32), stages=(1, 1), width=32, num_classes=5),
    "linear decoder": SegmenterConfig(BARE, LinearDecoder(cells=2), num_classes=3),
    "mask decoder": SegmenterConfig(BARE, MaskDecoder(), num_classes=3),
    "Swin": SWIN,
    "Swin V2": dataclasses.replace(SWIN, version=SwinV2(), window_rule="timm"),
    "pyramid decoder": SegmenterConfig(SWIN.with_classes(0), PyramidDecoder(8), num_classes=3),
    "Swin, mask decoder": SegmenterConfig(SWIN.with_classes(0), MaskDecoder(1), num_classes=3),
}
MASKED: dict[str, Callable[[], nn.Module]] = {
    "MPP": lambda: MaskedPatchPrediction(build(BARE)),  # type: ignore[arg-type]
    "MAE": lambda: MaskedAutoencoder(build(BARE), width=16, depth=1, num_heads=2),  # type: ignore[arg-type]
}
EVERY = [*CONFIGS, *MASKED]


def every_model(name: str) -> nn.Module:
    """Build a model in evaluation mode, with noise added to all parameters."""
    model = MASKED[name]() if name in MASKED else build(CONFIGS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def inputs_of(name: str, batch: int = 2) -> tuple[Tensor, ...]:
    """Return random inputs for one call of the model."""
    images, patches = torch.randn(batch, 3, 24, 32), 12
    match name:
        case "MPP":
            return images, torch.rand(batch, 3, 24, 32), torch.rand(batch, 3, patches)
        case "MAE":
            return images, torch.rand(batch, patches)
    return (images,)


def output_of(result: Any) -> Tensor:
    """Return the tensor that training uses: the logits, or the losses of a masked model."""
    return result if isinstance(result, Tensor) else result.losses
