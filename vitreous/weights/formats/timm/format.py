"""timm checkpoints, and timm's layout, which DeiT, MAE, DINOv2 and PaddleClas share except for a few names.

A checkpoint is a state dict, or a folder with the config.json that `timm.models.save_for_hf` writes. Names follow
timm 1.0 (`vision_transformer.py`, `vision_transformer_hybrid.py`, `resnetv2.py`).
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from vitreous.weights.formats.timm.config import (
    HYBRIDS,
    TimmConfig,
    is_architecture,
    is_eva,
    timm_config,
    timm_preprocessing,
)
from vitreous.weights.formats.write_checks import (
    margin_differences,
    missing_parts,
    numeric_differences,
    resize_differences,
)
from vitreous.weights.io.errors import BadCheckpoint

PATCH, QKV = "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"


@dataclass(frozen=True)
class Names:
    """Names and conventions that differ between the libraries with timm's layout."""

    registers: str = "reg_token"
    scales: tuple[str, str] = ("ls1.gamma", "ls2.gamma")
    gated: tuple[str, str] = ("mlp.fc1", "mlp.fc2")
    pre_logits: str = "pre_logits.fc"
    register_entries: bool = True  # registers have positions if the class token has one
    matrix: Conversion = IDENTITY  # for the weights of linear layers: IDENTITY or TRANSPOSE


TIMM = Names()


class TimmLayout(Format):
    """Base class of formats with timm's layout."""

    signatures: ClassVar[Sequence[Sequence[str]]] = ((PATCH, QKV),)
    names: ClassVar[Names] = TIMM

    def table(self, config: ViTConfig) -> list[Row]:
        return timm_table(config, self.names)


# ---- The table -------------------------------------------------------------------------------------------------------


def timm_table(config: ViTConfig, names: Names) -> list[Row]:
    """Return the rows for all tensors of a model."""
    matrix = names.matrix
    parts = ("weight", "bias") if config.patch_bias else ("weight",)
    table = [*_stem(config), *rows("patches.projection", "patch_embed.proj", parts=parts), *_tokens(config, names)]
    if config.pre_norm:
        table += rows("pre_norm", "norm_pre")
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
    if config.projection is not None:
        table.append(row("projection.weight", ("head.weight", "head.bias"), WITH_ZERO_BIAS))
    if config.num_classes:
        classifier = "head" if isinstance(config.head, options.LinearHead) else "head.classifier"
        table += rows(classifier, "head", matrix)
        if config.distillation_token:
            table += rows(classifier.replace("head", "distillation_head"), "head_dist", matrix)
    return table


# timm stores the projection of CLIP, which has no bias, as a classifier.
WITH_ZERO_BIAS = Conversion(lambda theirs: theirs[:1], lambda ours: [ours[0], ours[0].new_zeros(len(ours[0]))])


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
    """Create a conversion for registers with positions. Vitreous stores the sum of each register and its position."""

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
    """Yield the Vitreous name, stage and index of each ResNet unit. Unit 0 of each stage has a shortcut layer."""
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


