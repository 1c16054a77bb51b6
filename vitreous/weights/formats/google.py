"""Google's own `.npz`: the models that were published with the paper and with AugReg, plain and hybrid.

Names read from google-research/vision_transformer, `models_vit.py`, `models_resnet.py` and `checkpoint.py`.
"""

import dataclasses
import re
from typing import Any

from vitreous.model.config import ViTConfig
from vitreous.model.options import ClassToken, Gelu, GlobalAverage, Learned1d, Preprocessing, ResNetStem
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.flax import AMONG_ALL, CONVOLUTION, FlaxFormat, renumbering
from vitreous.weights.formats.mapping import Row, position_table, reshape, row
from vitreous.weights.formats.timm.layout import stem_units

POSITIONS = "Transformer/posembed_input/pos_embedding"
GROUP_NORM = re.compile(r"(.*/)?gn(\d|_root|_proj)/(scale|bias)")


class Google(FlaxFormat):
    name = "google"
    title = "Google's vision_transformer"
    signatures = (("embedding/kernel", "Transformer/encoder_norm/scale", POSITIONS),)
    numbers = AMONG_ALL
    renames = renumbering(AMONG_ALL)
    missing = (*FlaxFormat.missing, "other positions", "positions without the class token")

    def normalise(self, state: StateDict) -> StateDict:
        """Also bring GroupNorm's vectors to the shape [1, 1, 1, n] that an old flax wrote."""
        state = super().normalise(state)
        tensors = {
            name: x.reshape(1, 1, 1, -1) if x.ndim == 1 and GROUP_NORM.fullmatch(name) else x
            for name, x in state.tensors.items()
        }
        return dataclasses.replace(state, tensors=tensors)

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        patch = self.infer_encoder(state, builder)
        stem = _infer_stem(state)
        if stem is not None:
            builder.set(stem=stem, channels=state.shape("conv_root/kernel")[2])
        stride = 1 if stem is None else stem.stride
        prefix = int(builder.fields["class_token"])
        positions = state.shape(POSITIONS, 3)[1] - prefix
        builder.infer_grid(positions, (0,), (patch[0] * stride, patch[1] * stride), image_size)
        builder.set(pool=ClassToken() if prefix else GlobalAverage("before"), position=Learned1d(True, "google"))
        builder.default("vit_jax's", norm_eps=self.norm_eps, mlp=Gelu(self.gelu))
        squash = Preprocessing(fit="squash", interpolation="bilinear")
        builder.default("that of vit_jax's evaluation, which resizes to a square", preprocessing=squash)

    def table(self, config: ViTConfig) -> list[Row]:
        ours = ("position.prefix", "position.table") if config.class_token else ("position.table",)
        positions = row(ours, POSITIONS, position_table(int(config.class_token), config.grid))
        return _stem_rows(config) + self.model_rows(config, [positions])

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        expected = ClassToken() if config.class_token else GlobalAverage("before")
        if config.pool != expected:
            token = "with" if config.class_token else "without"
            lines.append(f"pool {config.pool}: {token} a class token, {self.title} has {expected}")
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = super().differences(config)
        if config.stem is not None and config.stem.numerics != "google":
            lines.append(f"the ResNet's norms have {config.stem.numerics}'s eps, not Google's")
        return lines


def _infer_stem(state: StateDict) -> ResNetStem | None:
    if "conv_root/kernel" not in state.tensors:
        return None

    stages = state.count("block{i}/unit1/conv1/kernel", first=1)
    units = tuple(state.count(f"block{stage}/unit{{i}}/conv1/kernel", first=1) for stage in range(1, stages + 1))
    return ResNetStem(units, state.shape("conv_root/kernel", 4)[3], "google")


def _stem_rows(config: ViTConfig) -> list[Row]:
    if config.stem is None:
        return []
    table = [row("stem.root.weight", "conv_root/kernel", CONVOLUTION), *_group_norm("stem.norm", "gn_root")]
    for ours, stage, unit in stem_units(config.stem.stages):
        theirs = f"block{stage + 1}/unit{unit + 1}"
        for i in (1, 2, 3):
            table.append(row(f"{ours}.conv{i}.weight", f"{theirs}/conv{i}/kernel", CONVOLUTION))
            table += _group_norm(f"{ours}.norm{i}", f"{theirs}/gn{i}")
        if unit == 0:
            table.append(row(f"{ours}.shortcut.0.weight", f"{theirs}/conv_proj/kernel", CONVOLUTION))
            table += _group_norm(f"{ours}.shortcut.1", f"{theirs}/gn_proj")
    return table


def _group_norm(ours: str, theirs: str) -> list[Row]:
    vector = reshape((-1,), (1, 1, 1, -1))
    return [row(f"{ours}.weight", f"{theirs}/scale", vector), row(f"{ours}.bias", f"{theirs}/bias", vector)]
