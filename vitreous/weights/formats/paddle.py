"""PaddleClas's files: timm's names, with every matrix the other way round, [in, out], as Paddle multiplies.

Names and numerics read from PaddleClas, `vision_transformer.py` and `distilled_vision_transformer.py`; what it does to
pictures, from its configs for ImageNet. Models that tutorials write after it have its names too. A file says nothing of
eps and of attention's scale: they follow from what the constructor takes by default and what the named models give it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Learned1d, Preprocessing
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.limits import absent, numeric_losses, unfit_positions, unfit_sizes
from vitreous.weights.formats.mapping import TRANSPOSED, Row
from vitreous.weights.formats.timm.layout import Names, infer_timm, timm_table
from vitreous.weights.io.containers import write_file

NAMES = Names(matrix=TRANSPOSED)
DEIT_WIDTHS = (192, 384)  # of these widths PaddleClas has only DeiT
SMALL = "as ViT_small_patch16_224 has it, the only model of this shape"
SMALL_HEADS, SMALL_SCALE = 8, 768**-0.5


class Paddle(Format):
    name = "paddle"
    title = "PaddleClas"

    def recognises(self, found: Found) -> bool:
        if "patch_embed.proj.weight" not in found.tensors or "blocks.0.attn.qkv.weight" not in found.tensors:
            return False
        shape = found.shape("blocks.0.attn.qkv.weight")
        return len(shape) == 2 and shape[1] == 3 * shape[0]  # timm's is [3 * width, width]

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        infer_timm(found, guess, image_size, NAMES, entries=True)
        fields = guess.fields
        if is_small(fields["width"], fields["depth"], fields["mlp_width"], fields["qkv_bias"]):
            guess.assume(SMALL, num_heads=SMALL_HEADS, qk_scale=SMALL_SCALE)
        which = "with" if fields["qkv_bias"] else "without"
        guess.follow(f"PaddleClas's {which} a bias on queries, keys and values", norm_eps=usual_eps(fields["qkv_bias"]))
        own = fields["position"].prefix_entries
        guess.follow("timm's way of resampling, for want of one of PaddleClas's", position=Learned1d(own, "timm"))
        if fields["distillation_token"] or fields["width"] in DEIT_WIDTHS:
            guess.prepare("PaddleClas's for DeiT", IMAGENET)
        else:
            whole = min(fields["image_size"]) >= 384
            shown = Preprocessing(crop_fraction=1.0 if whole else 0.875, interpolation="bilinear")
            guess.assume("PaddleClas's for ViT", preprocessing=shown)

    def table(self, config: ViTConfig) -> list[Row]:
        return timm_table(config, NAMES)

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = paddle_obstacles(config, self.title)
        if config.num_heads * config.head_width != config.width:
            lines.append(f"head_dim {config.head_dim}: in PaddleClas it is width / num_heads")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = numeric_losses(config, self.title, usual_eps(config.qkv_bias))
        small = is_small(config.width, config.depth, config.mlp_width, config.qkv_bias)
        scale, usual = config.qk_scale or config.head_width**-0.5, SMALL_SCALE if small else config.head_width**-0.5
        if not math.isclose(scale, usual):
            lines.append(f"attention is scaled by {scale:g}, and in PaddleClas, in this shape, by {usual:g}")
        return lines

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_paddle(tensors, path)


def is_small(width: int, depth: int, mlp_width: int, qkv_bias: bool) -> bool:
    """Whether this is ViT_small_patch16_224: a shape of PaddleClas's own, smaller than B and nothing like S."""
    return (width, depth, mlp_width, qkv_bias) == (768, 8, 2304, False)


def usual_eps(qkv_bias: bool) -> float:
    """The constructor's own defaults are no bias and 1e-5; every named model that asks for the bias asks for 1e-6."""
    return 1e-6 if qkv_bias else 1e-5


# ---- What PaddleClas and PaddleViT share -----------------------------------------------------------------------------


def paddle_obstacles(config: ViTConfig, system: str) -> list[str]:
    """What neither of them has a place for."""
    missing = ("stem", "patch_norm", "registers", "qk_norm", "layer_scale", "SwiGLU", "head of two layers")
    lines = absent(config, system, missing) + unfit_positions(config, system) + unfit_sizes(config, system, square=True)
    if not isinstance(config.pool, ClassToken):
        lines.append(f"pool {type(config.pool).__name__}: {system} has only the class token")
    return lines


def write_paddle(tensors: Mapping[str, Tensor], path: Path) -> None:
    write_file(tensors, path / "model.pdparams" if path.is_dir() else path)
