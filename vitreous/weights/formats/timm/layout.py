"""The layout that timm, DeiT, DeiT-III, MAE, DINOv2 and PaddleClas share, except for a few names (see Names).

Names read from timm 1.0, `vision_transformer.py`, `vision_transformer_hybrid.py` and `resnetv2.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitreous.model import options
from vitreous.model.config import ViTConfig
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import (
    IDENTITY,
    Conversion,
    Row,
    concat,
    packed_rows,
    per_layer,
    position_table,
    row,
    rows,
)
from vitreous.weights.io.errors import BadCheckpoint

PATCH, QKV = "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"


@dataclass(frozen=True)
class Names:
    """Names and conventions in which the systems with timm's layout differ."""

    registers: str = "reg_token"
    scales: tuple[str, str] = ("ls1.gamma", "ls2.gamma")
    gated: tuple[str, str] = ("mlp.fc1", "mlp.fc2")
    pre_logits: str = "pre_logits.fc"
    register_entries: bool = True  # registers have positions if the class token has one
    matrix: Conversion = IDENTITY  # of a linear layer's weight: IDENTITY or TRANSPOSE


TIMM = Names()


class TimmLayout(Format):
    """A format with timm's layout."""

    signatures: ClassVar[Sequence[Sequence[str]]] = ((PATCH, QKV),)
    names: ClassVar[Names] = TIMM

    def table(self, config: ViTConfig) -> list[Row]:
        return timm_table(config, self.names)


# ---- The table -------------------------------------------------------------------------------------------------------


def timm_table(config: ViTConfig, names: Names) -> list[Row]:
    """All rows of a model."""
    matrix = names.matrix
    table = [*_stem(config), *rows("patches.projection", "patch_embed.proj"), *_tokens(config, names)]
    table += per_layer(_block(config, names), config.depth)
    match config.pool:
        case options.GlobalAverage(norm="after"):
            table += rows("pool.norm", "fc_norm")
        case options.AttentionPool():
            table += rows("norm", "norm") + _attention_pool(matrix)
        case _:
            table += rows("norm", "norm")
    if isinstance(config.head, options.TanhHead):
        table += rows("head.pre_logits", names.pre_logits, matrix)
    if config.num_classes:
        classifier = "head" if isinstance(config.head, options.LinearHead) else "head.classifier"
        table += rows(classifier, "head", matrix)
        if config.distillation_token:
            table += rows(classifier.replace("head", "distillation_head"), "head_dist", matrix)
    return table


def _tokens(config: ViTConfig, names: Names) -> list[Row]:
    table = []
    if config.class_token:
        table.append(row("prefix.class_token", "cls_token"))
    if config.distillation_token:
        table.append(row("prefix.distillation_token", "dist_token"))
    own = isinstance(config.position, options.Learned1d) and config.position.prefix_entries
    entries = (config.class_token + config.distillation_token) * own
    tables = ("position.prefix", "position.table") if entries else ("position.table",)
    if config.registers and own and names.register_entries:
        conversion = with_registers(entries, config.registers, config.grid)
        table.append(row((*tables, "prefix.registers"), ("pos_embed", names.registers), conversion))
        return table
    if config.registers:
        table.append(row("prefix.registers", names.registers))
    if isinstance(config.position, options.Learned1d):
        table.append(row(tables, "pos_embed", position_table(entries, config.grid)))
    return table


def with_registers(entries: int, registers: int, grid: tuple[int, int]) -> Conversion:
    """Registers with positions: ours have none, but hold the sum of token and position.

    In the checkpoint's dtype that is bit-identical to the other system. If a checkpoint in half precision is converted
    to float32, the two differ by the rounding of the sum.
    """

    def read(theirs: list[Tensor]) -> list[Tensor]:
        positions, tokens = theirs
        end = entries + registers
        patches = positions[0, end:].reshape(*grid, positions.shape[-1])
        tokens = tokens + positions[:, entries:end]
        return [positions[0, :entries], patches, tokens] if entries else [patches, tokens]

    def write(ours: list[Tensor]) -> list[Tensor]:
        *own, patches, tokens = ours
        return [concat([*own, torch.zeros_like(tokens[0]), patches.flatten(0, 1)])[None], tokens]

    return Conversion(read, write)


