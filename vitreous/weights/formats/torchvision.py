"""State dicts of torchvision's `VisionTransformer`, as published in its model zoo or saved by its reference scripts.

Names and numerics follow torchvision's `models/vision_transformer.py`, which supports square RGB images, a class token,
and a head with one linear layer or, with `representation_size`, two linear layers with tanh in between.
"""

import dataclasses
import re
from typing import Any

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, Gelu, Learned1d, LinearHead, MlpHead, TanhHead
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import Row, per_layer, position_table, row, rows, split
from vitreous.weights.io.containers import TORCH_SUFFIXES

PUBLISHED = re.compile(r"vit_[blh]_(14|16|32)(_\w+)?-[0-9a-f]{8}\.pth")  # file names in the model zoo
BLOCK = "encoder.layers.encoder_layer_{i}"
FIRST = BLOCK.replace("{i}", "0")


class Torchvision(Format):
    name = "torchvision"
    title = "torchvision"
    signatures = ((f"{FIRST}.ln_1.weight",),)
    renames = ((r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3."))  # names until 2022
    suffixes = TORCH_SUFFIXES
    missing = (
        *("stem", "patch_norm", "distillation_token", "registers", "qk_norm", "layer_scale", "SwiGLU"),
        *("partial patches", "rectangular images", "rectangular patches", "other positions"),
        *("positions without the class token", "head_dim", "qk_scale", "models without qkv_bias", "other pooling"),
    )

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        width, channels, *patch = state.shape("conv_proj.weight", 4)
        has_head = "heads.head.weight" in state.tensors
        builder.set(
            width=width,
            depth=state.count(f"{BLOCK}.ln_1.weight"),
            channels=channels,
            patch_size=(patch[0], patch[1]),
            mlp_width=state.shape(f"{FIRST}.mlp.0.weight", 2)[0],
            num_classes=state.shape("heads.head.weight", 2)[0] if has_head else 0,
        )
        if "heads.pre_logits.weight" in state.tensors:
            builder.set(head=TanhHead(state.shape("heads.pre_logits.weight", 2)[0]))
        builder.infer_heads(width, PUBLISHED.fullmatch(state.path.name) is not None)
        builder.infer_grid(state.shape("encoder.pos_embedding", 3)[1], (1,), (patch[0], patch[1]), image_size)
        position = Learned1d(interpolation="torchvision")
        builder.default("torchvision default", norm_eps=self.norm_eps, mlp=Gelu(self.gelu), position=position)
        how, reason = dataclasses.replace(IMAGENET, crop_fraction=1.0), "torchvision default above 224 pixels (SWAG)"
        if min(builder.fields["image_size"]) <= 224:
            how = dataclasses.replace(IMAGENET, interpolation="bilinear")
            reason = "torchvision default up to 224 pixels"
        builder.assume_preprocessing(reason, how)

    def table(self, config: ViTConfig) -> list[Row]:
        ours, packed = "encoder.blocks.{i}", f"{BLOCK}.self_attention.in_proj"
        attention = f"{ours}.attention"
        block = [
            *rows(f"{ours}.attention_norm", f"{BLOCK}.ln_1"),
            row(tuple(f"{attention}.{part}.weight" for part in "qkv"), f"{packed}_weight", split(3)),
            row(tuple(f"{attention}.{part}.bias" for part in "qkv"), f"{packed}_bias", split(3)),
            *rows(f"{attention}.output", f"{BLOCK}.self_attention.out_proj"),
            *rows(f"{ours}.mlp_norm", f"{BLOCK}.ln_2"),
            *rows(f"{ours}.mlp.up", f"{BLOCK}.mlp.0"),
            *rows(f"{ours}.mlp.down", f"{BLOCK}.mlp.3"),
        ]
        table = [
            *rows("patches.projection", "conv_proj"),
            row("prefix.class_token", "class_token"),
            row(("position.prefix", "position.table"), "encoder.pos_embedding", position_table(1, config.grid)),
            *per_layer(block, config.depth),
            *rows("norm", "encoder.ln"),
        ]
        if isinstance(config.head, TanhHead):
            table += rows("head.pre_logits", "heads.pre_logits")
        if config.num_classes:
            table += rows("head" if isinstance(config.head, LinearHead) else "head.classifier", "heads.head")
        return table

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if config.channels != 3:
            lines.append(f"torchvision requires 3 channels, got {config.channels}")
        if isinstance(config.head, MlpHead):
            lines.append("MlpHead is not supported by torchvision")
        if isinstance(config.head, TanhHead) and not config.num_classes:
            lines.append("TanhHead without a classifier is not supported by torchvision")
        return lines
