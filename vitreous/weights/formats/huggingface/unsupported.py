"""What transformers' models have no place for, so that a model of ours with it cannot be written for them."""

import dataclasses
import math

from vitreous.model.centre_crop import scaled
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    ClassToken,
    GlobalAverage,
    Learned1d,
    LinearHead,
    Preprocessing,
    SwiGlu,
    TanhHead,
)
from vitreous.weights.formats.huggingface.config import mlp_ratio
from vitreous.weights.formats.limits import resize_differences


def obstacles(config: ViTConfig) -> list[str]:
    """One line for each part."""
    parts = {
        "stem": config.stem is not None,
        "patch_norm": config.patch_norm,
        "pad": config.pad,
        "qk_norm": config.qk_norm,
    }
    lines = [f"{part}: none of transformers' ViTs has it" for part, there in parts.items() if there]
    if not config.class_token:
        lines.append("no class_token: all of transformers' ViTs have one")
    if not isinstance(config.position, Learned1d):
        kind = type(config.position).__name__
        lines.append(f"position {kind}: transformers has one learned vector per patch")
    elif not config.position.prefix_entries:
        lines.append("position without an entry for the class token: transformers has one")
    if config.qk_scale is not None and not math.isclose(config.qk_scale, config.head_width**-0.5):
        lines.append(f"qk_scale {config.qk_scale:g}: in transformers it is 1 / sqrt(head_dim)")
    return lines + _family(config) + _output(config)


def _family(config: ViTConfig) -> list[str]:
    """Parts that transformers has, but in no one model."""
    lines = []
    if config.layer_scale is None:
        if isinstance(config.mlp, SwiGlu):
            lines.append("SwiGLU without layer_scale: of transformers' ViTs only DINOv2 has it, and LayerScale with it")
        # One register that no head reads is the distillation token of a DeiT that is not taught by a teacher.
        headless = not config.num_classes and not isinstance(config.head, TanhHead)
        if config.registers > 1 or (config.registers and (headless or config.distillation_token)):
            lines.append(
                f"registers {config.registers} without layer_scale: of transformers' ViTs only DINOv2 has them, and "
                "LayerScale with them"
            )
        return lines
    if config.distillation_token:
        lines.append("distillation_token and layer_scale: transformers has the one in DeiT, the other in DINOv2")
    if mlp_ratio(config) is None:
        share = "two thirds of a whole multiple" if isinstance(config.mlp, SwiGlu) else "a whole multiple"
        lines.append(f"mlp_width {config.mlp_width}: in transformers' DINOv2 it is {share} of width ({config.width})")
    return lines


def _output(config: ViTConfig) -> list[str]:
    # DINOv2's classifier reads the class token and the mean of the patches, and so can read only one of them.
    mean = config.layer_scale is not None and config.num_classes and config.pool == GlobalAverage("before")
    lines = []
    if not (isinstance(config.pool, ClassToken) or mean):
        lines.append(f"pool {config.pool}: transformers reads the class token")
    if isinstance(config.head, TanhHead):
        if config.num_classes:
            lines.append("head TanhHead: transformers' classifiers are one linear layer")
        elif config.layer_scale is not None or config.distillation_token:
            lines.append("head TanhHead: of transformers' ViTs only ViT and DeiT, without a teacher, have a pooler")
    elif config.num_classes and not isinstance(config.head, LinearHead):
        lines.append(f"head {type(config.head).__name__}: transformers' classifiers are one linear layer")
    return lines


def crop_losses(config: ViTConfig) -> list[str]:
    """Lines on what transformers' processors do differently with the preprocessor_config.json that we write."""
    if config.preprocessing.fit == "pad":
        return ["images are padded, and by transformers' processors cropped"]
    return resize_differences(config, as_transformers_reads_it(config), "transformers' processors")


def as_transformers_reads_it(config: ViTConfig) -> Preprocessing:
    """The preprocessing of transformers with the preprocessor_config.json that we write: sizes are whole numbers."""
    how, size = config.preprocessing, config.image_size
    return dataclasses.replace(how, crop_fraction=max(size) / max(scaled(size, how)), geometry="huggingface")
