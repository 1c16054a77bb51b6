"""timm's checkpoints: a state dict, or a folder with the config.json that `timm.models.save_for_hf` writes."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.model import options
from vitreous.model.config import ViTConfig
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.timm.config import HYBRIDS, TimmConfig, as_timm_reads_it, is_architecture, timm_config
from vitreous.weights.formats.timm.layout import PATCH, TimmLayout, infer_timm
from vitreous.weights.formats.write_checks import (
    margin_differences,
    missing_parts,
    numeric_differences,
    resize_differences,
)
from vitreous.weights.io.errors import BadCheckpoint

POOLS: dict[str, type[options.PoolConfig]] = {
    "token": options.ClassToken,
    "avg": options.GlobalAverage,
    "map": options.AttentionPool,
}


class Timm(TimmLayout):
    name = "timm"
    title = "timm"
    renames = ((r"\.gamma_([12])$", r".ls\1.gamma"),)  # DeiT-III's own files
    missing = ("other positions", "patch_norm", "head_dim", "qk_scale", "partial patches")

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
        builder.default("timm's", norm_eps=self.norm_eps, position=position)
        if not config.is_known:
            _assume_plain(builder)
        if config.pretrained_cfg:
            labels = config.labels(fields["num_classes"])
            builder.set(preprocessing=config.preprocessing(fields["channels"]), labels=labels)
            if differences := config.preprocessing_differences:
                builder.assume("; ".join(differences), preprocessing=fields["preprocessing"])
        elif fields["distillation_token"]:
            builder.assume_preprocessing("DeiT's", options.IMAGENET)
        elif fields["layer_scale"] is not None:
            whole = dataclasses.replace(options.IMAGENET, crop_fraction=1.0, geometry="timm")
            builder.assume_preprocessing("that of timm's models with LayerScale: DeiT-III and DINOv2", whole)
        else:
            augreg = options.Preprocessing(crop_fraction=0.9, geometry="timm")
            builder.assume("that of timm's AugReg models", preprocessing=augreg)

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config) + _stem_problems(config)
        if not isinstance(config.head, options.LinearHead):
            lines.append(f"head {type(config.head).__name__}: timm's heads are one linear layer")
        if isinstance(config.pool, options.AttentionPool) and config.num_prefix_tokens:
            lines.append("pool AttentionPool: timm's does not attend to the tokens before the patches")
        if isinstance(config.pool, options.AttentionPool) and isinstance(config.mlp, options.SwiGlu):
            lines.append("pool AttentionPool with SwiGLU: timm's has GELU")
        if config.distillation_token and config.registers:
            lines.append("registers: timm's distilled models have none")
        if config.distillation_token:
            lines += missing_parts(config, "timm's distilled models", ["positions without the class token"])
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = numeric_differences(config, "timm", self.norm_eps, None if folder else self.gelu)
        if not folder and config.class_token and config.pool == options.GlobalAverage("before"):
            lines.append("the mean of normed patches is pooled, and with these tensors timm pools the class token")
        if config.stem is not None and config.stem.numerics != "timm":
            lines.append("the ResNet's norms have Google's eps, not timm's")
        return lines

    def minor_differences(self, config: ViTConfig) -> list[str]:
        theirs = as_timm_reads_it(config)
        return resize_differences(config, theirs, "timm") or margin_differences(config, theirs, "timm")

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if path.is_dir():
            (path / "config.json").write_text(json.dumps(timm_config(config), indent=2) + "\n", encoding="utf-8")


def _assume_plain(builder: ConfigBuilder) -> None:
    """Assume that this is not one of timm's models that compute differently with the same tensors."""
    fields = builder.fields
    if fields["layer_scale"] is not None and fields["class_token"] and not fields["position"].prefix_entries:
        reason = "as in DeiT-III; rope_ape models have the same tensors, rotate queries and keys, and are not supported"
        builder.assume(reason, position=fields["position"])
    if not fields["qkv_bias"] and not fields["class_token"]:
        reason = (
            "and norms before the layers; rpn models have the same tensors, norms after them, and are not supported"
        )
        builder.assume(reason, qkv_bias=False)


def _set_mlp(builder: ConfigBuilder, config: TimmConfig) -> None:
    if isinstance(builder.fields["mlp"], options.SwiGlu):
        if "mlp" not in builder.overrides:
            config.check_gate()
        if not config.is_known:
            builder.assume("as in DINOv2; gated MLPs with GELU have the same shapes", mlp=options.SwiGlu())
    elif config.is_known:
        builder.set(mlp=options.Gelu(config.approximation))
    else:
        builder.assume("timm's default; some of SigLIP's models have 'tanh'", mlp=options.Gelu("erf"))


