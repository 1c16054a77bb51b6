"""timm's `swin_*` and `swinv2_*` models: a state dict, or a folder with timm's config.json."""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model.options import IMAGENET
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2, fit_windows
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.swin.layout import SwinLayout, stated
from vitreous.weights.formats.swin.microsoft import QKV
from vitreous.weights.formats.timm.config import (
    TimmConfig,
    names_in,
    pretrained_cfg,
    timm_preprocessing,
)
from vitreous.weights.formats.write_checks import margin_differences, resize_differences
from vitreous.weights.io.errors import BadCheckpoint

# Sides of the windows and images, each in pre-training and, after "to", in fine-tuning.
NAME = re.compile(r"swin(?:v2)?_\w+?_window(\d+)(?:to(\d+))?_(\d+)(?:to(\d+))?")


class TimmSwin(SwinLayout):
    name = "timm"
    title = "timm"
    signatures = ((QKV, "patch_embed.norm.weight", "layers.1.downsample.reduction.weight"),)
    ignored = (r"layers\.\d+\.blocks\.\d+\.(attn_mask|attn\.relative_position_index|attn\.relative_coords_table)",)
    rule = "timm"
    head = "head.fc"

    def block(self, stage: int, number: int) -> str:
        return f"layers.{stage}.blocks.{number}"

    def merge(self, stage: int) -> str:
        return f"layers.{stage}.downsample"

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        config, name = TimmConfig.of(state), _architecture(state)
        window, size, pretrained = _sizes_in(name)
        window = stated(config.args.get("window_size"), state.path, "window_size") or window
        self.infer_shapes(state, builder, window, config.image_size or size)
        fields = builder.fields
        if isinstance(fields["version"], SwinV2):
            builder.set(version=SwinV2(_pretrained(config, pretrained)))
        if config.pretrained_cfg:
            labels = config.labels(fields["num_classes"])
            builder.set(preprocessing=config.preprocessing(fields["channels"]), labels=labels)
        else:
            fraction = 0.9 if min(fields["image_size"]) <= 256 else 1.0
            how = dataclasses.replace(IMAGENET, crop_fraction=fraction, geometry="timm")
            builder.assume_preprocessing("timm default for Swin", how)
        if image_size is None and (lines := _rounding(SwinConfig(**fields | builder.stated))):
            raise BadCheckpoint(f"{state.path}: {lines[0]}; pass an image_size that is a multiple of the stride")

    def unsupported(self, config: SwinConfig) -> list[str]:
        lines = super().unsupported(config)
        if isinstance(config.version, SwinV1) and any(height != width for height, width in config.stage_windows):
            lines.append(f"timm can only read tables of square windows, got {config.stage_windows}")
        return lines

    def differences(self, config: SwinConfig, folder: bool = False) -> list[str]:
        return super().differences(config, folder) + _rounding(config)

    def minor_differences(self, config: SwinConfig) -> list[str]:
        theirs = timm_preprocessing(config)
        resizing = resize_differences(config, theirs, "timm") or margin_differences(config, theirs, "timm")
        return super().minor_differences(config) + resizing

    def write(self, tensors: Mapping[str, Tensor], config: SwinConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if path.is_dir():
            (path / "config.json").write_text(json.dumps(timm_swin_config(config), indent=2) + "\n", encoding="utf-8")


def _rounding(config: SwinConfig) -> list[str]:
    """Describe what differs at an image size that is not divided by the stride, because timm rounds grids down."""
    (height, width), (ph, pw) = config.image_size, config.patch_size
    if height % ph or width % pw:
        return [f"images of {height} x {width} pixels are padded to whole patches in Vitreous, but cropped in timm"]
    for stage, (gh, gw) in enumerate(config.stage_grids):
        lower = (height // ph >> stage, width // pw >> stage)
        if fit_windows(lower, config.window, "timm") != fit_windows((gh, gw), config.window, "timm"):
            return [f"timm fits the windows of stage {stage} to {lower[0]} x {lower[1]} patches instead of {gh} x {gw}"]
    return []


def timm_swin_config(config: SwinConfig) -> dict[str, Any]:
    """Return the config.json from which `timm.create_model("local-dir:FOLDER", pretrained=True)` builds the model."""
    args: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": _side_or_sides(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.stage_heads),
        "window_size": _side_or_sides(config.window),
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": config.qkv_bias,
    }
    second = isinstance(config.version, SwinV2)
    if second:
        args["pretrained_window_sizes"] = list(config.pretrained_windows)
    return {
        "architecture": "swinv2_tiny_window8_256" if second else "swin_tiny_patch4_window7_224",
        "num_classes": config.num_classes,
        "num_features": config.feature_width,
        "global_pool": "avg",
        **({"label_names": list(config.labels)} if config.labels else {}),
        "model_args": args,
        "pretrained_cfg": pretrained_cfg(config, config.num_classes, "patch_embed.proj", "head.fc"),
        # Only read by Vitreous: timm rounds differently, so crop_pct is chosen to give the same sizes.
        "crop_fraction": config.preprocessing.crop_fraction,
        "geometry": config.preprocessing.geometry,
    }


def _side_or_sides(size: Size) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)


def _architecture(state: StateDict) -> str:
    if isinstance(name := state.config.get("architecture"), str):
        return name
    names = names_in(Path(state.model_name)) + names_in(state.path)
    return next((name for name in names if NAME.fullmatch(name)), "")


def _sizes_in(name: str) -> tuple[Size | None, Size | None, int]:
    """Return the window and image size of an architecture, and the window of its pre-training or 0.

    >>> _sizes_in("swinv2_base_window12to24_192to384"), _sizes_in("swin_tiny_patch4_window7_224")
    (((24, 24), (384, 384), 12), ((7, 7), (224, 224), 0))
    """
    if (found := NAME.fullmatch(name)) is None:
        return None, None, 0
    before, window, first, size = (int(number or 0) for number in found.groups())
    return (window or before,) * 2, (size or first,) * 2, before if window else 0


def _pretrained(config: TimmConfig, side: int) -> tuple[int, ...]:
    """Return `SwinV2.pretrained_windows`, which are (12, 12, 12, 6) in all published models that have them."""
    sides = config.args.get("pretrained_window_sizes", [side, side, side, side // 2] if side else [])
    if not isinstance(sides, list) or not all(type(number) is int for number in sides):
        raise BadCheckpoint(f"{config.path}: pretrained_window_sizes must be a list of integers, got {sides!r:.80}")
    return tuple(sides) if any(sides) else ()
