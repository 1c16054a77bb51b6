"""Formats with timm's layout and few other names: MAE's, DINOv2's and PaddleClas's own files.

Names and numerics read from facebookresearch/mae (`models_mae.py`, `models_vit.py`, `util/pos_embed.py`),
facebookresearch/dinov2 and PaddleClas (`vision_transformer.py`, `distilled_vision_transformer.py`, its configs for
ImageNet).
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, GlobalAverage, Learned1d, Preprocessing, SwiGlu
from vitreous.model.position import SinCos2dPosition
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.mapping import TRANSPOSE
from vitreous.weights.formats.timm.format import QKV, Names, TimmLayout, infer_timm
from vitreous.weights.formats.write_checks import numeric_differences
from vitreous.weights.io.containers import TORCH_SUFFIXES, write_file

# ---- MAE -------------------------------------------------------------------------------------------------------------

MAE_FILES = re.compile(r"mae_(pretrain|finetuned|visualize)_vit_")  # names of the published files begin so


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
        """True if there is a decoder or the positions are MAE's: fine-tuned models look like timm's."""
        return "decoder_embed.weight" in state.tensors or _has_fixed_positions(state.tensors["pos_embed"])

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        infer_timm(state, builder, image_size, published=MAE_FILES.match(state.path.name) is not None)
        position = Learned1d(builder.fields["position"].prefix_entries, "huggingface")
        builder.default("MAE's", norm_eps=self.norm_eps, mlp=Gelu(self.gelu), position=position)
        crop_fraction = 0.875 if min(builder.fields["image_size"]) <= 224 else 1.0
        preprocessing = dataclasses.replace(IMAGENET, crop_fraction=crop_fraction)
        builder.assume_preprocessing("MAE's", preprocessing, certain=True)

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if not isinstance(config.pool, ClassToken) and config.pool != GlobalAverage("after"):
            lines.append(f"pool {config.pool}: MAE has ClassToken() and GlobalAverage('after')")
        return lines

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_file(tensors, path, under="model")


def _has_fixed_positions(table: Tensor) -> bool:
    """True for MAE's sines and cosines on a square grid, with zeros for the class token."""
    if table.ndim != 3 or len(table) != 1 or table.shape[2] % 4 or table.shape[2] < 8:
        return False
    positions, width = table.shape[1:]
    side = round((positions - 1) ** 0.5)
    if side**2 != positions - 1 or table[0, 0].any():
        return False
    fixed = SinCos2dPosition(width, "mae", 10_000.0).table_at((side, side), table.device)
    return torch.allclose(table[0, 1:].float(), fixed.flatten(0, 1), atol=1e-3)


# ---- DINOv2 ----------------------------------------------------------------------------------------------------------

DINOV2_FILES = re.compile(r"dinov2_vit[sblg]14")  # names of the published files begin so


class DinoV2(TimmLayout):
    name = "dinov2"
    title = "DINOv2"
    signatures = (("patch_embed.proj.weight", "register_tokens"), ("patch_embed.proj.weight", "mask_token"))
    renames = ((r"^blocks\.\d+\.(\d+\.)", r"blocks.\1"),)  # training may wrap blocks in chunks: blocks.{chunk}.{i}
    ignored = ("mask_token", r"(dino|ibot)_head\..*")
    names = Names(registers="register_tokens", gated=("mlp.w12", "mlp.w3"), register_entries=False)
    suffixes = TORCH_SUFFIXES
    missing = (
        *("other positions", "positions without the class token", "patch_norm", "head_dim", "qk_scale"),
        *("partial patches", "rectangular images", "rectangular patches", "stem", "distillation_token", "qk_norm"),
        *("classifier", "head of two layers", "other pooling"),
    )

    def confirms(self, state: StateDict) -> bool:
        """True unless the mask token is MAE's, of three dimensions."""
        return "register_tokens" in state.tensors or state.tensors["mask_token"].ndim == 2

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        published = DINOV2_FILES.match(state.path.name) is not None
        infer_timm(state, builder, image_size, self.names, entries=True, published=published)
        resampling: Any = "dinov2-registers" if builder.fields["registers"] > 0 else "dinov2"
        position = Learned1d(builder.fields["position"].prefix_entries, resampling)
        builder.default("DINOv2's", norm_eps=self.norm_eps, position=position)
        builder.assume_preprocessing("DINOv2's", IMAGENET, certain=True)
        if isinstance(builder.fields["mlp"], Gelu):
            builder.default("DINOv2's", mlp=Gelu("erf"))

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if isinstance(config.mlp, SwiGlu) and config.mlp_width % 8:
            lines.append(f"mlp_width {config.mlp_width} with SwiGLU: DINOv2 has multiples of 8")
        return lines

    def extra_tensors(self, config: ViTConfig) -> dict[str, Tensor]:
        return {"mask_token": torch.zeros(1, config.width)}


