"""transformers checkpoints of DINOv3 (`DINOv3ViTModel`), with the names in files: those of version 4."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import ClassToken, Dropout, Gelu, Rotary2d, SwiGlu
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.dinov3 import REQUIRED, image_side, published_preprocessing, rotary_problems
from vitreous.weights.formats.huggingface.config import ACTIVATIONS, activation_name, fields_of
from vitreous.weights.formats.huggingface.processor import (
    infer_preprocessing,
    processor_differences,
    processor_preprocessing,
    transformers_processor,
)
from vitreous.weights.formats.mapping import Row, per_layer, row, rows
from vitreous.weights.formats.rotary import GATE_AND_UP
from vitreous.weights.formats.write_checks import margin_differences, numeric_differences

MODEL_TYPE = "dinov3_vit"
PATCHES, REGISTERS = "embeddings.patch_embeddings", "embeddings.register_tokens"


class HuggingFaceDinoV3(Format):
    name = "huggingface"
    title = "transformers"
    signatures = tuple((f"{PATCHES}.weight", f"{root}layer.0.attention.q_proj.weight") for root in ("", "model."))
    renames = ((r"^model\.layer\.", "layer."),)  # in-memory names of version 5
    ignored = (r"embeddings\.mask_token", r"embeddings\.register_tokens")  # without registers, an empty tensor
    missing = REQUIRED
    supports = ("keys without a bias",)
    norm_eps = 1e-5

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        fields, names = fields_of(state), state.tensors
        width, channels, *patch = state.shape(f"{PATCHES}.weight", 4)
        gated = "layer.0.mlp.gate_proj.weight" in names
        activation = fields.get(str, "hidden_act", "silu" if gated else "gelu")
        if activation not in (("silu", "swish") if gated else ACTIVATIONS):
            accepted = "'silu' for a gated MLP" if gated else f"one of {', '.join(ACTIVATIONS)}"
            fields.fail("hidden_act", activation, accepted)
        side = image_side(patch)
        native = fields.size("image_size", (side[0], side[1]))
        builder.set(
            width=width,
            channels=channels,
            patch_size=(patch[0], patch[1]),
            depth=state.count("layer.{i}.norm1.weight"),
            registers=state.shape(REGISTERS)[1] if REGISTERS in names else 0,
            qkv_bias="layer.0.attention.q_proj.bias" in names,
            key_bias="layer.0.attention.k_proj.bias" in names,
            mlp=SwiGlu() if gated else Gelu(ACTIVATIONS[activation]),
            mlp_width=state.shape("layer.0.mlp.up_proj.weight", 2)[0],
            layer_scale=fields.get(float, "layerscale_value", 1.0),
            stochastic_depth=fields.rate("drop_path_rate"),
            dropout=Dropout(attention=fields.rate("attention_dropout")),
            pool=ClassToken(),
            num_classes=0,
            norm_eps=fields.get(float, "layer_norm_eps", self.norm_eps),
            position=Rotary2d(fields.get(float, "rope_theta", Rotary2d.base)),
            image_size=native,
        )
        if "num_attention_heads" in fields:
            builder.set(num_heads=fields.get(int, "num_attention_heads", 0))
        else:
            published = {1280: 20, 4096: 32}  # H+ and 7B
            builder.assume("as in the published models", num_heads=published.get(width, max(width // 64, 1)))
        published_images = dataclasses.replace(published_preprocessing(False), geometry="huggingface")
        infer_preprocessing(state, builder, "DINOv3ViT", published_images)

    def table(self, config: ViTConfig) -> list[Row]:
        table = [*rows("patches.projection", PATCHES), row("prefix.class_token", "embeddings.cls_token")]
        if config.registers:
            table.append(row("prefix.registers", REGISTERS))
        return table + per_layer(_block(config), config.depth) + rows("norm", "norm")

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config) + rotary_problems(config, "transformers' DINOv3")
        if config.layer_scale is None:
            lines.append("transformers' DINOv3 requires layer_scale")
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = [] if folder else numeric_differences(config, "transformers' DINOv3", self.norm_eps)
        if isinstance(config.position, Rotary2d) and config.position.period_dtype != "float32":
            lines.append("the periods of rotary positions are rounded to bfloat16 in Vitreous, but not in transformers")
        return lines + (processor_differences(config) if folder else [])

    def minor_differences(self, config: ViTConfig) -> list[str]:
        return margin_differences(config, processor_preprocessing(config), self.title)

    def extra_tensors(self, config: ViTConfig) -> dict[str, Tensor]:
        empty = {} if config.registers else {REGISTERS: torch.zeros(1, 0, config.width)}
        return {"embeddings.mask_token": torch.zeros(1, 1, config.width)} | empty

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if not path.is_dir():
            return
        dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
        documents = {
            "config.json": dinov3_config(config, dtype),
            "preprocessor_config.json": transformers_processor(config),
        }
        for name, document in documents.items():
            (path / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _block(config: ViTConfig) -> list[Row]:
    ours, theirs = "encoder.blocks.{i}", "layer.{i}"
    table = rows(f"{ours}.attention_norm", f"{theirs}.norm1") + rows(f"{ours}.mlp_norm", f"{theirs}.norm2")
    for part in "qkv":
        has_bias = config.qkv_bias and (part != "k" or config.key_bias)
        parts = ("weight", "bias") if has_bias else ("weight",)
        table += rows(f"{ours}.attention.{part}", f"{theirs}.attention.{part}_proj", parts=parts)
    table += rows(f"{ours}.attention.output", f"{theirs}.attention.o_proj")
    table.append(row(f"{ours}.attention_scale.factor", f"{theirs}.layer_scale1.lambda1"))
    table.append(row(f"{ours}.mlp_scale.factor", f"{theirs}.layer_scale2.lambda1"))
    if isinstance(config.mlp, SwiGlu):
        for part in ("weight", "bias"):
            separate = (f"{theirs}.mlp.gate_proj.{part}", f"{theirs}.mlp.up_proj.{part}")
            table.append(row(f"{ours}.mlp.gate_and_up.{part}", separate, GATE_AND_UP))
    else:
        table += rows(f"{ours}.mlp.up", f"{theirs}.mlp.up_proj")
    return table + rows(f"{ours}.mlp.down", f"{theirs}.mlp.down_proj")


def dinov3_config(config: ViTConfig, dtype: str) -> dict[str, Any]:
    """Return the config.json from which `AutoModel` builds the model."""
    assert isinstance(config.position, Rotary2d)
    height, width = config.image_size
    return {
        "architectures": ["DINOv3ViTModel"],
        "model_type": MODEL_TYPE,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "num_register_tokens": config.registers,
        "num_channels": config.channels,
        "patch_size": config.patch_size[0],
        "image_size": height if height == width else [height, width],
        "hidden_act": "silu" if isinstance(config.mlp, SwiGlu) else activation_name(config),
        "use_gated_mlp": isinstance(config.mlp, SwiGlu),
        "layer_norm_eps": config.norm_eps,
        "layerscale_value": config.layer_scale,
        "rope_theta": config.position.base,
        "query_bias": config.qkv_bias,
        "key_bias": config.qkv_bias and config.key_bias,
        "value_bias": config.qkv_bias,
        "attention_dropout": config.dropout.attention,
        "drop_path_rate": config.stochastic_depth,
        "pos_embed_rescale": None,
        "dtype": dtype,
    }
