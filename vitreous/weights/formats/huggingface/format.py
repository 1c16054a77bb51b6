"""transformers checkpoints: ViT, DeiT, ViTMSN, DINOv2 with and without registers, and the encoder of ViTMAE.

The table contains the names that `save_pretrained` writes (those of version 4), without the base model prefix. The
in-memory names of version 5 can also be read.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import ClassToken, GlobalAverage, LinearHead, SwiGlu, TanhHead
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.huggingface.config import (
    FAMILIES,
    family_in,
    family_of,
    infer_fields,
    mlp_ratio,
    transformers_config,
)
from vitreous.weights.formats.huggingface.processor import (
    PUBLISHED,
    infer_preprocessing,
    processor_differences,
    processor_preprocessing,
    transformers_processor,
)
from vitreous.weights.formats.mapping import Conversion, Row, concat, per_layer, position_table, row, rows, single
from vitreous.weights.formats.timm.format import with_registers
from vitreous.weights.formats.write_checks import margin_differences, numeric_differences

PATCHES = "embeddings.patch_embeddings.projection"
# From the in-memory names of version 5 to the names in files (those of version 4). DINOv2's MLP has the same names in
# both versions.
RENAMES = (
    (r"^layers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (r"^layers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
    (r"^layers\.", "encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.down_proj\.", ".mlp.weights_out."),
)


class HuggingFace(Format):
    name = "huggingface"
    title = "transformers"
    signatures = ((f"{PATCHES}.weight",),)
    roots = ("", "vit.", "deit.", "dinov2.", "dinov2_with_registers.")  # base model prefixes in models with a head
    renames = RENAMES
    # Mask tokens and decoders are for training, poolers are for models without a classifier, and classifiers are
    # ignored with `num_classes=0`.
    ignored = (r"embeddings\.mask_token", r"decoder\..*", r"pooler\..*", r"(cls_|distillation_)?classifier\..*")
    missing = (
        *("stem", "patch_norm", "pad", "qk_norm", "models without a class token", "other positions", "qk_scale"),
        "positions without the class token",
    )

    def normalise(self, state: StateDict) -> StateDict:
        state = super().normalise(state)
        tensors = dict(state.tensors)
        # Version 5 separates the gate and up projections of SwiGLU in memory and packs them in files.
        for gate in [name for name in tensors if ".mlp.gate_proj." in name]:
            if (up := gate.replace("gate_proj", "up_proj")) in tensors:
                tensors[gate.replace("gate_proj", "weights_in")] = concat([tensors.pop(gate), tensors.pop(up)])
        return dataclasses.replace(state, tensors=tensors)

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        infer_fields(state, builder, image_size)
        family = family_in(state)
        infer_preprocessing(state, builder, FAMILIES[family].processor, PUBLISHED[family])

    def table(self, config: ViTConfig) -> list[Row]:
        table = rows("patches.projection", PATCHES) + _tokens(config)
        table += per_layer(_block(config), config.depth)
        return table + rows("norm", "layernorm") + _head(config)

    def unsupported(self, config: ViTConfig) -> list[str]:
        return super().unsupported(config) + _family_problems(config) + _output_problems(config)

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        if folder:
            return processor_differences(config)
        family = FAMILIES[family_of(config)]
        return numeric_differences(config, f"transformers' {family.classes}", family.norm_eps)

    def minor_differences(self, config: ViTConfig) -> list[str]:
        return margin_differences(config, processor_preprocessing(config), self.title)

    def extra_tensors(self, config: ViTConfig) -> dict[str, Tensor]:
        return {} if config.layer_scale is None else {"embeddings.mask_token": torch.zeros(1, config.width)}

    def packed(self, tensors: Mapping[str, Tensor], config: ViTConfig) -> Mapping[str, Tensor]:
        if not config.num_classes:
            return tensors
        base = family_of(config)
        # With a classifier, all other names have the base model prefix.
        return {name if "classifier." in name else f"{base}.{name}": x for name, x in tensors.items()}

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if not path.is_dir():
            return
        dtype = next(iter(tensors.values())).dtype
        for name, document in (
            ("config.json", transformers_config(config, str(dtype).removeprefix("torch."))),
            ("preprocessor_config.json", transformers_processor(config)),
        ):
            (path / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


# ---- The table -------------------------------------------------------------------------------------------------------


def _tokens(config: ViTConfig) -> list[Row]:
    positions, tables = "embeddings.position_embeddings", ("position.prefix", "position.table")
    table = [row("prefix.class_token", "embeddings.cls_token")]
    match family_of(config):
        case "deit" if config.registers:  # saved as DeiT's distillation token, which has a position
            conversion = with_registers(1, 1, config.grid)
            ours, theirs = (*tables, "prefix.registers"), (positions, "embeddings.distillation_token")
            return [*table, row(ours, theirs, conversion)]
        case "deit":
            table.append(row("prefix.distillation_token", "embeddings.distillation_token"))
        case "dinov2_with_registers":
            table.append(row("prefix.registers", "embeddings.register_tokens"))
    return [*table, row(tables, positions, position_table(1 + config.distillation_token, config.grid))]


def _block(config: ViTConfig) -> list[Row]:
    ours, theirs, scaled = "encoder.blocks.{i}", "encoder.layer.{i}", config.layer_scale is not None
    norms = ("norm1", "norm2") if scaled else ("layernorm_before", "layernorm_after")
    table = rows(f"{ours}.attention_norm", f"{theirs}.{norms[0]}") + rows(f"{ours}.mlp_norm", f"{theirs}.{norms[1]}")
    parts = ("weight", "bias") if config.qkv_bias else ("weight",)
    for name in ("query", "key", "value"):
        table += rows(f"{ours}.attention.{name[0]}", f"{theirs}.attention.attention.{name}", parts=parts)
    table += rows(f"{ours}.attention.output", f"{theirs}.attention.output.dense")
    if not scaled:
        table += rows(f"{ours}.mlp.up", f"{theirs}.intermediate.dense")
        return table + rows(f"{ours}.mlp.down", f"{theirs}.output.dense")
    for part, scale in (("attention", "layer_scale1"), ("mlp", "layer_scale2")):
        table.append(row(f"{ours}.{part}_scale.factor", f"{theirs}.{scale}.lambda1"))
    if isinstance(config.mlp, SwiGlu):
        table += rows(f"{ours}.mlp.gate_and_up", f"{theirs}.mlp.weights_in")
        return table + rows(f"{ours}.mlp.down", f"{theirs}.mlp.weights_out")
    return table + rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1") + rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")


def _head(config: ViTConfig) -> list[Row]:
    if isinstance(config.head, TanhHead):
        return rows("head.pre_logits", "pooler.dense")
    if not config.num_classes:
        return []
    if config.distillation_token:
        return rows("head", "cls_classifier") + rows("distillation_head", "distillation_classifier")
    if config.layer_scale is not None:
        return rows("head", "classifier", _half(mean=isinstance(config.pool, GlobalAverage)))
    return rows("head", "classifier")


def _half(mean: bool) -> Conversion:
    """Convert the half of DINOv2's classifier for the patch mean (if `mean`) or class token. The other half is 0."""

    def write(weight: Tensor) -> Tensor:
        width = weight.shape[1]
        return F.pad(weight, (width, 0) if mean else (0, width))

    return single(lambda both: both.chunk(2, dim=1)[int(mean)].contiguous(), write)


