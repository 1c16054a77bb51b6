"""DINOv2's own files: timm's layout with registers, a token for masked patches, and a gated MLP under other names.

Names read from facebookresearch/dinov2. Registers have no position; the token for masks is of use only in its training.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Learned1d, SwiGlu
from vitreous.weights.containers import write_file
from vitreous.weights.format import Format, Found, Inference
from vitreous.weights.mapping import Row
from vitreous.weights.timm_layout import Names, infer_timm, plain_obstacles, timm_table

NAMES = Names(registers="register_tokens", gated=("mlp.w12", "mlp.w3"), register_entries=False)


class DinoV2(Format):
    name = "dinov2"
    title = "DINOv2"
    dropped = ("mask_token",)

    def recognises(self, found: Found) -> bool:
        names = found.tensors
        theirs = "register_tokens" in names or ("mask_token" in names and names["mask_token"].ndim == 2)
        return theirs and "patch_embed.proj.weight" in names

    def normalise(self, found: Found) -> Found:
        """Blocks may come in chunks, as FSDP wraps them: blocks.{chunk}.{i}, with i counted through."""
        chunked = r"^blocks\.\d+\.(\d+\.)"
        return Found(found.path, {re.sub(chunked, r"blocks.\1", k): v for k, v in found.tensors.items()}, found.config)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        infer_timm(found, guess, image_size, NAMES)
        antialiased = guess.fields["registers"] > 0
        own = guess.fields["position"].prefix_entries
        position = Learned1d(own, "dinov2-registers" if antialiased else "dinov2")
        guess.assume("DINOv2's", norm_eps=1e-6, position=position, preprocessing=IMAGENET)

    def table(self, config: ViTConfig) -> list[Row]:
        return timm_table(config, NAMES)

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = plain_obstacles(config, "DINOv2")
        missing = {
            "stem": config.stem is not None,
            "distillation_token": config.distillation_token,
            "qk_norm": config.qk_norm,
            f"pool {type(config.pool).__name__}": not isinstance(config.pool, ClassToken),
            "head": config.num_classes > 0,
        }
        lines += [f"{part}: DINOv2 has none" for part, there in missing.items() if there]
        if isinstance(config.position, Learned1d) and not config.position.prefix_entries:
            lines.append("position without an entry for the class token: DINOv2 has one")
        if config.layer_scale is None:
            lines.append("no layer_scale: every block of DINOv2 has one")
        return lines

    def losses(self, config: ViTConfig) -> list[str]:
        lines = [] if config.norm_eps == 1e-6 else [f"LayerNorm's eps is {config.norm_eps:g}, and DINOv2's is 1e-6"]
        if not isinstance(config.mlp, SwiGlu) and config.mlp.approximation != "erf":
            lines.append("GELU is approximated by tanh, and DINOv2 computes it exactly")
        return lines

    def additions(self, config: ViTConfig) -> dict[str, Tensor]:
        return {"mask_token": torch.zeros(1, config.width)}

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_file(tensors, path)
