"""MAE's own files: timm's layout under `model`, with a decoder beside the encoder, or after fine-tuning a classifier.

Names read from facebookresearch/mae, `models_mae.py`, `models_vit.py` and `util/pos_embed.py`. Only the encoder is a
Vision Transformer of ours: the decoder and the token for masked patches are of use in pre-training alone. Positions are
fixed sines and cosines there and learned in fine-tuning; we keep the table as it is, so that nothing of it is lost.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, GlobalAverage, Learned1d
from vitreous.model.position import SinCos2dPosition
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.limits import absent, numeric_losses, unfit_positions, unfit_sizes
from vitreous.weights.formats.mapping import Row
from vitreous.weights.formats.timm.layout import infer_timm, plain_obstacles, timm_table
from vitreous.weights.io.containers import TORCH_SUFFIXES, write_file

PUBLISHED = re.compile(r"mae_(pretrain|finetuned|visualize)_vit_")  # how the names of its authors' files begin
ABSENT = ("stem", "distillation_token", "registers", "qk_norm", "layer_scale", "SwiGLU", "head of two layers")


class Mae(Format):
    name = "mae"
    title = "MAE"
    suffixes = TORCH_SUFFIXES
    dropped = (r"decoder_.*", "mask_token")

    def recognises(self, found: Found) -> bool:
        """By its decoder, or by its positions. What was fine-tuned looks like timm's own: say format="mae"."""
        if "patch_embed.proj.weight" not in found.tensors:
            return False
        return "decoder_embed.weight" in found.tensors or _has_fixed_positions(found)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        infer_timm(found, guess, image_size, published=PUBLISHED.match(found.path.name) is not None)
        own = guess.fields["position"].prefix_entries
        # Pictures above 224 pixels are shown whole.
        shown = dataclasses.replace(IMAGENET, crop_fraction=0.875 if min(guess.fields["image_size"]) <= 224 else 1.0)
        position = Learned1d(own, "huggingface")
        guess.follow("MAE's", norm_eps=1e-6, mlp=Gelu("erf"), position=position)
        guess.prepare("MAE's", shown, always=True)

    def table(self, config: ViTConfig) -> list[Row]:
        return timm_table(config)

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = plain_obstacles(config, "MAE") + unfit_sizes(config, "MAE") + absent(config, "MAE", ABSENT)
        if not config.qkv_bias:
            lines.append("no bias on queries, keys and values: MAE has one")
        if not config.class_token:
            lines.append("no class token: MAE has one")
        elif isinstance(config.position, Learned1d):
            lines += unfit_positions(config, "MAE")
        if not isinstance(config.pool, ClassToken) and config.pool != GlobalAverage("after"):
            lines.append(f"pool {config.pool}: MAE has ClassToken() and GlobalAverage('after')")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        return numeric_losses(config, "MAE", norm_eps=1e-6)

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_file(tensors, path, under="model")


def _has_fixed_positions(found: Found) -> bool:
    """Whether the positions are MAE's sines and cosines, on a square, and nothing for the class token."""
    table = found.tensors.get("pos_embed")
    if table is None or table.ndim != 3 or len(table) != 1 or table.shape[2] % 4 or table.shape[2] < 8:
        return False
    places, width = table.shape[1:]
    side = round((places - 1) ** 0.5)
    if side**2 != places - 1 or table[0, 0].any():
        return False
    fixed = SinCos2dPosition(width, "mae", 10_000.0).table_at((side, side), table.device)
    return torch.allclose(table[0, 1:].float(), fixed.flatten(0, 1), atol=1e-3)
