"""big_vision's `.npz`: ViTs with a class token, their patches' average, or attention pooling (MAP), as in SigLIP.

Names read from google-research/big_vision, `models/vit.py` and `models/proj/image_text/two_towers.py`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.common.checks import Size, as_size
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    AttentionPool,
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    Preprocessing,
    SinCos2d,
)
from vitreous.weights.formats.base import Format, Found, Inference
from vitreous.weights.formats.flax.files import BESIDE, plainly, root_of, write_model
from vitreous.weights.formats.flax.layers import (
    AMONG_KIND,
    encoder_rows,
    flax_losses,
    flax_obstacles,
    head_rows,
    infer_encoder,
    into_heads,
    mlp,
    norm,
    out_of_heads,
    patch_rows,
)
from vitreous.weights.formats.mapping import Row, positions, row

POOL = "MAPHead_0"
OLD_NAMES = [
    (r"^Transformer/pos_embedding$", "pos_embedding"),
    # While ViT-G was developed, the pooling was no layer of its own.
    (r"^(probe$|(MultiHeadDotProductAttention|LayerNorm|MlpBlock)_0/)", rf"{POOL}/\g<1>"),
]


class BigVision(Format):
    name = "big_vision"
    title = "big_vision"
    dropped = BESIDE
    suffixes = (".npz",)

    def recognises(self, found: Found) -> bool:
        return root_of(found) is not None

    def normalise(self, found: Found) -> Found:
        return plainly(found, AMONG_KIND, OLD_NAMES)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        patch = infer_encoder(found, guess, AMONG_KIND)
        if "pos_embedding" in found.tensors:
            # Files from before 2022 added positions to the class token too; big_vision then adds the two itself, and
            # tells such files by the length of the table: a square and one more.
            has_class, places = guess.fields["class_token"], found.shape("pos_embedding", 3)[1]
            entries = int(has_class and math.isqrt(places - 1) ** 2 == places - 1)
            guess.grid(places, (entries,), patch, image_size)
            guess.set(position=Learned1d(entries == has_class, "google"))
        else:
            _without_positions(guess, patch, image_size)
        pooled = f"{POOL}/probe" in found.tensors
        averaged = AttentionPool() if pooled else GlobalAverage("before")
        guess.set(pool=ClassToken() if guess.fields["class_token"] else averaged)
        guess.follow("big_vision's", norm_eps=1e-6, mlp=Gelu("tanh"))
        if pooled and not guess.fields["num_classes"]:
            squashed = Preprocessing(fit="squash", interpolation="bilinear")
            guess.assume("that of SigLIP, which resizes to the square", preprocessing=squashed)
        else:
            cropped = Preprocessing(crop_fraction=0.875, interpolation="bilinear")
            guess.assume(
                "that of big_vision's classifiers: 256 pixels, of which 224 are cut out", preprocessing=cropped
            )

    def table(self, config: ViTConfig) -> list[Row]:
        table = patch_rows()
        if config.class_token:
            table.append(row("prefix.class_token", "cls"))
        if isinstance(config.position, Learned1d):
            entries = int(config.class_token and config.position.prefix_entries)
            tables = ("position.prefix", "position.table") if entries else ("position.table",)
            table.append(row(tables, "pos_embedding", positions(entries, config.grid)))
        table += encoder_rows(config, AMONG_KIND)
        if isinstance(config.pool, AttentionPool):
            table += _pool_rows(config.num_heads)
        return table + head_rows(config)

    def obstacles(self, config: ViTConfig) -> list[str]:
        lines = flax_obstacles(config, "big_vision")
        if config.stem is not None:
            lines.append("stem: big_vision has none")
        if not isinstance(config.position, Learned1d) and config.position != SinCos2d("big_vision"):
            known = f"one learned vector per patch, or {SinCos2d('big_vision')}"
            lines.append(f"position {config.position}: big_vision has {known}")
        if isinstance(config.position, Learned1d) and (line := _misread(config, config.position)):
            lines.append(line)
        expected = (ClassToken(),) if config.class_token else (GlobalAverage("before"), AttentionPool())
        if config.pool not in expected:
            token = "with" if config.class_token else "without"
            lines.append(f"pool {config.pool}: {token} a class token, big_vision has {' or '.join(map(str, expected))}")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        return flax_losses(config, "big_vision")

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_model(tensors, path, root="params/")


def _without_positions(guess: Inference, patch: Size, image_size: Any) -> None:
    """Sines and cosines are computed where they are needed, so nothing tells the size; it hardly matters, either."""
    guess.assume("there are no learned positions", position=SinCos2d("big_vision"))
    given = guess.overrides.get("image_size", image_size)
    if given is not None:
        guess.set(image_size=as_size(given))
    else:
        usual = tuple(max(224 // side, 1) * side for side in patch)
        guess.follow("the usual one; nothing in the file depends on it", image_size=usual)


def _misread(config: ViTConfig, position: Learned1d) -> str:
    """big_vision knows a table with an entry for the class token only by its length, a square and one more."""
    entries = config.class_token and position.prefix_entries
    patches = math.prod(config.grid)
    if entries and math.isqrt(patches) ** 2 != patches:
        return f"position with an entry for the class token, and {patches} patches: big_vision needs a square of them"
    if not entries and patches > 1 and math.isqrt(patches - 1) ** 2 == patches - 1:
        return (
            f"position for {patches} patches: as {patches - 1} are a square, big_vision takes the first for a token's"
        )
    return ""


def _pool_rows(heads: int) -> list[Row]:
    attention = f"{POOL}/MultiHeadDotProductAttention_0"
    table = [row("pool.attention.query", f"{POOL}/probe")]
    table += into_heads("pool.attention", attention, heads)
    table += out_of_heads("pool.attention.output", f"{attention}/out", heads)
    return table + norm("pool.norm", f"{POOL}/LayerNorm_0") + mlp("pool.mlp", f"{POOL}/MlpBlock_0")