# ---- PaddleClas ------------------------------------------------------------------------------------------------------

PADDLE_MISSING = (
    *("stem", "patch_norm", "registers", "qk_norm", "layer_scale", "SwiGLU", "head of two layers", "other positions"),
    *("positions without the class token", "partial patches", "rectangular images", "rectangular patches"),
    "other pooling",
)
DEIT_WIDTHS = (192, 384)  # PaddleClas's only models of these widths are DeiT
SMALL_HEADS, SMALL_SCALE = 8, 768**-0.5


class Paddle(TimmLayout):
    name = "paddle"
    title = "PaddleClas"
    names = Names(matrix=TRANSPOSE)
    file_name = "model.pdparams"
    missing = (*PADDLE_MISSING, "head_dim")

    def confirms(self, state: StateDict) -> bool:
        shape = state.shape(QKV)
        return len(shape) == 2 and shape[1] == 3 * shape[0]  # timm's is [3 * width, width]

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        infer_timm(state, builder, image_size, self.names, entries=True)
        fields = builder.fields
        if is_small(fields["width"], fields["depth"], fields["mlp_width"], fields["qkv_bias"]):
            reason = "as in ViT_small_patch16_224, the only model of this shape"
            builder.assume(reason, num_heads=SMALL_HEADS, qk_scale=SMALL_SCALE)
        which = "with" if fields["qkv_bias"] else "without"
        builder.default(f"PaddleClas's {which} qkv_bias", norm_eps=usual_eps(fields["qkv_bias"]))
        position = Learned1d(fields["position"].prefix_entries, "timm")
        builder.default("resampled as in timm, because PaddleClas cannot resample", position=position)
        if fields["distillation_token"] or fields["width"] in DEIT_WIDTHS:
            builder.assume_preprocessing("PaddleClas's for DeiT", IMAGENET)
        else:
            crop_fraction = 1.0 if min(fields["image_size"]) >= 384 else 0.875
            preprocessing = Preprocessing(crop_fraction=crop_fraction, interpolation="bilinear")
            builder.assume("PaddleClas's for ViT", preprocessing=preprocessing)

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = numeric_differences(config, self.title, usual_eps(config.qkv_bias))
        small = is_small(config.width, config.depth, config.mlp_width, config.qkv_bias)
        scale, usual = config.qk_scale or config.head_width**-0.5, SMALL_SCALE if small else config.head_width**-0.5
        if not math.isclose(scale, usual):
            lines.append(f"attention is scaled by {scale:g}, and in PaddleClas, in this shape, by {usual:g}")
        return lines


def is_small(width: int, depth: int, mlp_width: int, qkv_bias: bool) -> bool:
    """True for the shape of ViT_small_patch16_224, which is not that of ViT-S."""
    return (width, depth, mlp_width, qkv_bias) == (768, 8, 2304, False)


def usual_eps(qkv_bias: bool) -> float:
    """The constructor's defaults are no bias and 1e-5; every named model with the bias has 1e-6."""
    return 1e-6 if qkv_bias else 1e-5
