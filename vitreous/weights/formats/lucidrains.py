"""lucidrains' vit-pytorch: state dicts of `ViT` (any version since 2021) and `SimpleViT`.

Names and numerics follow lucidrains/vit-pytorch (`vit.py`, `simple_vit.py`). The library flattens patches as (row,
column, channel), but Vitreous uses (channel, row, column). Files are written for the current `ViT`, which has norms
around the patch projection and no qkv bias, so few models of other libraries can be converted to it.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.common.checks import as_size
from vitreous.model.config import ViTConfig
from vitreous.model.options import ClassToken, Gelu, GlobalAverage, Learned1d, Preprocessing, SinCos2d
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict, how_to_set
from vitreous.weights.formats.mapping import (
    Conversion,
    Row,
    per_layer,
    position_table,
    renamed,
    reshape,
    row,
    rows,
    single,
    split,
)
from vitreous.weights.io.containers import TORCH_SUFFIXES
from vitreous.weights.io.errors import BadCheckpoint

LAYER = "transformer.layers.{i}"


class Lucidrains(Format):
    name = "lucidrains"
    title = "vit-pytorch"
    signatures = (("to_patch_embedding.1.weight",),)
    ignored = ("cls_token",)  # empty with mean pooling
    suffixes = TORCH_SUFFIXES
    missing = (
        *("stem", "distillation_token", "registers", "qk_norm", "layer_scale", "SwiGLU", "head of two layers"),
        *("partial patches", "other positions", "positions without the class token", "qk_scale"),
    )
    norm_eps = 1e-5

    def confirms(self, state: StateDict) -> bool:
        return any(name.startswith("transformer.layers.0.0.") for name in state.tensors)

    def normalise(self, state: StateDict) -> StateDict:
        return dataclasses.replace(state, tensors=current_names(state.tensors))

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        patch_norm = "to_patch_embedding.2.weight" in state.tensors
        width, pixels = state.shape(f"to_patch_embedding.{2 if patch_norm else 1}.weight", 2)
        builder.set(
            width=width,
            depth=state.count(f"{LAYER}.0.norm.weight"),
            patch_method="linear",
            patch_norm=patch_norm,
            qkv_bias=False,
            mlp_width=state.shape("transformer.layers.0.1.net.1.weight", 2)[0],
            num_classes=state.shape("mlp_head.weight", 2)[0] if "mlp_head.weight" in state.tensors else 0,
        )
        _set_patch(builder, pixels)
        _set_heads(state, builder, width)
        _set_tokens(state, builder, image_size)
        builder.default("vit-pytorch default", norm_eps=self.norm_eps, mlp=Gelu(self.gelu))
        builder.assume("vit-pytorch defines no preprocessing", preprocessing=Preprocessing(mean=(0.0,), std=(1.0,)))

    def table(self, config: ViTConfig) -> list[Row]:
        table = _patch_rows(config)
        if isinstance(config.position, Learned1d):
            ours: tuple[str, ...] = ("position.table",)
            if config.class_token:
                ours, width = ("position.prefix", *ours), config.width
                table.append(row("prefix.class_token", "cls_token", reshape((1, 1, width), (1, width))))
            table.append(row(ours, "pos_embedding", position_table(int(config.class_token), config.grid, batch=False)))
        table += per_layer(_block_rows(config), config.depth) + rows("norm", "transformer.norm")
        return table + (rows("head", "mlp_head") if config.num_classes else [])

    def unsupported(self, config: ViTConfig) -> list[str]:
        system, lines = self.title, super().unsupported(config)
        if not config.patch_norm:
            lines.append(f"{system} requires patch_norm")
        if config.qkv_bias:
            lines.append(f"qkv_bias is not supported by {system}")
        if config.pool != (expected := ClassToken() if config.class_token else GlobalAverage("before")):
            token = "with" if config.class_token else "without"
            lines.append(f"{system} requires {expected} pooling in models {token} a class token, got {config.pool}")
        if _has_no_output(config):
            lines.append(f"{system} has no output projection if a single head is as wide as the model")
        return lines

    def extra_tensors(self, config: ViTConfig) -> dict[str, Tensor]:
        return {} if config.class_token else {"cls_token": torch.zeros(0, config.width)}


def current_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors to the names of the current `ViT`.

    Until August 2023, norms were in wrappers and the final norm was in the head. Until 2025, tokens had a batch
    dimension. `SimpleViT` has no dropout layers and no attention output bias; the bias is set to zeros.
    """
    names = renamed(tensors, [(r"(\.fn)+\.", ".")])
    if "transformer.layers.0.1.norm.weight" in names:
        changes = [(r"\.1\.net\.3\.", ".1.net.4."), (r"\.1\.net\.0\.", ".1.net.1."), (r"\.1\.norm\.", ".1.net.0.")]
        names = renamed(names, changes)
    names = renamed(names, [(r"^mlp_head\.0\.", "transformer.norm."), (r"^mlp_head\.1\.", "mlp_head.")])
    if "linear_head.weight" in names:
        changes = [(r"^linear_head\.", "mlp_head."), (r"\.1\.net\.3\.", ".1.net.4."), (r"\.to_out\.", ".to_out.0.")]
        names = renamed(names, changes)
        for name in [name for name in names if name.endswith(".to_out.0.weight")]:
            names[name.replace("weight", "bias")] = names[name].new_zeros(names[name].shape[:1])
    for name in ("cls_token", "pos_embedding"):
        if name in names and names[name].ndim == 3 and names[name].shape[0] == 1:
            names[name] = names[name][0]
    return names


