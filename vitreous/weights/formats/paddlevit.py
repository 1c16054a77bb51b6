"""PaddleViT's files (`.pdparams`): Paddle keeps the matrix of a linear layer as [in, out].

Read from BR-IDL/PaddleViT, `image_classification/ViT/vit.py` and `DeiT/deit.py` of 2022.
"""

import dataclasses
from typing import Any

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, Learned1d, Preprocessing
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import TRANSPOSE, Row, packed_rows, per_layer, position_table, row, rows
from vitreous.weights.formats.timm.relatives import PADDLE_MISSING
from vitreous.weights.io.safetensors_file import BadCheckpoint

PATCH, LAYER = "patch_embedding.patch_embedding", "encoder.layers.{i}"


class PaddleViT(Format):
    name = "paddlevit"
    title = "PaddleViT"
    signatures = ((f"{PATCH}.weight", "encoder.layers.0.attn.qkv.weight"),)
    renames = (  # of 2021
        (r"^patch_embedding\.cls_token$", "cls_token"),
        (r"^patch_embedding\.position_embeddings$", "position_embedding"),
    )
    file_name = "model.pdparams"
    missing = (*PADDLE_MISSING, "qk_scale", "models without a classifier")

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        if "pre_logits.0.weight" in state.tensors:
            raise BadCheckpoint(f"{state.path} has a hidden layer with ReLU before its classifier (pre_logits.0)")
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
        builder.default("PaddleViT's", norm_eps=self.norm_eps, position=Learned1d(interpolation="huggingface"))
        how = Preprocessing(crop_fraction=1.0 if min(builder.fields["image_size"]) >= 384 else 0.875)
        if distilled:
            how = dataclasses.replace(how, mean=IMAGENET.mean, std=IMAGENET.std)
        builder.assume_preprocessing(f"PaddleViT's for {'DeiT' if distilled else 'ViT'}", how)

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
