"""Checkpoints of OpenAI's CLIP and of OpenCLIP, whose tensors are under `visual.`, usually beside a text tower.

Names follow openai/CLIP (`clip/model.py`) and mlfoundations/open_clip (`transformer.py`, `timm_model.py`). An OpenCLIP
folder also has an open_clip_config.json, which states the activation, the heads and the preprocessing.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.model import options
from vitreous.model.config import ViTConfig
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.huggingface.config import JsonFields
from vitreous.weights.formats.mapping import (
    TRANSPOSE,
    Row,
    packed_rows,
    per_layer,
    position_table,
    reshape,
    row,
    rows,
)
from vitreous.weights.formats.timm.format import Timm
from vitreous.weights.io.containers import OPEN_CLIP_CONFIG
from vitreous.weights.io.errors import BadCheckpoint

ROOT = "visual."
BLOCK = "transformer.resblocks.{i}"
OPENAI = {"input_resolution", "context_length", "vocab_size"}  # numbers in OpenAI's files, but in no others
# `Preprocessing.fit` and timm's `crop_mode` for each `resize_mode` of OpenCLIP.
FITS: dict[str, tuple[Literal["crop", "squash", "pad"], str]] = {
    "shortest": ("crop", "center"),
    "squash": ("squash", "squash"),
    "longest": ("pad", "border"),
}


class Clip(Format):
    name = "clip"
    title = "CLIP"
    signatures = (("conv1.weight", "class_embedding", "transformer.resblocks.0.attn.in_proj_weight"),)
    ignored = ("proj",)  # with projection=None
    file_name = "open_clip_model.safetensors"
    supports = ("pre_norm", "patches without a bias", "truncate", "projection")
    missing = (
        *("stem", "patch_norm", "pad", "qk_norm", "other positions", "positions without the class token", "head_dim"),
        *("qk_scale", "models without qkv_bias", "SwiGLU", "distillation_token", "registers"),
        *("models without a class token", "classifier", "head of two layers"),
    )
    norm_eps = 1e-5

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        model, vision = _fields(state, "model_cfg"), _fields(state, "model_cfg", "vision_cfg")
        openai = not OPENAI.isdisjoint(state.ignored)
        width, channels, *patch = state.shape("conv1.weight", 4)
        first = BLOCK.replace("{i}", "0")
        builder.set(
            width=width,
            channels=channels,
            patch_size=(patch[0], patch[1]),
            patch_bias=False,
            pre_norm="ln_pre.weight" in state.tensors,
            depth=state.count(f"{BLOCK}.ln_1.weight"),
            mlp_width=state.shape(f"{first}.mlp.c_fc.weight", 2)[0],
            layer_scale=1e-5 if f"{first}.ls_1.gamma" in state.tensors else None,
            projection=state.shape("proj", 2)[1] if "proj" in state.tensors else None,
            position=options.Learned1d(interpolation="timm"),
            num_classes=0,
        )
        if state.config:
            builder.set(num_heads=width // max(vision.get(int, "head_width", 64), 1))
        else:
            builder.infer_heads(width, published=openai)
        native = vision.size("image_size", (224, 224)) if state.config else None
        builder.infer_grid(state.shape("positional_embedding", 2)[0], (1,), (patch[0], patch[1]), image_size, native)
        eps = _fields(state, "model_cfg", "vision_cfg", "norm_kwargs").get(float, "eps", self.norm_eps)
        builder.default("default of CLIP", norm_eps=eps)
        builder.set(pool=_pool(vision))
        approximate = _fields(state, "model_cfg", "vision_cfg", "act_kwargs").get(str, "approximate", "none")
        if openai or model.get(bool, "quick_gelu", False):
            builder.set(mlp=options.Gelu("quick"))
        elif state.config:
            builder.set(mlp=options.Gelu("tanh" if approximate == "tanh" else "erf"))
        else:
            reason = "OpenCLIP default; models of OpenAI, MetaCLIP and DFN use 'quick'"
            builder.assume(reason, mlp=options.Gelu("erf"))
        if "preprocess_cfg" in state.config:
            builder.set(preprocessing=_preprocessing(_fields(state, "preprocess_cfg")))
        else:
            certain = openai or bool(state.config)
            builder.assume_preprocessing("default of OpenAI and OpenCLIP", options.CLIP, certain)

    def table(self, config: ViTConfig) -> list[Row]:
        block = [
            *rows("encoder.blocks.{i}.attention_norm", f"{BLOCK}.ln_1"),
            *_packed("encoder.blocks.{i}.attention", f"{BLOCK}.attn"),
            *rows("encoder.blocks.{i}.attention.output", f"{BLOCK}.attn.out_proj"),
            *rows("encoder.blocks.{i}.mlp_norm", f"{BLOCK}.ln_2"),
            *rows("encoder.blocks.{i}.mlp.up", f"{BLOCK}.mlp.c_fc"),
            *rows("encoder.blocks.{i}.mlp.down", f"{BLOCK}.mlp.c_proj"),
        ]
        if config.layer_scale is not None:
            block.append(row("encoder.blocks.{i}.attention_scale.factor", f"{BLOCK}.ls_1.gamma"))
            block.append(row("encoder.blocks.{i}.mlp_scale.factor", f"{BLOCK}.ls_2.gamma"))
        tables = ("position.prefix", "position.table")
        averaged = config.pool == options.GlobalAverage("after")
        return [
            row("patches.projection.weight", "conv1.weight"),
            row("prefix.class_token", "class_embedding", reshape((1, 1, -1), (-1,))),
            row(tables, "positional_embedding", position_table(1, config.grid, batch=False)),
            *(rows("pre_norm", "ln_pre") if config.pre_norm else []),
            *per_layer(block, config.depth),
            *rows("pool.norm" if averaged else "norm", "ln_post"),
            *([row("projection.weight", "proj", TRANSPOSE)] if config.projection is not None else []),
        ]

    # ---- Writing ----

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if config.patch_bias:
            lines.append("CLIP requires patch_bias=False")
        if config.projection is None:
            lines.append("CLIP requires a projection")
        if isinstance(config.pool, options.AttentionPool):
            lines.append(f"CLIP requires ClassToken() or GlobalAverage(...) pooling, got {config.pool}")
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        if folder:
            return []
        lines = super().differences(config)
        if not isinstance(config.pool, options.ClassToken):
            lines.append(f"pooling is {config.pool} in Vitreous and ClassToken() in CLIP")
        return lines

    def packed(self, tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
        return {f"{ROOT}{name}": tensor for name, tensor in tensors.items()}

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if path.is_dir():
            (path / OPEN_CLIP_CONFIG).write_text(
                json.dumps(_open_clip_config(config), indent=2) + "\n", encoding="utf-8"
            )


class ClipTrunk(Timm):
    """OpenCLIP's towers that are timm models (SigLIP and others), with an optional linear projection."""

    name = "clip"
    title = "OpenCLIP"
    read_only = True
    signatures = (("trunk.patch_embed.proj.weight", "trunk.blocks.0.attn.qkv.weight"),)

    def normalise(self, state: StateDict) -> StateDict:
        tensors = {name.removeprefix("trunk."): x for name, x in state.tensors.items() if name.startswith("trunk.")}
        outside = {name: x for name, x in state.tensors.items() if not name.startswith("trunk.")}
        if (weight := outside.pop("head.proj.weight", None)) is not None:
            bias = outside.pop("head.proj.bias", torch.zeros(len(weight), dtype=weight.dtype))
            tensors |= {"head.weight": weight, "head.bias": bias}
        if outside:
            raise BadCheckpoint(
                f"{state.path} has an unsupported projection after the vision tower ({next(iter(outside))}); only a "
                "linear layer is supported"
            )
        return super().normalise(dataclasses.replace(state, tensors=tensors, config=_timm_config(state)))

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        super().infer(state, builder, image_size)
        if embedding := builder.fields["num_classes"]:
            if state.tensors["head.bias"].any():
                raise BadCheckpoint(f"{state.path} has a projection with a bias (head.proj), which is not supported")
            builder.set(projection=embedding, num_classes=0)


