"""Google's own `.npz`: the models that were published with the paper and with AugReg, plain and hybrid.

Names read from google-research/vision_transformer, `models_vit.py`, `models_resnet.py` and `checkpoint.py`.
"""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import ClassToken, Gelu, GlobalAverage, Learned1d, Preprocessing, ResNetStem
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.flax.files import BESIDE, plainly, root_of, write_model
from vitreous.weights.formats.flax.layers import (
    AMONG_ALL,
    CONVOLUTION,
    encoder_rows,
    flax_losses,
    flax_obstacles,
    head_rows,
    infer_encoder,
    patch_rows,
)
from vitreous.weights.formats.mapping import Row, positions, row, shaped
from vitreous.weights.formats.timm.layout import stem_units

POSITIONS = "Transformer/posembed_input/pos_embedding"
GROUP_NORM = re.compile(r"(.*/)?gn(\d|_root|_proj)/(scale|bias)")


class Google(Format):
    name = "google"
    title = "Google's vision_transformer"
    dropped = BESIDE
    suffixes = (".npz",)

    def recognises(self, found: Found) -> bool:
        root = root_of(found)
        return root is not None and f"{root}{POSITIONS}" in found.tensors

    def normalise(self, found: Found) -> Found:
        """GroupNorm's vectors have three sides of 1 in files that an old flax wrote, and none in newer ones."""
        found = plainly(found, AMONG_ALL)
        tensors = {
            name: x.reshape(1, 1, 1, -1) if x.ndim == 1 and GROUP_NORM.fullmatch(name) else x
            for name, x in found.tensors.items()
        }
        return Found(found.path, tensors, found.config)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        patch = infer_encoder(found, guess, AMONG_ALL)
        stem = _infer_stem(found)
        if stem is not None:
            guess.set(stem=stem, channels=found.shape("conv_root/kernel")[2])
        stride = 1 if stem is None else stem.stride
        entries = int(guess.fields["class_token"])  # the token is there before positions are added, and has one
        places = found.shape(POSITIONS, 3)[1] - entries
        guess.grid(places, (0,), (patch[0] * stride, patch[1] * stride), image_size)
        guess.set(pool=ClassToken() if entries else GlobalAverage("before"), position=Learned1d(True, "google"))
        guess.follow("vit_jax's", norm_eps=1e-6, mlp=Gelu("tanh"))
        squashed = Preprocessing(fit="squash", interpolation="bilinear")
        guess.follow("that of vit_jax's own evaluation, which resizes to the square", preprocessing=squashed)

    def table(self, config: ViTConfig) -> list[Row]:
        table = _stem_rows(config) + patch_rows()
        if config.class_token:
            table.append(row("prefix.class_token", "cls"))
        tables = ("position.prefix", "position.table") if config.class_token else ("position.table",)
        table.append(row(tables, POSITIONS, positions(int(config.class_token), config.grid)))
        return table + encoder_rows(config, AMONG_ALL) + head_rows(config)

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = flax_obstacles(config, "vit_jax")
        if not isinstance(config.position, Learned1d):
            lines.append(f"position {type(config.position).__name__}: vit_jax has one learned vector per patch")
        elif config.class_token and not config.position.prefix_entries:
            lines.append("position without an entry for the class token: vit_jax has one")
        expected = ClassToken() if config.class_token else GlobalAverage("before")
        if config.pool != expected:
            token = "with" if config.class_token else "without"
            lines.append(f"pool {config.pool}: {token} a class token, vit_jax has {expected}")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = flax_losses(config, "vit_jax")
        if config.stem is not None and config.stem.numerics != "google":
            lines.append(f"the ResNet divides by deviations with {config.stem.numerics}'s small numbers, not Google's")
        return lines

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_model(tensors, path)


def _infer_stem(found: Found) -> ResNetStem | None:
    if "conv_root/kernel" not in found.tensors:
        return None

    def count(pattern: str) -> int:
        """Of names that are counted from 1."""
        there = (pattern.format(i) in found.tensors for i in itertools.count(1))
        return sum(1 for _ in itertools.takewhile(bool, there))

    stages = count("block{}/unit1/conv1/kernel")
    units = tuple(count(f"block{stage}/unit{{}}/conv1/kernel") for stage in range(1, stages + 1))
    return ResNetStem(units, found.shape("conv_root/kernel", 4)[3], "google")


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
    how = shaped((-1,), (1, 1, 1, -1))
    return [row(f"{ours}.weight", f"{theirs}/scale", how), row(f"{ours}.bias", f"{theirs}/bias", how)]