def _block(config: ViTConfig, names: Names) -> list[Row]:
    ours, theirs, matrix = "encoder.blocks.{i}", "blocks.{i}", names.matrix
    table = rows(f"{ours}.attention_norm", f"{theirs}.norm1")
    parts = ("weight", "bias") if config.qkv_bias else ("weight",)
    table += packed_rows([f"{ours}.attention.{part}" for part in "qkv"], f"{theirs}.attn.qkv", matrix, parts)
    if config.qk_norm:
        table += rows(f"{ours}.attention.q_norm", f"{theirs}.attn.q_norm")
        table += rows(f"{ours}.attention.k_norm", f"{theirs}.attn.k_norm")
    table += rows(f"{ours}.attention.output", f"{theirs}.attn.proj", matrix)
    table += rows(f"{ours}.mlp_norm", f"{theirs}.norm2")
    if isinstance(config.mlp, options.SwiGlu):
        table += rows(f"{ours}.mlp.gate_and_up", f"{theirs}.{names.gated[0]}", matrix)
        table += rows(f"{ours}.mlp.down", f"{theirs}.{names.gated[1]}", matrix)
    else:
        table += rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1", matrix)
        table += rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2", matrix)
    if config.layer_scale is not None:
        table.append(row(f"{ours}.attention_scale.factor", f"{theirs}.{names.scales[0]}"))
        table.append(row(f"{ours}.mlp_scale.factor", f"{theirs}.{names.scales[1]}"))
    return table


def _attention_pool(matrix: Conversion) -> list[Row]:
    table = [row("pool.attention.query", "attn_pool.latent"), *rows("pool.norm", "attn_pool.norm")]
    table += rows("pool.attention.q", "attn_pool.q", matrix)
    table += packed_rows(["pool.attention.k", "pool.attention.v"], "attn_pool.kv", matrix)
    table += rows("pool.attention.output", "attn_pool.proj", matrix)
    for ours, theirs in (("up", "fc1"), ("down", "fc2")):
        table += rows(f"pool.mlp.{ours}", f"attn_pool.mlp.{theirs}", matrix)
    return table


def stem_units(stages: tuple[int, ...]) -> Iterator[tuple[str, int, int]]:
    """Our name of every unit of a ResNet, its stage, and its index in it. The first of a stage has a shortcut."""
    index = 0
    for stage, units in enumerate(stages):
        for unit in range(units):
            yield f"stem.stages.{index}", stage, unit
            index += 1


def _stem(config: ViTConfig) -> list[Row]:
    if config.stem is None:
        return []
    root = "patch_embed.backbone.stem" if config.stem.stages else "patch_embed.backbone"
    table = [row("stem.root.weight", f"{root}.conv.weight"), *rows("stem.norm", f"{root}.norm")]
    for ours, stage, unit in stem_units(config.stem.stages):
        theirs = f"patch_embed.backbone.stages.{stage}.blocks.{unit}"
        for i in (1, 2, 3):
            table.append(row(f"{ours}.conv{i}.weight", f"{theirs}.conv{i}.weight"))
            table += rows(f"{ours}.norm{i}", f"{theirs}.norm{i}")
        if unit == 0:
            table.append(row(f"{ours}.shortcut.0.weight", f"{theirs}.downsample.conv.weight"))
            table += rows(f"{ours}.shortcut.1", f"{theirs}.downsample.norm")
    return table


# ---- Reading the config ---------------------------------------------------------------------------------------------