# ---- The table -------------------------------------------------------------------------------------------------------


def _patch_rows(config: ViTConfig) -> list[Row]:
    (ph, pw), c, d = config.patch_size, config.channels, config.width
    filters = single(
        lambda x: x.reshape(d, ph, pw, c).permute(0, 3, 1, 2).contiguous(),
        lambda x: x.permute(0, 2, 3, 1).reshape(d, ph * pw * c),
    )
    pixels = single(
        lambda x: x.reshape(ph, pw, c).permute(2, 0, 1).flatten(),
        lambda x: x.reshape(c, ph, pw).permute(1, 2, 0).flatten(),
    )
    if not config.patch_norm:  # before February 2023
        return rows("patches.projection", "to_patch_embedding.1", filters)
    return [
        *(row(f"patches.pixel_norm.{part}", f"to_patch_embedding.1.{part}", pixels) for part in ("weight", "bias")),
        *rows("patches.projection", "to_patch_embedding.2", filters),
        *rows("patches.norm", "to_patch_embedding.3"),
    ]


def _block_rows(config: ViTConfig) -> list[Row]:
    ours, theirs = "encoder.blocks.{i}", LAYER
    attention, packed = f"{ours}.attention", f"{theirs}.0.to_qkv.weight"
    table = rows(f"{ours}.attention_norm", f"{theirs}.0.norm")
    parts = tuple(f"{attention}.{part}.weight" for part in "qkv")
    if _has_no_output(config):
        parts += (f"{attention}.output.weight", f"{attention}.output.bias")
        table.append(row(parts, packed, Conversion(_with_identity, lambda ours: split(3).write(ours[:3]))))
    else:
        table += [row(parts, packed, split(3)), *rows(f"{attention}.output", f"{theirs}.0.to_out.0")]
    table += rows(f"{ours}.mlp_norm", f"{theirs}.1.net.0")
    return table + rows(f"{ours}.mlp.up", f"{theirs}.1.net.1") + rows(f"{ours}.mlp.down", f"{theirs}.1.net.4")


def _has_no_output(config: ViTConfig) -> bool:
    """Return True for a single head as wide as the model, for which vit-pytorch has no output projection."""
    return config.num_heads == 1 and config.head_width == config.width


def _with_identity(theirs: list[Tensor]) -> list[Tensor]:
    packed, width = theirs[0], theirs[0].shape[1]
    return [*split(3).read(theirs), torch.eye(width, dtype=packed.dtype), packed.new_zeros(width)]


# ---- Reading the config ---------------------------------------------------------------------------------------------


def _set_patch(builder: ConfigBuilder, pixels: int) -> None:
    """Set channels and patch size. Unless overridden, patches are square and have three channels."""
    channels = builder.overrides.get("channels", 3)
    side = math.isqrt(pixels // channels) if isinstance(channels, int) and channels > 0 else 0
    if "patch_size" not in builder.overrides and (not side or channels * side**2 != pixels):
        raise BadCheckpoint(
            f"{builder.path} has patches of {pixels} values, which do not form a square with {channels} channels; "
            f"{how_to_set('channels', 'patch_size')}"
        )
    builder.assume(f"square patches with {channels} channels are usual", channels=channels, patch_size=(side, side))


def _set_heads(state: StateDict, builder: ConfigBuilder, width: int) -> None:
    inner = state.shape("transformer.layers.0.0.to_qkv.weight", 2)[0] // 3
    if "transformer.layers.0.0.to_out.0.weight" not in state.tensors:
        builder.set(num_heads=1)
        return
    heads = builder.overrides.get("num_heads", inner // 64)
    if "num_heads" not in builder.overrides and inner % 64:
        raise BadCheckpoint(
            f"{state.path} does not specify the number of heads, and their total width ({inner}) is not a multiple of "
            f"64, the default head width; {how_to_set('num_heads')}"
        )
    builder.assume("heads are 64 wide, the vit-pytorch default", num_heads=heads)
    if inner != width and isinstance(heads, int) and heads > 0:
        builder.set(head_dim=inner // heads)


def _set_tokens(state: StateDict, builder: ConfigBuilder, image_size: Any) -> None:
    patch = builder.overrides.get("patch_size", builder.fields["patch_size"])
    if "pos_embedding" not in state.tensors:
        builder.set(class_token=False, pool=GlobalAverage("before"), position=SinCos2d("big_vision"))
        builder.default("positions are computed for any size", image_size=as_size(image_size or 224))
        return
    tokens = state.shape("cls_token")  # [0, width] with mean pooling
    if len(tokens) != 2:
        raise BadCheckpoint(f"{state.path}: cls_token must have 2 dimensions, got shape {list(tokens)}")
    has_class = tokens[0] > 0
    builder.set(class_token=has_class)
    if has_class:
        # Until November 2025, mean pooling included the class token. Vitreous does not support this.
        pool = builder.overrides.get("pool", ClassToken())
        if pool != ClassToken():
            raise BadCheckpoint(f"{state.path} has a class token, so pool must be ClassToken(), got {pool}")
        builder.assume("vit-pytorch default", pool=ClassToken())
    else:
        builder.set(pool=GlobalAverage("before"))
    builder.infer_grid(state.shape("pos_embedding", 2)[0], (int(has_class),), patch, image_size)
    builder.default("resampled as in Google's code, because vit-pytorch cannot resample", position=Learned1d())
