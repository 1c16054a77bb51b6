"""PaddlePaddle's `.pdparams` checkpoints: PaddleClas, which has timm's layout, and PaddleViT.

Names and numerics follow PaddleClas (`vision_transformer.py`, `distilled_vision_transformer.py`, ImageNet configs).
"""

import dataclasses
import math
from typing import Any

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, Learned1d, Preprocessing
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import TRANSPOSE, Row, packed_rows, per_layer, position_table, row, rows
from vitreous.weights.formats.timm.format import QKV, Names, TimmLayout, infer_timm
from vitreous.weights.formats.write_checks import numeric_differences
from vitreous.weights.io.errors import BadCheckpoint

# ---- PaddleClas ------------------------------------------------------------------------------------------------------

PADDLE_MISSING = (
    *("stem", "patch_norm", "registers", "qk_norm", "layer_scale", "SwiGLU", "head of two layers", "other positions"),
    *("positions without the class token", "partial patches", "rectangular images", "rectangular patches"),
    "other pooling",
)
DEIT_WIDTHS = (192, 384)  # the only PaddleClas models with these widths are DeiT
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
        builder.default(f"PaddleClas default {which} qkv_bias", norm_eps=usual_eps(fields["qkv_bias"]))
        position = Learned1d(fields["position"].prefix_entries, "timm")
        builder.default("resampled as in timm, because PaddleClas cannot resample", position=position)
        if fields["distillation_token"] or fields["width"] in DEIT_WIDTHS:
            builder.assume_preprocessing("PaddleClas default for DeiT", IMAGENET)
        else:
            crop_fraction = 1.0 if min(fields["image_size"]) >= 384 else 0.875
            preprocessing = Preprocessing(crop_fraction=crop_fraction, interpolation="bilinear")
            builder.assume("PaddleClas default for ViT", preprocessing=preprocessing)

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = numeric_differences(config, self.title, usual_eps(config.qkv_bias))
        small = is_small(config.width, config.depth, config.mlp_width, config.qkv_bias)
        scale, usual = config.qk_scale or config.head_width**-0.5, SMALL_SCALE if small else config.head_width**-0.5
        if not math.isclose(scale, usual):
            lines.append(f"attention scale is {scale:g} in Vitreous and {usual:g} in PaddleClas models of this shape")
        return lines


def is_small(width: int, depth: int, mlp_width: int, qkv_bias: bool) -> bool:
    """Return True for the shape of ViT_small_patch16_224, which is wider and shallower than ViT-S."""
    return (width, depth, mlp_width, qkv_bias) == (768, 8, 2304, False)


def usual_eps(qkv_bias: bool) -> float:
    """Return the usual LayerNorm eps: 1e-6 for models with qkv_bias, otherwise Paddle's default of 1e-5."""
    return 1e-6 if qkv_bias else 1e-5


# ---- PaddleViT -------------------------------------------------------------------------------------------------------

PATCH, LAYER = "patch_embedding.patch_embedding", "encoder.layers.{i}"


class PaddleViT(Format):
    name = "paddlevit"
    title = "PaddleViT"
    signatures = ((f"{PATCH}.weight", "encoder.layers.0.attn.qkv.weight"),)
    renames = (  # names from 2021
        (r"^patch_embedding\.cls_token$", "cls_token"),
        (r"^patch_embedding\.position_embeddings$", "position_embedding"),
    )
    file_name = "model.pdparams"
    missing = (*PADDLE_MISSING, "qk_scale", "models without a classifier")

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        if "pre_logits.0.weight" in state.tensors:
            raise BadCheckpoint(f"{state.path} has a ReLU before its classifier (pre_logits.0), which is not supported")
        width, channels, *patch = state.shape(f"{PATCH}.weight", 4)
        distilled = "dist_token" in state.tensors
        builder.set(
            width=width,
            depth=state.count(f"{LAYER}.attn_norm.weight"),
            channels=channels,
            patch_size=(patch[0], patch[1]),
            distillation_token=distilled,
            qkv_bias="encoder.layers.0.attn.qkv.bias" in state.tensors,
            mlp=Gelu("erf"),
            mlp_width=state.shape("encoder.layers.0.mlp.fc1.weight", 2)[1],
            pool=ClassToken(),
            num_classes=state.shape("classifier.weight", 2)[1],
        )
        inner = state.shape("encoder.layers.0.attn.out.weight", 2)[0]  # heads * head_dim
        builder.infer_heads(inner)
        heads = builder.overrides.get("num_heads", builder.fields.get("num_heads"))
        if inner != width and isinstance(heads, int) and heads > 0:
            builder.set(head_dim=inner // heads)
        positions = state.shape("position_embedding", 3)[1]
        builder.infer_grid(positions, (1 + distilled,), (patch[0], patch[1]), image_size)
        builder.default("PaddleViT default", norm_eps=self.norm_eps, position=Learned1d(interpolation="huggingface"))
        how = Preprocessing(crop_fraction=1.0 if min(builder.fields["image_size"]) >= 384 else 0.875)
        if distilled:
            how = dataclasses.replace(how, mean=IMAGENET.mean, std=IMAGENET.std)
        builder.assume_preprocessing(f"PaddleViT default for {'DeiT' if distilled else 'ViT'}", how)

    def table(self, config: ViTConfig) -> list[Row]:
        table = [*rows("patches.projection", PATCH), row("prefix.class_token", "cls_token")]
        if config.distillation_token:
            table.append(row("prefix.distillation_token", "dist_token"))
        positions = position_table(config.class_token + config.distillation_token, config.grid)
        table.append(row(("position.prefix", "position.table"), "position_embedding", positions))
        block, parts = "encoder.blocks.{i}", ("weight", "bias") if config.qkv_bias else ("weight",)
        layer = [
            *rows(f"{block}.attention_norm", f"{LAYER}.attn_norm"),
            *packed_rows([f"{block}.attention.{part}" for part in "qkv"], f"{LAYER}.attn.qkv", TRANSPOSE, parts),
            *rows(f"{block}.attention.output", f"{LAYER}.attn.out", TRANSPOSE),
            *rows(f"{block}.mlp_norm", f"{LAYER}.mlp_norm"),
            *rows(f"{block}.mlp.up", f"{LAYER}.mlp.fc1", TRANSPOSE),
            *rows(f"{block}.mlp.down", f"{LAYER}.mlp.fc2", TRANSPOSE),
        ]
        table += per_layer(layer, config.depth)
        table += rows("norm", "encoder.encoder_norm") + rows("head", "classifier", TRANSPOSE)
        if config.distillation_token:
            table += rows("distillation_head", "classifier_dist", TRANSPOSE)
        return table
