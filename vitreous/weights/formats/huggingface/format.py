"""transformers' folders: ViT, DeiT, ViTMSN, DINOv2 with and without registers, and the encoder of ViTMAE.

The table has the names that `save_pretrained` writes, which are those of version 4, without the name of the base model
in front; the names that models of version 5 have in memory are read as well. What config.json and
preprocessor_config.json say is in huggingface_config.py and huggingface_processor.py.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import GlobalAverage, SwiGlu, TanhHead
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.huggingface.config import CLASSES, EPS, family_of, infer_fields, transformers_config
from vitreous.weights.formats.huggingface.processor import infer_preprocessing, transformers_processor
from vitreous.weights.formats.huggingface.unsupported import as_transformers_reads_it, crop_losses, obstacles
from vitreous.weights.formats.limits import margin_differences, numeric_losses
from vitreous.weights.formats.mapping import How, Row, one, positions, renamed, repeated, row, rows, stacked
from vitreous.weights.formats.timm.layout import with_registers
from vitreous.weights.io.containers import write_file
from vitreous.weights.io.safetensors_file import write_tensors

PATCHES = "embeddings.patch_embeddings.projection"
BASES = ("", "vit.", "deit.", "dinov2.", "dinov2_with_registers.")  # how a model with a head calls the one without

# Version 5's names in memory, as version 4 and the files have them. The MLP of DINOv2 has kept its names.
RENAMED = [
    (r"^layers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
    (r"^layers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
    (r"^layers\.", "encoder.layer."),
    (r"\.attention\.q_proj\.", ".attention.attention.query."),
    (r"\.attention\.k_proj\.", ".attention.attention.key."),
    (r"\.attention\.v_proj\.", ".attention.attention.value."),
    (r"\.attention\.o_proj\.", ".attention.output.dense."),
    (r"\.mlp\.down_proj\.", ".mlp.weights_out."),
]


class HuggingFace(Format):
    name = "huggingface"
    title = "transformers"
    # Only training needs the token for masks and the decoders of masked models. A pooler is for base models, and of no
    # use beside a classifier. A classifier is left out where `num_classes=0` is asked for.
    dropped = (r"embeddings\.mask_token", r"decoder\..*", r"pooler\..*", r"(cls_|distillation_)?classifier\..*")

    def recognises(self, found: Found) -> bool:
        return _base(found) is not None

    def normalise(self, found: Found) -> Found:
        prefix = _base(found) or ""
        tensors = {name.removeprefix(prefix): tensor for name, tensor in found.tensors.items()}
        return Found(found.path, _gates_packed(renamed(tensors, RENAMED)), found.config)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        infer_fields(found, guess, image_size)
        infer_preprocessing(found, guess)

    def table(self, config: ViTConfig) -> list[Row]:
        table = rows("patches.projection", PATCHES) + _tokens(config)
        table += repeated(_block(config), config.depth)
        return table + rows("norm", "layernorm") + _head(config)

    # ---- Writing ----

    def obstacles(self, config: ViTConfig) -> list[str]:
        return obstacles(config)

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        if folder:
            return crop_losses(config)
        family = family_of(config)
        return numeric_losses(config, f"transformers' {CLASSES[family]}", EPS[family])

    def remarks(self, config: ViTConfig) -> list[str]:
        return margin_differences(config, as_transformers_reads_it(config), self.title)

    def additions(self, config: ViTConfig) -> dict[str, Tensor]:
        masks = {"embeddings.mask_token": torch.zeros(1, config.width)}
        return masks if config.layer_scale is not None else {}

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        if config.num_classes:  # beside a classifier, all the rest stands under the name of the base model
            base = family_of(config)
            tensors = {name if "classifier." in name else f"{base}.{name}": x for name, x in tensors.items()}
        if not path.is_dir():
            write_file(tensors, path)
            return
        write_tensors(tensors, path / "model.safetensors")
        dtype = next(iter(tensors.values())).dtype
        for name, document in (
            ("config.json", transformers_config(config, str(dtype).removeprefix("torch."))),
            ("preprocessor_config.json", transformers_processor(config)),
        ):
            (path / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _base(found: Found) -> str | None:
    """What stands before the names of the base model."""
    return next((base for base in BASES if f"{base}{PATCHES}.weight" in found.tensors), None)


def _gates_packed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Version 5 keeps the gate of a SwiGLU apart in memory; its files have it on top of what it lets through."""
    for gate in [name for name in tensors if ".mlp.gate_proj." in name]:
        up = gate.replace("gate_proj", "up_proj")
        if up in tensors:
            tensors[gate.replace("gate_proj", "weights_in")] = stacked([tensors.pop(gate), tensors.pop(up)])
    return tensors


# ---- The table -------------------------------------------------------------------------------------------------------


def _tokens(config: ViTConfig) -> list[Row]:
    places, tables = "embeddings.position_embeddings", ("position.prefix", "position.table")
    table = [row("prefix.class_token", "embeddings.cls_token")]
    match family_of(config):
        case "deit" if config.registers:  # DeiT's second token, where no head reads it: a register with a position
            how = with_registers(1, 1, config.grid)
            ours, theirs = (*tables, "prefix.registers"), (places, "embeddings.distillation_token")
            return [*table, row(ours, theirs, how)]
        case "deit":
            table.append(row("prefix.distillation_token", "embeddings.distillation_token"))
        case "dinov2_with_registers":
            table.append(row("prefix.registers", "embeddings.register_tokens"))
    return [*table, row(tables, places, positions(1 + config.distillation_token, config.grid))]


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


def _half(mean: bool) -> How:
    """DINOv2's classifier reads the class token beside the mean of the patches; ours reads one, as if by zeros."""

    def write(weight: Tensor) -> Tensor:
        width = weight.shape[1]
        return F.pad(weight, (width, 0) if mean else (0, width))

    return one(lambda both: both.chunk(2, dim=1)[int(mean)].contiguous(), write)
