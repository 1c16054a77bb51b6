"""MAE checkpoints of facebookresearch/mae (`models_mae.py`, `models_vit.py`), pre-trained and fine-tuned."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, GlobalAverage, Learned1d
from vitreous.model.position import SinCos2dPosition
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.timm.format import TimmLayout, infer_timm
from vitreous.weights.io.containers import TORCH_SUFFIXES, write_file

MAE_FILES = re.compile(r"mae_(pretrain|finetuned|visualize)_vit_")  # prefix of published file names


class Mae(TimmLayout):
    name = "mae"
    title = "MAE"
    signatures = (("patch_embed.proj.weight", "decoder_embed.weight"), ("patch_embed.proj.weight", "pos_embed"))
    ignored = (r"decoder_.*", "mask_token")
    suffixes = TORCH_SUFFIXES
    missing = (
        *("other positions", "positions without the class token", "patch_norm", "head_dim", "qk_scale"),
        *("partial patches", "stem", "distillation_token", "registers", "qk_norm", "layer_scale", "SwiGLU"),
        *("head of two layers", "models without qkv_bias", "models without a class token"),
    )

    def confirms(self, state: StateDict) -> bool:
        """Return True if the tensors include a decoder or MAE's positions, which distinguish MAE from timm's models."""
        return "decoder_embed.weight" in state.tensors or _has_fixed_positions(state.tensors["pos_embed"])

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        infer_timm(state, builder, image_size, published=MAE_FILES.match(state.path.name) is not None)
        position = Learned1d(builder.fields["position"].prefix_entries, "huggingface")
        builder.default("MAE default", norm_eps=self.norm_eps, mlp=Gelu(self.gelu), position=position)
        crop_fraction = 0.875 if min(builder.fields["image_size"]) <= 224 else 1.0
        preprocessing = dataclasses.replace(IMAGENET, crop_fraction=crop_fraction)
        builder.assume_preprocessing("MAE default", preprocessing, certain=True)

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if not isinstance(config.pool, ClassToken) and config.pool != GlobalAverage("after"):
            lines.append(f"MAE requires ClassToken() or GlobalAverage('after') pooling, got {config.pool}")
        return lines

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_file(tensors, path, under="model")


def _has_fixed_positions(table: Tensor) -> bool:
    """Return True if the table contains MAE's sines and cosines for a square grid, and zeros for the class token."""
    if table.ndim != 3 or len(table) != 1 or table.shape[2] % 4 or table.shape[2] < 8:
        return False
    positions, width = table.shape[1:]
    side = round((positions - 1) ** 0.5)
    if side**2 != positions - 1 or table[0, 0].any():
        return False
    fixed = SinCos2dPosition(width, "mae", 10_000.0).table_at((side, side), table.device)
    return torch.allclose(table[0, 1:].float(), fixed.flatten(0, 1), atol=1e-3)
