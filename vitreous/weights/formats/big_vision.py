"""big_vision's `.npz` checkpoints: ViTs with a class token, average pooling, or attention pooling (MAP, as in SigLIP).

Names follow google-research/big_vision (`models/vit.py`, `models/proj/image_text/two_towers.py`).
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.common.checks import as_size
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    SIGLIP,
    AttentionPool,
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    Preprocessing,
    SinCos2d,
)
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.google import NUMBERED_BY_TYPE, FlaxFormat, attention_rows, mlp, norm, renumbering
from vitreous.weights.formats.mapping import Row, position_table, row

POOL = "MAPHead_0"


class BigVision(FlaxFormat):
    name = "big_vision"
    title = "big_vision"
    numbers = NUMBERED_BY_TYPE
    renames = (
        *renumbering(NUMBERED_BY_TYPE),
        (r"^Transformer/pos_embedding$", "pos_embedding"),
        # In early versions of ViT-G, pooling was not a separate layer.
        (r"^(probe$|(MultiHeadDotProductAttention|LayerNorm|MlpBlock)_0/)", rf"{POOL}/\g<1>"),
    )
    missing = (*FlaxFormat.missing, "stem")

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        patch = self.infer_encoder(state, builder)
        if "pos_embedding" in state.tensors:
            # In files from before 2022, the class token also has a position. big_vision detects this by the length of
            # the table, a square number plus one.
            has_class, positions = builder.fields["class_token"], state.shape("pos_embedding", 3)[1]
            prefix = int(has_class and math.isqrt(positions - 1) ** 2 == positions - 1)
            builder.infer_grid(positions, (prefix,), patch, image_size)
            builder.set(position=Learned1d(prefix == has_class, "google"))
        else:  # positions are computed, so no tensor depends on the image size
            builder.assume("there are no learned positions", position=SinCos2d("big_vision"))
            usual = tuple(max(224 // side, 1) * side for side in patch)
            builder.default("usual size; no tensor depends on it", image_size=usual)
            if (given := builder.overrides.get("image_size", image_size)) is not None:
                builder.set(image_size=as_size(given))
        pooled = f"{POOL}/probe" in state.tensors
        averaged = AttentionPool() if pooled else GlobalAverage("before")
        builder.set(pool=ClassToken() if builder.fields["class_token"] else averaged)
        builder.default("big_vision default", norm_eps=self.norm_eps, mlp=Gelu(self.gelu))
        if pooled and not builder.fields["num_classes"]:
            builder.assume("SigLIP default (resize to a square)", preprocessing=SIGLIP)
        else:
            crop = Preprocessing(crop_fraction=0.875, interpolation="bilinear")
            builder.assume("big_vision default for classifiers (resize to 256, crop to 224)", preprocessing=crop)

    def table(self, config: ViTConfig) -> list[Row]:
        positions, pool = [], []
        if isinstance(config.position, Learned1d):
            prefix = int(config.class_token and config.position.prefix_entries)
            ours = ("position.prefix", "position.table") if prefix else ("position.table",)
            positions.append(row(ours, "pos_embedding", position_table(prefix, config.grid)))
        if isinstance(config.pool, AttentionPool):
            attention = f"{POOL}/MultiHeadDotProductAttention_0"
            pool = [row("pool.attention.query", f"{POOL}/probe")]
            pool += attention_rows("pool.attention", attention, config.num_heads)
            pool += norm("pool.norm", f"{POOL}/LayerNorm_0") + mlp("pool.mlp", f"{POOL}/MlpBlock_0")
        return self.model_rows(config, positions, pool)

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if not isinstance(config.position, Learned1d) and config.position != SinCos2d("big_vision"):
            known = f"Learned1d or {SinCos2d('big_vision')}"
            lines.append(f"big_vision requires {known} positions, got {config.position}")
        if isinstance(config.position, Learned1d) and (line := _misread(config, config.position)):
            lines.append(line)
        expected = (ClassToken(),) if config.class_token else (GlobalAverage("before"), AttentionPool())
        if config.pool not in expected:
            token = "with" if config.class_token else "without"
            allowed = " or ".join(map(str, expected))
            lines.append(f"big_vision requires {allowed} pooling in models {token} a class token, got {config.pool}")
        return lines

    def packed(self, tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
        return {f"params/{name}": tensor for name, tensor in tensors.items()}


def _misread(config: ViTConfig, position: Learned1d) -> str:
    """Return a line if big_vision, which infers class token positions from the table length, would misread it."""
    entries = config.class_token and position.prefix_entries
    patches = math.prod(config.grid)
    if entries and math.isqrt(patches) ** 2 != patches:
        return f"big_vision requires a square number of patches if the class token has a position, got {patches}"
    if not entries and patches > 1 and math.isqrt(patches - 1) ** 2 == patches - 1:
        line = f"big_vision would assign the first of {patches} positions to the class token"
        return f"{line}, because {patches - 1} is a square number"
    return ""
