"""Small configs of every kind that a checkpoint folder can contain."""

import dataclasses
from pathlib import Path

from torch import Tensor

from vitreous.model import options
from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.presets import PRESETS
from vitreous.model.swin_config import SwinConfig
from vitreous.weights.io.safetensors_file import read_tensors


def load_state(folder: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint folder."""
    return read_tensors(folder / "model.safetensors")


def thin(config: ViTConfig | ResNetConfig | SwinConfig) -> ViTConfig | ResNetConfig | SwinConfig:
    """Shrink a config to a few patches, two narrow layers and three named classes."""
    if isinstance(config, SwinConfig):
        shape = {"width": 16, "depths": (1, 2), "stage_heads": (1, 2), "window": (4, 4), "patch_size": (4, 4)}
        version = type(config.version)()
        names = {"num_classes": 3, "labels": ("a", "b", "c")}
        return dataclasses.replace(config, image_size=(32, 48), version=version, **shape, **names)
    if isinstance(config, ResNetConfig):
        return dataclasses.replace(
            config, image_size=(32, 48), width=32, stages=(1, 1), num_classes=3, labels=("a", "b", "c")
        )
    stem = config.stem and dataclasses.replace(config.stem, stages=config.stem.stages and (1,) * 2, width=32)
    unit = [side * (stem.stride if stem else 1) for side in config.patch_size]
    return dataclasses.replace(
        config,
        image_size=(2 * unit[0], 3 * unit[1]),
        stem=stem,
        width=32,
        depth=2,
        num_heads=4,
        mlp_width=48,
        num_classes=config.num_classes and 3,
        labels=("a", "b", "c") if config.num_classes else (),
    )


KINDS = {
    repr(thin(config)): name for name, config in reversed(PRESETS.items())
}  # one preset for each distinct small config
MODELS = {name: thin(PRESETS[name]) for name in KINDS.values()}
MODELS |= {
    type(part).__name__: dataclasses.replace(MODELS["ViT-Ti/8"], **{field: part})
    for field, part in [
        ("position", options.Learned2d()),
        ("position", options.SinCos2d()),
        ("position", options.RelativeBias()),
        ("position", options.Rotary2d()),
        ("position", options.Conditional()),
        ("position", options.NoPosition()),
        ("pool", options.GlobalAverage("after")),
        ("pool", options.AttentionPool()),
        ("head", options.TanhHead(8)),
        ("head", options.MlpHead(8)),
    ]
}