# ---- Unsupported models ----------------------------------------------------------------------------------------------


def _family_problems(config: ViTConfig) -> list[str]:
    """Return one line per combination of parts that no transformers model supports."""
    lines = []
    if config.layer_scale is None:
        if isinstance(config.mlp, SwiGlu):
            lines.append("SwiGLU requires layer_scale in transformers (DINOv2)")
        # A single register is saved as the distillation token of a DeiT without a teacher.
        headless = not config.num_classes and not isinstance(config.head, TanhHead)
        if config.registers > 1 or (config.registers and (headless or config.distillation_token)):
            lines.append("registers require layer_scale in transformers (DINOv2)")
        return lines
    if config.distillation_token:
        lines.append("no transformers model has both distillation_token (DeiT) and layer_scale (DINOv2)")
    if mlp_ratio(config) is None:
        multiple = "two thirds of a multiple" if isinstance(config.mlp, SwiGlu) else "a multiple"
        required = f"mlp_width to be {multiple} of width ({config.width})"
        lines.append(f"transformers' DINOv2 requires {required}, got {config.mlp_width}")
    return lines


def _output_problems(config: ViTConfig) -> list[str]:
    # DINOv2's classifier uses the class token and the mean of the patches; the weights of one of them may be zeros.
    mean = config.layer_scale is not None and config.num_classes and config.pool == GlobalAverage("before")
    lines = []
    if not (isinstance(config.pool, ClassToken) or mean):
        lines.append(f"transformers requires ClassToken() pooling, got {config.pool}")
    if isinstance(config.head, TanhHead):
        if config.num_classes:
            lines.append("transformers requires LinearHead for a classifier, got TanhHead")
        elif config.layer_scale is not None or config.distillation_token:
            lines.append("in transformers, only ViT and DeiT without a teacher support TanhHead")
    elif config.num_classes and not isinstance(config.head, LinearHead):
        lines.append(f"transformers requires LinearHead for a classifier, got {type(config.head).__name__}")
    return lines