def infer_timm(
    state: StateDict,
    builder: ConfigBuilder,
    image_size: Any = None,
    names: Names = TIMM,
    native: Any = None,
    num_heads: int | None = None,
    entries: bool | None = None,
    published: bool = False,
) -> None:
    """Set the fields that follow from shapes; numerics and preprocessing are up to the format.

    native, num_heads: from a config beside the tensors, if there is one. entries: prefix tokens have positions always
    (True), usually (None), or usually not (False). published: as in `ConfigBuilder.infer_heads`.
    """
    width, channels, *patch = state.shape(PATCH, 4)
    stem, stem_channels = _read_stem(state)
    registers = state.shape(names.registers, 3)[1] if names.registers in state.tensors else 0
    has_class, has_distillation = "cls_token" in state.tensors, "dist_token" in state.tensors
    builder.set(
        width=width,
        depth=state.count("blocks.{i}.norm1.weight"),
        channels=channels if stem is None else stem_channels,
        stem=stem,
        patch_size=(patch[0], patch[1]),
        class_token=has_class,
        distillation_token=has_distillation,
        registers=registers,
    )
    if num_heads is None:
        builder.infer_heads(width, published)
    else:
        builder.set(num_heads=num_heads)
    stride = stem.stride if stem is not None else 1
    prefix = has_class + has_distillation + registers * names.register_entries
    choices = {None: (prefix, 0), True: (prefix,), False: (0, prefix)}[entries]
    positions = state.shape("pos_embed", 3)[1]
    own = builder.infer_grid(positions, choices, (patch[0] * stride, patch[1] * stride), image_size, native)
    builder.set(
        position=options.Learned1d(prefix_entries=own == prefix),
        qkv_bias="blocks.0.attn.qkv.bias" in state.tensors,
        qk_norm="blocks.0.attn.q_norm.weight" in state.tensors,
        layer_scale=1e-5 if f"blocks.0.{names.scales[0]}" in state.tensors else None,
    )
    _set_mlp(state, builder, names)
    _set_output(state, builder, names)


def _read_stem(state: StateDict) -> tuple[options.ResNetStem | None, int]:
    """The ResNet in front of the patches, and the number of its input channels."""
    backbone = "patch_embed.backbone"
    root = next(
        (name for name in (f"{backbone}.conv", f"{backbone}.stem.conv") if f"{name}.weight" in state.tensors), None
    )
    if root is None:
        return None, 0
    width, channels, *_ = state.shape(f"{root}.weight", 4)
    count = state.count(f"{backbone}.stages.{{i}}.blocks.0.conv1.weight")
    stages = [state.count(f"{backbone}.stages.{stage}.blocks.{{i}}.conv1.weight") for stage in range(count)]
    return options.ResNetStem(tuple(stages), width, "timm"), channels


def _set_mlp(state: StateDict, builder: ConfigBuilder, names: Names) -> None:
    gate, down = (_matrix(state, names, f"blocks.0.{name}") for name in names.gated)
    plain = _matrix(state, names, "blocks.0.mlp.fc1")
    if gate is not None and down is not None and gate[0] == 2 * down[1]:
        builder.set(mlp=options.SwiGlu(), mlp_width=down[1])
    elif plain is not None:
        builder.set(mlp=options.Gelu("erf"), mlp_width=plain[0])
    else:
        raise BadCheckpoint(f"{builder.path} has no tensor blocks.0.mlp.fc1.weight")


def _set_output(state: StateDict, builder: ConfigBuilder, names: Names) -> None:
    if "attn_pool.latent" in state.tensors:
        builder.set(pool=options.AttentionPool())
    elif "fc_norm.weight" in state.tensors:
        builder.set(pool=options.GlobalAverage("after"))
    elif "cls_token" in state.tensors:
        builder.set(pool=options.ClassToken())
    else:
        builder.set(pool=options.GlobalAverage("before"))
    head = _matrix(state, names, "head")
    builder.set(num_classes=0 if head is None else head[0])
    if (pre_logits := _matrix(state, names, names.pre_logits)) is not None:
        builder.set(head=options.TanhHead(pre_logits[0]))


def _matrix(state: StateDict, names: Names, layer: str) -> tuple[int, int] | None:
    """Outputs and inputs of a linear layer, or None if there is no such layer."""
    if f"{layer}.weight" not in state.tensors:
        return None
    rows, columns = state.shape(f"{layer}.weight", 2)
    return (rows, columns) if names.matrix is IDENTITY else (columns, rows)