def _packed(ours: str, theirs: str) -> list[Row]:
    """Return the rows of torch's MultiheadAttention, whose packed tensors are in_proj_weight and in_proj_bias."""
    packed = packed_rows([f"{ours}.{part}" for part in "qkv"], f"{theirs}.in_proj")
    return [entry._replace(theirs=(entry.theirs[0].replace("in_proj.", "in_proj_"),)) for entry in packed]


# ---- open_clip_config.json -------------------------------------------------------------------------------------------


def _fields(state: StateDict, *keys: str) -> JsonFields:
    """Return a nested object of open_clip_config.json, which is empty if it is missing or null."""
    found: Any = state.config
    for key in keys:
        found = found.get(key) or {}
        if not isinstance(found, Mapping):
            raise BadCheckpoint(f"{state.path}: {key} in {OPEN_CLIP_CONFIG} must be an object, got {found!r:.80}")
    return JsonFields(state.path, found)


def _pool(vision: JsonFields) -> options.PoolConfig:
    kind = vision.get(str, "pool_type", "tok")
    if kind not in ("tok", "avg"):
        vision.fail("pool_type", kind, "'tok' or 'avg'")
    if kind == "tok":
        return options.ClassToken()
    return options.GlobalAverage("after" if vision.get(bool, "final_ln_after_pool", False) else "before")


