"""torchvision's `VisionTransformer`: one file with its state dict, as its model zoo and its references have it.

Names and numerics read from torchvision's `models/vision_transformer.py`. It has square images of three channels, a
class token, and one linear layer on it or two with tanh between them (`representation_size`).
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, Learned1d, LinearHead, MlpHead, TanhHead
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.limits import absent, numeric_losses, unfit_attention, unfit_positions, unfit_sizes
from vitreous.weights.formats.mapping import Row, apart, positions, renamed, repeated, row, rows
from vitreous.weights.io.containers import TORCH_SUFFIXES, write_file

PUBLISHED = re.compile(r"vit_[blh]_(14|16|32)(_\w+)?-[0-9a-f]{8}\.pth")  # files of its model zoo
BLOCK = "encoder.layers.encoder_layer_{i}"
ABSENT = ("stem", "patch_norm", "distillation_token", "registers", "qk_norm", "layer_scale", "SwiGLU")


class Torchvision(Format):
    name = "torchvision"
    title = "torchvision"
    suffixes = TORCH_SUFFIXES

    def recognises(self, found: Found) -> bool:
        return f"{BLOCK}.ln_1.weight".replace("{i}", "0") in found.tensors

    def normalise(self, found: Found) -> Found:
        """Until 2022 the layers of the MLP had names of their own."""
        changes = [(r"\.mlp\.linear_1\.", ".mlp.0."), (r"\.mlp\.linear_2\.", ".mlp.3.")]
        return Found(found.path, renamed(found.tensors, changes), found.config)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        width, channels, *patch = found.shape("conv_proj.weight", 4)
        guess.set(
            width=width,
            depth=found.count(f"{BLOCK}.ln_1.weight"),
            channels=channels,
            patch_size=(patch[0], patch[1]),
            mlp_width=found.shape(f"{BLOCK}.mlp.0.weight".replace("{i}", "0"), 2)[0],
            num_classes=found.shape("heads.head.weight", 2)[0] if "heads.head.weight" in found.tensors else 0,
        )
        if "heads.pre_logits.weight" in found.tensors:
            guess.set(head=TanhHead(found.shape("heads.pre_logits.weight", 2)[0]))
        guess.heads(width, PUBLISHED.fullmatch(found.path.name) is not None)
        guess.grid(found.shape("encoder.pos_embedding", 3)[1], (1,), (patch[0], patch[1]), image_size)
        guess.follow("torchvision's", norm_eps=1e-6, mlp=Gelu("erf"), position=Learned1d(interpolation="torchvision"))
        if min(guess.fields["image_size"]) <= 224:
            shown = dataclasses.replace(IMAGENET, interpolation="bilinear")
            guess.prepare("that of torchvision's models for 224 pixels", shown)
        else:
            shown = dataclasses.replace(IMAGENET, crop_fraction=1.0)
            guess.prepare("that of torchvision's larger models (SWAG)", shown)

    def table(self, config: ViTConfig) -> list[Row]:
        ours, theirs = "encoder.blocks.{i}", BLOCK
        attention, packed = f"{ours}.attention", f"{theirs}.self_attention.in_proj"
        block = [
            *rows(f"{ours}.attention_norm", f"{theirs}.ln_1"),
            row(tuple(f"{attention}.{part}.weight" for part in "qkv"), f"{packed}_weight", apart(3)),
            row(tuple(f"{attention}.{part}.bias" for part in "qkv"), f"{packed}_bias", apart(3)),
            *rows(f"{attention}.output", f"{theirs}.self_attention.out_proj"),
            *rows(f"{ours}.mlp_norm", f"{theirs}.ln_2"),
            *rows(f"{ours}.mlp.up", f"{theirs}.mlp.0"),
            *rows(f"{ours}.mlp.down", f"{theirs}.mlp.3"),
        ]
        table = [
            *rows("patches.projection", "conv_proj"),
            row("prefix.class_token", "class_token"),
            row(("position.prefix", "position.table"), "encoder.pos_embedding", positions(1, config.grid)),
            *repeated(block, config.depth),
            *rows("norm", "encoder.ln"),
        ]
        if isinstance(config.head, TanhHead):
            table += rows("head.pre_logits", "heads.pre_logits")
        if config.num_classes:
            table += rows("head" if isinstance(config.head, LinearHead) else "head.classifier", "heads.head")
        return table

    def obstacles(self, config: ViTConfig) -> list[str]:
        system = self.title
        lines = absent(config, system, ABSENT) + unfit_sizes(config, system, square=True)
        lines += unfit_positions(config, system) + unfit_attention(config, system)
        if config.channels != 3:
            lines.append(f"channels {config.channels}: torchvision has 3")
        if not config.qkv_bias:
            lines.append("no bias on queries, keys and values: torchvision has one")
        if not isinstance(config.pool, ClassToken):
            lines.append(f"pool {type(config.pool).__name__}: torchvision has ClassToken")
        if isinstance(config.head, MlpHead):
            lines.append("head MlpHead: torchvision has LinearHead and TanhHead")
        if isinstance(config.head, TanhHead) and not config.num_classes:
            lines.append("head TanhHead without classes: torchvision's has some")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        return numeric_losses(config, self.title, norm_eps=1e-6)

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_file(tensors, path)