def _set_pool(state: StateDict, builder: ConfigBuilder, config: TimmConfig) -> None:
    pool = _pool(state, config.pool, builder.fields["pool"])
    # Of the named models with a class token, only EVA has fc_norm: in others, the pooling was changed.
    changed = (
        pool == options.GlobalAverage("after") and builder.fields["class_token"] and "eva_" not in config.architecture
    )
    if config.pool or isinstance(pool, options.AttentionPool) or (config.is_known and not changed):
        builder.set(pool=pool)
    elif isinstance(pool, options.ClassToken):
        builder.assume("usual with a class token; global_pool may be another", pool=pool)
    else:
        builder.assume("usual with these norms; global_pool token, avgmax and max may have them too", pool=pool)


def _pool(state: StateDict, stated: str | None, seen: options.PoolConfig) -> options.PoolConfig:
    """The stated pooling if it fits the tensors: with a final norm, a class token or a mean may be pooled."""
    if isinstance(seen, options.AttentionPool) and {"cls_token", "reg_token"} & set(state.tensors):
        raise BadCheckpoint(
            f"{state.path} pools by attention without the class token or registers, which is not supported"
        )
    if stated == "avg" and isinstance(seen, options.ClassToken):
        return options.GlobalAverage("before")
    if stated and stated not in POOLS:
        raise BadCheckpoint(f"{state.path} has global_pool {stated!r}, but must have one of {', '.join(POOLS)}")
    if stated and not isinstance(seen, POOLS[stated]):
        fitting = next(name for name, kind in POOLS.items() if isinstance(seen, kind))
        raise BadCheckpoint(
            f"{state.path} has global_pool {stated!r}, but tensors of {type(seen).__name__}: must be {fitting!r}"
        )
    return seen


def _stem_problems(config: ViTConfig) -> list[str]:
    if config.stem is None:
        return []
    lines = missing_parts(config, "timm's hybrid", ["SwiGLU", "distillation_token"])
    if config.stem.stages not in HYBRIDS:
        lines.append(f"stem with stages {config.stem.stages}: timm has {', '.join(map(str, HYBRIDS))}")
    if config.stem.width != 64:
        lines.append(f"stem {config.stem.width} wide: timm's is 64")
    return lines


# ---- Unsupported parts -----------------------------------------------------------------------------------------------

# By patterns of tensor names, which are untrusted: no pattern may backtrack.
PARTS = {
    r"^norm_pre\.": "a norm before the first block (norm_pre), as CLIP has",
    r"\.attn\.[qv]_bias$": "a bias on queries and values, but not on keys (q_bias), as BEiT and EVA have",
    r"relative_position_bias_table|rel_pos": "relative positions (rel_pos)",
    r"\.attn\.proj_[lw]\.": "mixed heads (proj_l), as CaiT has",
    r"\.attn\.norm\.": "a norm on the output of attention (attn.norm)",
    r"\.mlp\.norm\.": "a norm inside the MLP (mlp.norm)",
    r"\.mlp\.fc1_[gx]\.": "a separate gate projection (fc1_g), as EVA and DINOv3 have",
    r"\.attn\.lambda_": "differential attention (lambda_q1)",
    r"^rope\.": "rotated queries and keys beside positions (rope)",
    r"^patch_embed\.norm\.": "a norm on the patches (patch_embed.norm)",
}
MISSING = {
    "pos_embed": "no learned positions (pos_embed): rotated queries and keys, as DINOv3's, relative ones, or none",
    "blocks.0.norm1.bias": "norms without a bias, as RMSNorm",
    "blocks.0.attn.proj.bias": "no bias on the output of attention (attn.proj)",
}


def _check_parts(state: StateDict, architecture: str) -> None:
    """Reject a model with unsupported parts by their names, and by the architecture if it is known."""
    names = state.tensors
    parts = [part for pattern, part in PARTS.items() if any(re.search(pattern, name) for name in names)]
    parts += [part for name, part in MISSING.items() if name not in names]
    if "norm.weight" not in names and "fc_norm.weight" not in names:
        parts.append("no norm after the last block (norm)")
    if _has_norms_after(state):
        parts.append("norms after the layers instead of before them (norm1 follows attn), as rpn models have")
    if parts:
        known = f" ({architecture})" if architecture else ""
        raise BadCheckpoint(
            f"{state.path} is a model of timm's{known} that has no counterpart here: {'; '.join(parts)}"
        )


def _has_norms_after(state: StateDict) -> bool:
    """True if a block's tensors are in the order of timm's ResPostBlock: attn, norm1, mlp, norm2.

    A plain block has norm1 first; in the sorted names of safetensors, norm1 comes after mlp.
    """
    parts = [name.split(".")[2] for name in state.tensors if name.startswith("blocks.0.") and name.count(".") > 2]
    first = [part for part in dict.fromkeys(parts) if part in ("attn", "norm1", "mlp", "norm2")]
    return first == ["attn", "norm1", "mlp", "norm2"]
