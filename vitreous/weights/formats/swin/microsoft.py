"""Files of Microsoft's Swin repository: `{"model": state_dict}` with the buffers of masks and relative positions."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.model.options import IMAGENET
from vitreous.model.swin_config import SwinConfig, SwinV2
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.swin.layout import SwinLayout, pretrained_windows, window_buffers
from vitreous.weights.io.containers import TORCH_SUFFIXES, write_file

QKV = "layers.0.blocks.0.attn.qkv.weight"


class Microsoft(SwinLayout):
    name = "microsoft"
    title = "Microsoft's Swin"
    signatures = ((QKV, "patch_embed.norm.weight", "layers.0.downsample.reduction.weight"),)
    # SimMIM files contain the encoder, the token of masked patches and a decoder.
    roots = ("", "encoder.")
    ignored = (
        r"layers\.\d+\.blocks\.\d+\.(attn_mask|attn\.relative_position_index|attn\.relative_coords_table)",
        r"mask_token|decoder\..*",
    )
    suffixes = TORCH_SUFFIXES

    def block(self, stage: int, number: int) -> str:
        return f"layers.{stage}.blocks.{number}"

    def merge(self, stage: int) -> str:
        return f"layers.{stage - 1}.downsample"

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        self.infer_shapes(state, builder)
        if isinstance(builder.fields["version"], SwinV2):
            builder.set(version=SwinV2(pretrained_windows(state, self, len(builder.fields["depths"]))))
        builder.assume_preprocessing("Microsoft's default", IMAGENET)

    def unsupported(self, config: SwinConfig) -> list[str]:
        lines = super().unsupported(config)
        for grid, window in zip(config.stage_grids, config.stage_windows, strict=True):
            if any(side % step for side, step in zip(grid, window, strict=True)):
                sides = f"{grid[0]} x {grid[1]} patches", f"{window[0]} x {window[1]}"
                lines.append(f"{self.title} cannot divide {sides[0]} into windows of {sides[1]}")
        if len(set(config.window)) > 1:
            lines.append(f"{self.title} requires square windows, got {config.window}")
        if any(side % stride for side, stride in zip(config.image_size, config.patch_stride, strict=True)):
            lines.append(f"{self.title} requires an image size divisible by {math.lcm(*config.patch_stride)}")
        return lines

    def extra_tensors(self, config: SwinConfig) -> dict[str, Tensor]:
        return window_buffers(config, self, masks=True, flat_index=False)

    def write(self, tensors: Mapping[str, Tensor], config: SwinConfig, path: Path) -> None:
        write_file(tensors, path, under="model")