# ---- Fields that follow from shapes ----------------------------------------------------------------------------------


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
    """Set the config fields that follow from tensor shapes. The caller sets numerics and preprocessing.

    native: Image size in a config file, or None. num_heads: Number of heads in a config file, or None. entries: Prefix
    tokens have positions always (True), usually (None) or usually not (False). published: See `infer_heads`.
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
        patch_bias="patch_embed.proj.bias" in state.tensors,
        pre_norm="norm_pre.weight" in state.tensors,
        qkv_bias="blocks.0.attn.qkv.bias" in state.tensors,
        qk_norm="blocks.0.attn.q_norm.weight" in state.tensors,
        layer_scale=1e-5 if f"blocks.0.{names.scales[0]}" in state.tensors else None,
    )
    _set_mlp_width(state, builder, names)
    _set_output(state, builder, names)


def _read_stem(state: StateDict) -> tuple[options.ResNetStem | None, int]:
    """Return the ResNet stem and its number of input channels, or (None, 0) if there is no stem."""
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


def _set_mlp_width(state: StateDict, builder: ConfigBuilder, names: Names) -> None:
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
    """Return the number of outputs and inputs of a linear layer, or None if the layer does not exist."""
    if f"{layer}.weight" not in state.tensors:
        return None
    rows, columns = state.shape(f"{layer}.weight", 2)
    return (rows, columns) if names.matrix is IDENTITY else (columns, rows)


# ---- timm checkpoints ------------------------------------------------------------------------------------------------

NOT_ROPE_APE = "as in DeiT-III; rope_ape models have the same tensors and are recognised by their name in the path"
NOT_RPN = "as in models with norms before the layers; rpn models have the same tensors but are not supported"
POOLS = {"token": options.ClassToken, "avg": options.GlobalAverage, "map": options.AttentionPool}


class Timm(TimmLayout):
    name = "timm"
    title = "timm"
    renames = ((r"\.gamma_([12])$", r".ls\1.gamma"),)  # DeiT-III's original files
    missing = ("other positions", "patch_norm", "head_dim", "qk_scale", "partial patches")
    supports = ("pre_norm", "patches without a bias", "truncate", "projection")
    ignored = (r"head\.(weight|bias)",)  # with projection=None, or num_classes=0

    def confirms(self, state: StateDict) -> bool:
        return not is_eva(state)

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        config = TimmConfig.of(state)
        _check_parts(state, config.architecture)
        infer_timm(
            state,
            builder,
            image_size,
            native=config.image_size,
            num_heads=config.num_heads,
            entries=config.prefix_entries,
            published=is_architecture(config.architecture, state.shape(PATCH, 4)[0]),
        )
        fields = builder.fields
        _set_mlp(builder, config)
        _set_pool(state, builder, config)
        position = options.Learned1d(fields["position"].prefix_entries, "timm")
        builder.default("timm default", norm_eps=norm_eps_of(fields["pre_norm"]), position=position)
        _set_projection(state, builder, config)
        if not config.is_known:  # some timm models compute different outputs with the same tensors
            if fields["layer_scale"] is not None and fields["class_token"] and not fields["position"].prefix_entries:
                builder.assume(NOT_ROPE_APE, position=fields["position"])
            if not fields["qkv_bias"] and not fields["class_token"]:
                builder.assume(NOT_RPN, qkv_bias=False)
        if config.pretrained_cfg:
            labels = config.labels(fields["num_classes"])
            builder.set(preprocessing=config.preprocessing(fields["channels"]), labels=labels)
            if differences := config.preprocessing_differences:
                builder.assume("; ".join(differences), preprocessing=fields["preprocessing"])
        elif fields["pre_norm"]:
            clip = dataclasses.replace(options.CLIP, crop_fraction=0.9, geometry="timm")
            builder.assume_preprocessing("timm default for CLIP", clip)
        elif fields["distillation_token"]:
            builder.assume_preprocessing("DeiT default", options.IMAGENET)
        elif fields["layer_scale"] is not None:
            whole = dataclasses.replace(options.IMAGENET, crop_fraction=1.0, geometry="timm")
            builder.assume_preprocessing("timm default for models with LayerScale (DeiT-III and DINOv2)", whole)
        else:
            augreg = options.Preprocessing(crop_fraction=0.9, geometry="timm")
            builder.assume("timm default for AugReg models", preprocessing=augreg)

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if config.stem is not None:
            lines += missing_parts(config, "timm's hybrids", ["SwiGLU", "distillation_token"])
            if config.stem.stages not in HYBRIDS:
                lines.append(f"timm requires stem stages {' or '.join(map(str, HYBRIDS))}, got {config.stem.stages}")
            if config.stem.width != 64:
                lines.append(f"timm requires stem width 64, got {config.stem.width}")
        if not isinstance(config.head, options.LinearHead):
            lines.append(f"timm requires LinearHead, got {type(config.head).__name__}")
        if config.pre_norm == config.patch_bias:
            lines.append(f"timm requires patch_bias={not config.pre_norm} if pre_norm={config.pre_norm}")
        if config.pre_norm:
            lines += missing_parts(config, "timm's CLIP models", ["stem", "distillation_token", "SwiGLU"])
        if config.projection is not None and (config.num_classes or not config.pre_norm):
            lines.append("timm stores a projection as the head, and only in CLIP models without a classifier")
        if isinstance(config.pool, options.AttentionPool) and config.num_prefix_tokens:
            lines.append("AttentionPool in timm does not attend to prefix tokens")
        if isinstance(config.pool, options.AttentionPool) and isinstance(config.mlp, options.SwiGlu):
            lines.append("AttentionPool with SwiGLU is not supported by timm")
        if config.distillation_token and config.registers:
            lines.append("registers are not supported by timm's distilled models")
        if config.distillation_token:
            lines += missing_parts(config, "timm's distilled models", ["positions without the class token"])
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = numeric_differences(config, "timm", norm_eps_of(config.pre_norm), None if folder else self.gelu)
        if not folder and config.class_token and config.pool == options.GlobalAverage("before"):
            lines.append(
                "pooling averages the normalised patches in Vitreous, but timm uses the class token with these tensors"
            )
        if config.stem is not None and config.stem.numerics != "timm":
            lines.append(f"the ResNet stem uses the epsilons of {config.stem.numerics}, not those of timm")
        return lines

    def minor_differences(self, config: ViTConfig) -> list[str]:
        theirs = timm_preprocessing(config)
        return resize_differences(config, theirs, "timm") or margin_differences(config, theirs, "timm")

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if path.is_dir():
            (path / "config.json").write_text(json.dumps(timm_config(config), indent=2) + "\n", encoding="utf-8")


def norm_eps_of(pre_norm: bool) -> float:
    """Return the LayerNorm eps of timm's CLIP models (`pre_norm`) or of its other models."""
    return 1e-5 if pre_norm else Timm.norm_eps


