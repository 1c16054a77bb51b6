"""EVA-02 checkpoints of baaivision/EVA: fine-tuned models, and the encoders of masked image modelling and of EVA-CLIP.

The sines and cosines of the rotary positions are stored as buffers, which are recomputed.
"""

from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    CLIP,
    ClassToken,
    GlobalAverage,
    Learned1d,
    LinearHead,
    Rotary2d,
    SwiGlu,
)
from vitreous.model.position import Rotary2dPosition
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import Row, per_layer, position_table, row, rows
from vitreous.weights.formats.rotary import GATE_AND_UP, heads_order, packed_qkv
from vitreous.weights.formats.write_checks import numeric_differences
from vitreous.weights.io.containers import TORCH_SUFFIXES

PATCH, COSINES = "patch_embed.proj.weight", "blocks.0.attn.rope.freqs_cos"
BASE, REFERENCE_GRID = 10_000.0, (16, 16)


class Eva(Format):
    name = "eva"
    title = "EVA-02"
    signatures = (
        (PATCH, "blocks.0.attn.q_proj.weight", "blocks.0.mlp.w1.weight"),
        (PATCH, "blocks.0.attn.q_bias", "blocks.0.mlp.w12.weight"),
    )
    # Buffers, and the head and mask token of masked image modelling.
    ignored = (r"(blocks\.\d+\.attn\.)?rope\.freqs_(cos|sin)", "mask_token", r"lm_head\..*")
    suffixes = TORCH_SUFFIXES
    missing = (
        *("stem", "patch_norm", "pad", "models without a class token", "distillation_token", "registers", "qk_norm"),
        *("head_dim", "qk_scale", "rectangular images", "rectangular patches", "layer_scale"),
    )
    supports = ("keys without a bias", "attention_output_norm", "SwiGLU with a norm")

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        width, channels, *patch = state.shape(PATCH, 4)
        names = state.tensors
        builder.set(
            width=width,
            channels=channels,
            patch_size=(patch[0], patch[1]),
            depth=state.count("blocks.{i}.norm1.weight"),
            key_bias=False,
            qkv_bias="blocks.0.attn.q_bias" in names,
            attention_output_norm="blocks.0.attn.inner_attn_ln.weight" in names,
            mlp=SwiGlu(norm="blocks.0.mlp.ffn_ln.weight" in names),
            mlp_width=state.shape("blocks.0.mlp.w3.weight", 2)[1],
            num_classes=state.shape("head.weight", 2)[0] if "head.weight" in names else 0,
        )
        if COSINES in names:
            builder.set(num_heads=max(width // state.shape(COSINES, 2)[1], 1))
        else:
            builder.infer_heads(width, published=True)
        builder.infer_grid(state.shape("pos_embed", 3)[1], (1,), (patch[0], patch[1]), image_size)
        learned = Learned1d(interpolation="huggingface")
        position = Rotary2d(BASE, "index", REFERENCE_GRID, learned=learned)
        builder.default("EVA-02 default", norm_eps=self.norm_eps, position=position)
        if "fc_norm.weight" in names:
            builder.set(pool=GlobalAverage("after"))
        elif "lm_head.weight" in names or not builder.fields["num_classes"]:
            builder.assume("mean of the patches that masked image modelling predicts", pool=GlobalAverage("before"))
        else:
            builder.set(pool=ClassToken())
        builder.assume_preprocessing("EVA-02 default", CLIP)

    def table(self, config: ViTConfig) -> list[Row]:
        positions = position_table(1, config.grid)
        table = [
            *rows("patches.projection", "patch_embed.proj"),
            row("prefix.class_token", "cls_token"),
            row(("position.learned.prefix", "position.learned.table"), "pos_embed", positions),
            *per_layer(_block(config), config.depth),
        ]
        table += rows("pool.norm", "fc_norm") if config.pool == GlobalAverage("after") else rows("norm", "norm")
        return table + (rows("head", "head") if config.num_classes else [])

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines, position = super().unsupported(config), config.position
        learned = position.learned if isinstance(position, Rotary2d) else None
        if position != Rotary2d(BASE, "index", REFERENCE_GRID, learned=learned) or learned is None:
            lines.append(f"EVA-02 requires Rotary2d({BASE:g}, 'index', {REFERENCE_GRID}, learned=...), got {position}")
        elif not learned.prefix_entries:
            lines.append("EVA-02 requires a position for the class token")
        if not isinstance(config.mlp, SwiGlu):
            lines.append(f"EVA-02 requires SwiGlu, got {type(config.mlp).__name__}")
        if config.qkv_bias and config.key_bias:
            lines.append("EVA-02 requires key_bias=False")
        if config.pool == GlobalAverage("before") and config.num_classes:
            lines.append("EVA-02 requires GlobalAverage('after') or ClassToken() pooling for a classifier")
        if config.num_classes and not isinstance(config.head, LinearHead):
            lines.append(f"EVA-02 requires LinearHead, got {type(config.head).__name__}")
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        return numeric_differences(config, self.title, self.norm_eps)

    def extra_tensors(self, config: ViTConfig) -> dict[str, Tensor]:
        position = Rotary2dPosition(config.head_width, BASE, "index", REFERENCE_GRID)
        angles = position.angles(config.grid, torch.device("cpu")).repeat_interleave(2, dim=-1)
        blocks = ("", *(f"blocks.{i}.attn." for i in range(config.depth)))
        buffers = {"cos": angles.cos(), "sin": angles.sin()}
        return {f"{block}rope.freqs_{name}": value.clone() for block in blocks for name, value in buffers.items()}


def _block(config: ViTConfig) -> list[Row]:
    ours, theirs, order = "encoder.blocks.{i}", "blocks.{i}", heads_order(config)
    assert isinstance(config.mlp, SwiGlu)
    table = rows(f"{ours}.attention_norm", f"{theirs}.norm1") + rows(f"{ours}.mlp_norm", f"{theirs}.norm2")
    if config.mlp.norm:  # all layers are separate in models with norms inside
        for part, conversion in (("q", order), ("k", order), ("v", None)):
            name = f"{ours}.attention.{part}.weight"
            table.append(row(name, f"{theirs}.attn.{part}_proj.weight", conversion))
        for kind in ("weight", "bias"):
            separate = (f"{theirs}.mlp.w1.{kind}", f"{theirs}.mlp.w2.{kind}")
            table.append(row(f"{ours}.mlp.gate_and_up.{kind}", separate, GATE_AND_UP))
        table += rows(f"{ours}.mlp.norm", f"{theirs}.mlp.ffn_ln")
    else:
        weights = tuple(f"{ours}.attention.{part}.weight" for part in "qkv")
        table.append(row(weights, f"{theirs}.attn.qkv.weight", packed_qkv(config)))
        table += rows(f"{ours}.mlp.gate_and_up", f"{theirs}.mlp.w12")
    if config.qkv_bias:
        table.append(row(f"{ours}.attention.q.bias", f"{theirs}.attn.q_bias", order))
        table.append(row(f"{ours}.attention.v.bias", f"{theirs}.attn.v_bias"))
    if config.attention_output_norm:
        table += rows(f"{ours}.attention.output_norm", f"{theirs}.attn.inner_attn_ln")
    table += rows(f"{ours}.attention.output", f"{theirs}.attn.proj")
    return table + rows(f"{ours}.mlp.down", f"{theirs}.mlp.w3")
