"""State dicts of torchvision's `swin_t` to `swin_v2_b`."""

import dataclasses
from typing import Any

from torch import Tensor

from vitreous.model.options import IMAGENET
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.mapping import Row, packed_rows, row
from vitreous.weights.formats.swin.layout import SwinLayout, window_buffers, without_key_bias
from vitreous.weights.io.containers import TORCH_SUFFIXES


class TorchvisionSwin(SwinLayout):
    name = "torchvision"
    title = "torchvision"
    signatures = (("features.0.0.weight", "features.1.0.attn.qkv.weight"),)
    ignored = (r"features\.\d+\.\d+\.attn\.(relative_position_index|relative_coords_table)",)
    suffixes = TORCH_SUFFIXES
    rule = "torchvision"
    patches = "features.0.0"
    patch_norm = "features.0.2"
    mlp = ("mlp.0", "mlp.3")

    def block(self, stage: int, number: int) -> str:
        return f"features.{2 * stage + 1}.{number}"

    def merge(self, stage: int) -> str:
        return f"features.{2 * stage}"

    def qkv_rows(self, config: SwinConfig, ours: str, theirs: str) -> list[Row]:
        if isinstance(config.version, SwinV1) or not config.qkv_bias:
            return super().qkv_rows(config, ours, theirs)
        parts = [f"{ours}.{part}" for part in "qkv"]
        biases = row((f"{ours}.q.bias", f"{ours}.v.bias"), f"{theirs}.qkv.bias", without_key_bias())
        return [*packed_rows(parts, f"{theirs}.qkv", parts=("weight",)), biases]

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        self.infer_shapes(state, builder)
        fraction = 224 / 232 if isinstance(builder.fields["version"], SwinV1) else 256 / 260
        how = dataclasses.replace(IMAGENET, crop_fraction=fraction)
        builder.assume_preprocessing("as in torchvision's swin_t and swin_v2_t", how)

    def unsupported(self, config: SwinConfig) -> list[str]:
        lines = super().unsupported(config)
        if config.channels != 3:
            lines.append(f"torchvision requires 3 channels, got {config.channels}")
        if not config.num_classes:
            lines.append("torchvision requires a classifier")
        if not config.qkv_bias:
            lines.append("torchvision requires qkv_bias")
        if isinstance(config.version, SwinV2) and any(config.pretrained_windows):
            lines.append("torchvision does not support pretrained_windows")
        return lines

    def extra_tensors(self, config: SwinConfig) -> dict[str, Tensor]:
        return window_buffers(config, self, masks=False, flat_index=True)