def _set_projection(state: StateDict, builder: ConfigBuilder, config: TimmConfig) -> None:
    """Read the head of a CLIP model as its projection if the bias is 0, as it never is in a trained classifier."""
    classes = builder.fields["num_classes"]
    if not builder.fields["pre_norm"] or not classes or config.labels(classes):
        return
    if "head.bias" in state.tensors and not state.tensors["head.bias"].any():
        builder.default("the head of a CLIP model without a bias", projection=classes)
        builder.set(num_classes=0)


def _set_mlp(builder: ConfigBuilder, config: TimmConfig) -> None:
    if isinstance(builder.fields["mlp"], options.SwiGlu):
        if "mlp" not in builder.overrides:
            config.check_gate()
        if not config.is_known:
            builder.assume("as in DINOv2; gated MLPs with GELU have the same shapes", mlp=options.SwiGlu())
    elif config.is_known:
        builder.set(mlp=options.Gelu(config.approximation))
    else:
        other = (
            "models of OpenAI, MetaCLIP and DFN use 'quick'"
            if builder.fields["pre_norm"]
            else "some SigLIP models use 'tanh'"
        )
        builder.assume(f"timm default; {other}", mlp=options.Gelu("erf"))


def _set_pool(state: StateDict, builder: ConfigBuilder, config: TimmConfig) -> None:
    pool = _pool(state, config.pool, builder.fields["pool"])
    # Of the named models with a class token, only EVA has fc_norm. With any other name, the pooling was changed.
    changed = (
        pool == options.GlobalAverage("after") and builder.fields["class_token"] and "eva_" not in config.architecture
    )
    if config.pool or isinstance(pool, options.AttentionPool) or (config.is_known and not changed):
        builder.set(pool=pool)
    elif isinstance(pool, options.ClassToken):
        builder.assume("usual with a class token; global_pool may differ", pool=pool)
    else:
        builder.assume("usual with these norms; global_pool may also be 'token', 'avgmax' or 'max'", pool=pool)


def _pool(state: StateDict, stated: str | None, seen: options.PoolConfig) -> options.PoolConfig:
    """Return the pooling. Raise BadCheckpoint if `stated` does not match the pooling `seen` in the tensors."""
    if isinstance(seen, options.AttentionPool) and {"cls_token", "reg_token"} & set(state.tensors):
        raise BadCheckpoint(
            f"{state.path} has attention pooling that excludes the class token or registers, which is not supported"
        )
    if stated == "avg" and isinstance(seen, options.ClassToken):
        return options.GlobalAverage("before")
    if stated and stated not in POOLS:
        raise BadCheckpoint(f"{state.path}: global_pool must be one of {', '.join(POOLS)}, got {stated!r}")
    if stated and not isinstance(seen, POOLS[stated]):
        fitting = next(name for name, kind in POOLS.items() if isinstance(seen, kind))
        raise BadCheckpoint(f"{state.path}: global_pool must be {fitting!r} for these tensors, got {stated!r}")
    return seen


# ---- Unsupported parts -----------------------------------------------------------------------------------------------

# Unsupported parts by patterns of tensor names. The names are untrusted, so no pattern may backtrack.
PARTS = {
    r"relative_position_bias_table|rel_pos": "relative positions (rel_pos)",
    r"\.attn\.proj_[lw]\.": "talking heads (proj_l), as in CaiT",
    r"\.attn\.norm\.": "a norm on the attention output (attn.norm)",
    r"\.mlp\.norm\.": "a norm inside the MLP (mlp.norm)",
    r"\.attn\.lambda_": "differential attention (lambda_q1)",
    r"^patch_embed\.norm\.": "a norm on the patches (patch_embed.norm)",
}
MISSING = {
    "pos_embed": "relative or no positions instead of learned or rotary ones (pos_embed)",
    "blocks.0.norm1.bias": "norms without a bias, such as RMSNorm",
    "blocks.0.attn.proj.bias": "no attention output bias (attn.proj)",
}


def _check_parts(state: StateDict, architecture: str) -> None:
    """Raise BadCheckpoint if the model has unsupported parts. The error names the parts and the architecture."""
    names = state.tensors
    parts = [part for pattern, part in PARTS.items() if any(re.search(pattern, name) for name in names)]
    parts += [part for name, part in MISSING.items() if name not in names]
    if "norm_pre.weight" in names and "cls_token" not in names:
        parts.append("rotary positions after a norm of the tokens (norm_pre), as in Perception Encoder")
    if "norm.weight" not in names and "fc_norm.weight" not in names:
        parts.append("no norm after the last block (norm)")
    if has_norms_after(state):
        parts.append("norms after the layers instead of before them (norm1 follows attn), as in rpn models")
    if parts:
        known = f" ({architecture})" if architecture else ""
        raise BadCheckpoint(f"{state.path} is a timm model{known} with unsupported features: {'; '.join(parts)}")


def has_norms_after(state: StateDict) -> bool:
    """Return True if the tensors are ordered as in timm's ResPostBlock, not as in plain blocks or sorted by name."""
    parts = [name.split(".")[2] for name in state.tensors if name.startswith("blocks.0.") and name.count(".") > 2]
    first = [part for part in dict.fromkeys(parts) if part in ("attn", "norm1", "mlp", "norm2")]
    return first == ["attn", "norm1", "mlp", "norm2"]
