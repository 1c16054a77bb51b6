"""BiT ResNets with timm's names (`resnetv2.py`), as in timm's copies of Google's weights. This format is read-only."""

import re
from pathlib import Path
from typing import Any

from vitreous.model.config import ResNetConfig
from vitreous.model.options import Preprocessing
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import Row, reshape, row, rows
from vitreous.weights.formats.timm.config import TimmConfig, names_in
from vitreous.weights.formats.timm.format import stem_units
from vitreous.weights.io.errors import BadCheckpoint

ROOT = "stem.conv.weight"
UNIT = "stages.{}.blocks.{}.conv1.weight"
HEAD = "head.fc.weight"
ARCHITECTURE = re.compile(r"resnetv2_\w+")
BIT = re.compile(r"resnetv2_\d+x\d+_bit\w*")


class Bit(Format):
    name = "bit"
    title = "BiT in timm"
    config_class = ResNetConfig
    read_only = True
    signatures = ((ROOT, "stages.0.blocks.0.norm1.weight", "stages.0.blocks.0.downsample.conv.weight", "norm.weight"),)

    def ambiguity(self, state: StateDict) -> str:
        unnamed = "its name is unknown, and timm's ResNets without weight standardisation have the same tensors"
        return "" if _architecture(state) else f"{unnamed} but different outputs"

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        width, channels, *_ = state.shape(ROOT, 4)
        stages = [state.count(UNIT.format(stage, "{i}")) for stage in range(state.count(UNIT.format("{i}", 0)))]
        classes = state.shape(HEAD, 4)[0] if HEAD in state.tensors else 0
        builder.set(width=width, channels=channels, stages=tuple(stages), num_classes=classes)
        if (architecture := _architecture(state)) and not BIT.fullmatch(architecture):
            raise BadCheckpoint(f"{state.path} is timm's {architecture}, which is not supported")
        if "architecture" not in state.config:
            builder.assume("as in BiT", preprocessing=Preprocessing())
            return
        config = TimmConfig.of(state)
        builder.set(preprocessing=config.preprocessing(channels), labels=config.labels(classes))
        if config.image_size is not None:
            builder.set(image_size=config.image_size)

    def table(self, config: ResNetConfig) -> list[Row]:
        table = [row("root.weight", ROOT), *rows("norm", "norm")]
        for unit, stage, index in stem_units(config.stages):
            ours, theirs = unit.removeprefix("stem."), f"stages.{stage}.blocks.{index}"
            for i in (1, 2, 3):
                table += [row(f"{ours}.conv{i}.weight", f"{theirs}.conv{i}.weight")]
                table += rows(f"{ours}.norm{i}", f"{theirs}.norm{i}")
            if index == 0:
                table.append(row(f"{ours}.shortcut.weight", f"{theirs}.downsample.conv.weight"))
        if config.num_classes:  # a 1 x 1 convolution
            width = config.feature_width
            table += rows("head", "head.fc", reshape((-1, width), (-1, width, 1, 1)))
        return table


def _architecture(state: StateDict) -> str:
    """Return timm's architecture name from config.json, the metadata or the path. Return "" if none names it."""
    if "architecture" in state.config:
        return str(state.config["architecture"])
    names = names_in(Path(state.model_name)) + names_in(state.path)
    return next((name for name in names if ARCHITECTURE.fullmatch(name)), "")
