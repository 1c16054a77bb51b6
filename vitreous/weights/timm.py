"""timm's own checkpoints: a state dict, or a folder with the config.json that timm's hub has.."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    IMAGENET,
    AttentionPool,
    Gelu,
    GlobalAverage,
    Learned1d,
    LinearHead,
    Preprocessing,
    SwiGlu,
)
from vitreous.weights.containers import write_file
from vitreous.weights.format import Format, Found, Inference
from vitreous.weights.mapping import Row, renamed
from vitreous.weights.tensors import write_tensors
from vitreous.weights.timm_layout import infer_timm, plain_obstacles, timm_table

# What config.json must call a model for timm to build it; everything else goes into its `model_args`.
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


class Timm(Format):
    name = "timm"
    title = "timm"

    def recognises(self, found: Found) -> bool:
        return "patch_embed.proj.weight" in found.tensors and "blocks.0.attn.qkv.weight" in found.tensors

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        args = found.config.get("model_args") or {}
        cfg = found.config.get("pretrained_cfg") or {}
        size = args.get("img_size") or cfg.get("input_size", [None, None, None])[1:]
        native = tuple(size) if isinstance(size, list) and None not in size and size else size or None
        if isinstance(args.get("num_heads"), int):
            guess.overrides = {"num_heads": args["num_heads"], **guess.overrides}
        infer_timm(found, guess, guess.overrides.get("image_size") or native or image_size)
        if isinstance(guess.fields["mlp"], Gelu):
            tanh = args.get("act_layer") in ("gelu_tanh", "gelu_pytorch_tanh")
            guess.set(mlp=Gelu("tanh" if tanh else "erf"))
        own = guess.fields["position"].prefix_entries
        guess.assume("timm's", norm_eps=1e-6, position=Learned1d(own, "timm"))
        if "num_heads" in args:
            guess.set(num_heads=args["num_heads"])
        if cfg:
            guess.set(preprocessing=read_preprocessing(cfg), labels=_labels(found.config, guess.fields["num_classes"]))
        elif guess.fields["distillation_token"] or _deit3(found):
            guess.assume("DeiT's", preprocessing=IMAGENET)
        else:
            guess.assume("that of timm's AugReg models", preprocessing=Preprocessing(crop_fraction=0.9))

    def normalise(self, found: Found) -> Found:
        """DeiT-III's own files call LayerScale gamma_1 and gamma_2."""
        return found if not _deit3(found) else _rename_scales(found)

    def table(self, config: ViTConfig) -> list[Row]:
        return timm_table(config)

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = plain_obstacles(config, "timm")
        if not isinstance(config.head, LinearHead):
            lines.append(f"head {type(config.head).__name__}: timm's heads are one linear layer")
        if config.stem is not None and config.stem.stages not in HYBRIDS:
            lines.append(f"stem with stages {config.stem.stages}: timm has {', '.join(map(str, HYBRIDS))}")
        return lines

    def losses(self, config: ViTConfig) -> list[str]:
        lines = []
        if config.norm_eps != 1e-6:
            lines.append(f"LayerNorm's eps is {config.norm_eps:g}, and timm's is 1e-6")
        if config.stem is not None and config.stem.numerics != "timm":
            lines.append("the ResNet divides by deviations with Google's small numbers, and timm with its own")
        return lines

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        if path.is_dir():
            write_tensors(tensors, path / "model.safetensors")
            (path / "config.json").write_text(json.dumps(timm_config(config), indent=2) + "\n", encoding="utf-8")
        else:
            write_file(tensors, path)


def timm_config(config: ViTConfig) -> dict[str, Any]:
    """The config.json with which `timm.create_model("local-dir:FOLDER")` builds the model."""
    own = isinstance(config.position, Learned1d) and config.position.prefix_entries
    gated = isinstance(config.mlp, SwiGlu)
    args: dict[str, Any] = {
        "img_size": list(config.image_size),
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": ((2 if gated else 1) * config.mlp_width + 0.5) / config.width,  # timm cuts off the fraction
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
        "in_chans": config.channels,
    }
    if not config.distillation_token:
        args |= {"class_token": config.class_token, "reg_tokens": config.registers, "no_embed_class": not own}
        args["global_pool"], args["fc_norm"] = _pool_names(config)
    if isinstance(config.mlp, Gelu) and config.mlp.approximation == "tanh":
        args["act_layer"] = "gelu_tanh"
    architecture = "vit_base_patch16_224"
    if config.distillation_token:
        architecture = "deit_base_distilled_patch16_224"
    elif gated:
        architecture = "vit_giant_patch14_dinov2"
    if config.stem is not None:
        architecture = HYBRIDS[config.stem.stages]
    if config.stem is None or not config.stem.stages:
        args["patch_size"] = config.patch_size[0] if len(set(config.patch_size)) == 1 else list(config.patch_size)
    document = {
        "architecture": architecture,
        "num_classes": config.num_classes,
        "num_features": config.width,
        "pretrained_cfg": _pretrained_cfg(config),
        "model_args": args,
    }
    if config.labels:
        document["label_names"] = list(config.labels)
    return document


def _pool_names(config: ViTConfig) -> tuple[str, bool]:
    match config.pool:
        case GlobalAverage(norm):
            return "avg", norm == "after"
        case AttentionPool():
            return "map", False
        case _:
            return "token", False


def _pretrained_cfg(config: ViTConfig) -> dict[str, Any]:
    shown = config.preprocessing
    return {
        "num_classes": config.num_classes,
        "input_size": [config.channels, *config.image_size],
        "fixed_input_size": True,
        "interpolation": shown.interpolation,
        "crop_pct": shown.crop_fraction,
        "crop_mode": "squash" if shown.fit == "squash" else "center",
        "mean": list(shown.mean) * (config.channels if len(shown.mean) == 1 else 1),
        "std": list(shown.std) * (config.channels if len(shown.std) == 1 else 1),
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


def read_preprocessing(cfg: Mapping[str, Any]) -> Preprocessing:
    """What timm's `pretrained_cfg` says of pictures."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear" if cfg.get("interpolation") == "bilinear" else "bicubic"
    return Preprocessing(
        mean=tuple(map(float, cfg.get("mean", (0.5, 0.5, 0.5)))),
        std=tuple(map(float, cfg.get("std", (0.5, 0.5, 0.5)))),
        fit="squash" if cfg.get("crop_mode") == "squash" else "crop",
        crop_fraction=float(cfg.get("crop_pct", 0.9)),
        interpolation=interpolation,
    )


def _labels(document: Mapping[str, Any], num_classes: int) -> tuple[str, ...]:
    names = document.get("label_names") or (document.get("pretrained_cfg") or {}).get("label_names") or []
    return tuple(map(str, names)) if len(names) == num_classes else ()


def _deit3(found: Found) -> bool:
    return "blocks.0.gamma_1" in found.tensors


def _rename_scales(found: Found) -> Found:
    changes = [(r"\.gamma_([12])$", r".ls\1.gamma")]
    return Found(found.path, renamed(found.tensors, changes), found.config)
