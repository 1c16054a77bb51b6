"""DINOv2's own files: timm's layout with registers, a token for masked patches, and a gated MLP under other names.

Names read from facebookresearch/dinov2. Registers have no position; the token for masks is of use only in its training,
as are the heads that stand beside the backbone in what its training writes.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, Learned1d, SwiGlu
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.limits import absent, numeric_losses, unfit_positions, unfit_sizes
from vitreous.weights.formats.mapping import Row, renamed
from vitreous.weights.formats.timm.layout import Names, infer_timm, plain_obstacles, timm_table
from vitreous.weights.io.containers import TORCH_SUFFIXES, write_file

PUBLISHED = re.compile(r"dinov2_vit[sblg]14")  # how the names of its authors' files begin
NAMES = Names(registers="register_tokens", gated=("mlp.w12", "mlp.w3"), register_entries=False)
ABSENT = ("stem", "distillation_token", "qk_norm", "classifier", "head of two layers")


class DinoV2(Format):
    name = "dinov2"
    title = "DINOv2"
    suffixes = TORCH_SUFFIXES
    dropped = ("mask_token", r"(dino|ibot)_head\..*")

    def recognises(self, found: Found) -> bool:
        mask = found.tensors.get("mask_token")
        theirs = "register_tokens" in found.tensors or (mask is not None and mask.ndim == 2)
        return theirs and "patch_embed.proj.weight" in found.tensors

    def normalise(self, found: Found) -> Found:
        """Training may wrap blocks in chunks: blocks.{chunk}.{i}, i counted through."""
        return Found(found.path, renamed(found.tensors, [(r"^blocks\.\d+\.(\d+\.)", r"blocks.\1")]), found.config)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        published = PUBLISHED.match(found.path.name) is not None
        infer_timm(found, guess, image_size, NAMES, entries=True, published=published)
        antialiased = guess.fields["registers"] > 0
        own = guess.fields["position"].prefix_entries
        position = Learned1d(own, "dinov2-registers" if antialiased else "dinov2")
        guess.follow("DINOv2's", norm_eps=1e-6, position=position)
        guess.prepare("DINOv2's", IMAGENET, always=True)
        if isinstance(guess.fields["mlp"], Gelu):
            guess.follow("DINOv2's", mlp=Gelu("erf"))

    def table(self, config: ViTConfig) -> list[Row]:
        return timm_table(config, NAMES)

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = plain_obstacles(config, "DINOv2") + unfit_sizes(config, "DINOv2", square=True)
        lines += absent(config, "DINOv2", ABSENT)
        if not isinstance(config.pool, ClassToken):
            lines.append(f"pool {type(config.pool).__name__}: DINOv2 has ClassToken")
        elif isinstance(config.position, Learned1d):
            lines += unfit_positions(config, "DINOv2")
        if isinstance(config.mlp, SwiGlu) and config.mlp_width % 8:
            lines.append(f"mlp_width {config.mlp_width} with SwiGLU: DINOv2 has multiples of 8")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        return numeric_losses(config, "DINOv2", norm_eps=1e-6)

    def additions(self, config: ViTConfig) -> dict[str, Tensor]:
        return {"mask_token": torch.zeros(1, config.width)}

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_file(tensors, path)