def _preprocessing(fields: JsonFields) -> options.Preprocessing:
    mode, interpolation = fields.get(str, "resize_mode", "shortest"), fields.get(str, "interpolation", "bicubic")
    if mode not in FITS:
        fields.fail("resize_mode", mode, f"one of {', '.join(FITS)}")
    mean, std = fields.numbers("mean", options.CLIP.mean), fields.numbers("std", options.CLIP.std)
    return options.Preprocessing(
        mean=mean[:1] if len(set(mean)) == 1 else mean,
        std=std[:1] if len(set(std)) == 1 else std,
        fit=FITS[mode][0],
        crop_fraction=1.0,
        interpolation="bilinear" if interpolation == "bilinear" else "bicubic",
    )


def _timm_config(state: StateDict) -> dict[str, Any]:
    """Return timm's config.json for a tower that is a timm model, or {} if its architecture is unknown."""
    vision, shown = _fields(state, "model_cfg", "vision_cfg"), _fields(state, "preprocess_cfg")
    if not (name := vision.get(str, "timm_model_name", "")):
        return {}
    pool = vision.get(str, "timm_pool", "")
    size = vision.size("image_size", (224, 224)) or (224, 224)
    how = _preprocessing(shown)
    return {
        "architecture": name,
        "model_args": {"global_pool": pool} if pool else {},
        "pretrained_cfg": {
            "input_size": [3, *size],
            "mean": list(how.mean),
            "std": list(how.std),
            "interpolation": how.interpolation,
            "crop_pct": 1.0,
            "crop_mode": FITS[shown.get(str, "resize_mode", "shortest")][1],
        },
    }


def _open_clip_config(config: ViTConfig) -> dict[str, Any]:
    """Return the fields of the vision tower and the preprocessing in open_clip_config.json."""
    how, gelu = config.preprocessing, config.mlp.approximation if isinstance(config.mlp, options.Gelu) else "erf"
    sizes = {"image_size": config.image_size, "patch_size": config.patch_size}
    vision: dict[str, Any] = {
        **{key: sides[0] if len(set(sides)) == 1 else list(sides) for key, sides in sizes.items()},
        "layers": config.depth,
        "width": config.width,
        "head_width": config.head_width,
        "mlp_ratio": (config.mlp_width + 0.5) / config.width,  # OpenCLIP truncates mlp_ratio * width
        "norm_kwargs": {"eps": config.norm_eps},
    }
    if config.layer_scale is not None:
        vision["ls_init_value"] = config.layer_scale
    if not config.pre_norm:
        vision["no_ln_pre"] = True
    if isinstance(config.pool, options.GlobalAverage):
        vision |= {"pool_type": "avg", "final_ln_after_pool": config.pool.norm == "after"}
    if gelu == "tanh":
        vision["act_kwargs"] = {"approximate": "tanh"}
    return {
        "model_cfg": {"embed_dim": config.projection, "quick_gelu": gelu == "quick", "vision_cfg": vision},
        "preprocess_cfg": {
            "size": list(config.image_size),
            "mean": list(how.mean) * (config.channels if len(how.mean) == 1 else 1),
            "std": list(how.std) * (config.channels if len(how.std) == 1 else 1),
            "interpolation": how.interpolation,
            "resize_mode": next(mode for mode, (fit, _) in FITS.items() if how.fit.startswith(fit)),
        },
    }
