"""lucidrains' vit-pytorch: one file with the state dict of its `ViT`, of any age since 2021, or of its `SimpleViT`.

Names and numerics read from lucidrains/vit-pytorch, `vit.py` and `simple_vit.py`. A patch is flattened as (row, column,
channel), where ours is (channel, row, column). What is written is what its current `ViT` loads: it has norms around
the projection of patches and no bias on queries, keys and values, so that few models of other systems fit.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.common.checks import as_size
from vitreous.model.config import ViTConfig
from vitreous.model.options import ClassToken, Gelu, GlobalAverage, Learned1d, Preprocessing, SinCos2d
from vitreous.weights.formats.base import Format, Found, Inference, must_give
from vitreous.weights.formats.limits import absent, numeric_losses, unfit_positions, unfit_scale, unfit_sizes
from vitreous.weights.formats.mapping import How, Row, apart, one, positions, renamed, repeated, row, rows, shaped
from vitreous.weights.io.containers import TORCH_SUFFIXES, write_file
from vitreous.weights.io.safetensors_file import BadCheckpoint

LAYER = "transformer.layers.{i}"
ABSENT = ("stem", "distillation_token", "registers", "qk_norm", "layer_scale", "SwiGLU", "head of two layers")


class Lucidrains(Format):
    name = "lucidrains"
    title = "vit-pytorch"
    suffixes = TORCH_SUFFIXES
    dropped = ("cls_token",)  # of no rows, where the patches' mean is taken

    def recognises(self, found: Found) -> bool:
        return "to_patch_embedding.1.weight" in found.tensors and any(
            name.startswith("transformer.layers.0.0.") for name in found.tensors
        )

    def normalise(self, found: Found) -> Found:
        return Found(found.path, current_names(found.tensors), found.config)

    def infer(self, found: Found, guess: Inference, image_size: Any = None) -> None:
        patch_norm = "to_patch_embedding.2.weight" in found.tensors
        width, pixels = found.shape(f"to_patch_embedding.{2 if patch_norm else 1}.weight", 2)
        guess.set(
            width=width,
            depth=found.count(f"{LAYER}.0.norm.weight"),
            patch_method="linear",
            patch_norm=patch_norm,
            qkv_bias=False,
            mlp_width=found.shape("transformer.layers.0.1.net.1.weight", 2)[0],
            num_classes=found.shape("mlp_head.weight", 2)[0] if "mlp_head.weight" in found.tensors else 0,
        )
        _infer_patch(guess, pixels)
        _infer_heads(found, guess, width)
        _infer_tokens(found, guess, image_size)
        plain = Preprocessing(mean=(0.0,), std=(1.0,))
        guess.follow("vit-pytorch's", norm_eps=1e-5, mlp=Gelu("erf"))
        guess.assume("vit-pytorch has none", preprocessing=plain)

    def table(self, config: ViTConfig) -> list[Row]:
        table = _patch_rows(config)
        if isinstance(config.position, Learned1d):
            table += _token_rows(config)
        table += repeated(_block_rows(config), config.depth) + rows("norm", "transformer.norm")
        return table + (rows("head", "mlp_head") if config.num_classes else [])

    def obstacles(self, config: ViTConfig) -> list[str]:
        system = self.title
        lines = [] if config.patch_norm else [f"no patch_norm: {system} has norms around the projection of patches"]
        if config.qkv_bias:
            lines.append(f"bias on queries, keys and values: {system} has none")
        lines += absent(config, system, ABSENT) + unfit_sizes(config, system)
        lines += unfit_positions(config, system) + unfit_scale(config, system)
        if config.pool != (ClassToken() if config.class_token else GlobalAverage("before")):
            kind = "a class token" if config.class_token else "no class token"
            lines.append(f"pool {config.pool} with {kind}: {system} has ClassToken() or, without one, GlobalAverage()")
        if _has_no_output(config):
            lines.append(f"num_heads 1, as wide as the model: {system} has no output projection there")
        return lines

    def losses(self, config: ViTConfig, folder: bool = False) -> list[str]:
        return numeric_losses(config, self.title, norm_eps=1e-5)

    def additions(self, config: ViTConfig) -> dict[str, Tensor]:
        return {} if config.class_token else {"cls_token": torch.zeros(0, config.width)}

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        write_file(tensors, path)


def current_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """As the current `ViT` calls them.

    Until August 2023 norms were in wrappers, and the last one in the head; tokens had an axis for the batch until 2025.
    `SimpleViT` has no dropout to count, and no bias on the output of attention: zeros are the same.
    """
    names = renamed(tensors, [(r"(\.fn)+\.", ".")])
    if "transformer.layers.0.1.norm.weight" in names:
        changes = [(r"\.1\.net\.3\.", ".1.net.4."), (r"\.1\.net\.0\.", ".1.net.1."), (r"\.1\.norm\.", ".1.net.0.")]
        names = renamed(names, changes)
    names = renamed(names, [(r"^mlp_head\.0\.", "transformer.norm."), (r"^mlp_head\.1\.", "mlp_head.")])
    if "linear_head.weight" in names:
        changes = [(r"^linear_head\.", "mlp_head."), (r"\.1\.net\.3\.", ".1.net.4."), (r"\.to_out\.", ".to_out.0.")]
        names = renamed(names, changes)
        for name in [name for name in names if name.endswith(".to_out.0.weight")]:
            names[name.replace("weight", "bias")] = names[name].new_zeros(names[name].shape[:1])
    for name in ("cls_token", "pos_embedding"):
        if name in names and names[name].ndim == 3 and names[name].shape[0] == 1:
            names[name] = names[name][0]
    return names


# ---- The table -------------------------------------------------------------------------------------------------------


def _patch_rows(config: ViTConfig) -> list[Row]:
    (ph, pw), c, d = config.patch_size, config.channels, config.width
    filters = one(
        lambda x: x.reshape(d, ph, pw, c).permute(0, 3, 1, 2).contiguous(),
        lambda x: x.permute(0, 2, 3, 1).reshape(d, ph * pw * c),
    )
    pixels = one(
        lambda x: x.reshape(ph, pw, c).permute(2, 0, 1).flatten(),
        lambda x: x.reshape(c, ph, pw).permute(1, 2, 0).flatten(),
    )
    if not config.patch_norm:  # before February 2023
        return rows("patches.projection", "to_patch_embedding.1", filters)
    return [
        *(row(f"patches.pixel_norm.{part}", f"to_patch_embedding.1.{part}", pixels) for part in ("weight", "bias")),
        *rows("patches.projection", "to_patch_embedding.2", filters),
        *rows("patches.norm", "to_patch_embedding.3"),
    ]


def _token_rows(config: ViTConfig) -> list[Row]:
    there = positions(int(config.class_token), config.grid)
    flat = How(there.read, lambda ours: [there.write(ours)[0][0]])
    if not config.class_token:
        return [row("position.table", "pos_embedding", flat)]
    token = row("prefix.class_token", "cls_token", shaped((1, 1, config.width), (1, config.width)))
    return [token, row(("position.prefix", "position.table"), "pos_embedding", flat)]


def _block_rows(config: ViTConfig) -> list[Row]:
    ours, theirs = "encoder.blocks.{i}", LAYER
    attention, packed = f"{ours}.attention", f"{theirs}.0.to_qkv.weight"
    table = rows(f"{ours}.attention_norm", f"{theirs}.0.norm")
    parts = tuple(f"{attention}.{part}.weight" for part in "qkv")
    if _has_no_output(config):
        parts += (f"{attention}.output.weight", f"{attention}.output.bias")
        table.append(row(parts, packed, How(_with_identity, lambda ours: apart(3).write(ours[:3]))))
    else:
        table += [row(parts, packed, apart(3)), *rows(f"{attention}.output", f"{theirs}.0.to_out.0")]
    table += rows(f"{ours}.mlp_norm", f"{theirs}.1.net.0")
    return table + rows(f"{ours}.mlp.up", f"{theirs}.1.net.1") + rows(f"{ours}.mlp.down", f"{theirs}.1.net.4")


def _has_no_output(config: ViTConfig) -> bool:
    """One head as wide as the model needs no projection to get back to its width, and vit-pytorch gives it none."""
    return config.num_heads == 1 and config.head_width == config.width


def _with_identity(theirs: list[Tensor]) -> list[Tensor]:
    packed, width = theirs[0], theirs[0].shape[1]
    return [*apart(3).read(theirs), torch.eye(width, dtype=packed.dtype), packed.new_zeros(width)]


# ---- What tensors tell -----------------------------------------------------------------------------------------------


def _infer_patch(guess: Inference, pixels: int) -> None:
    """Three channels and a square, unless told otherwise."""
    channels = guess.overrides.get("channels", 3)
    side = math.isqrt(pixels // channels) if isinstance(channels, int) and channels > 0 else 0
    if "patch_size" not in guess.overrides and (not side or channels * side**2 != pixels):
        raise BadCheckpoint(
            f"{guess.path} has patches of {pixels} numbers, which are no square of {channels} channels: "
            f"{must_give('channels', 'patch_size')}"
        )
    guess.assume("patches are square, and have 3 channels", channels=channels, patch_size=(side, side))


def _infer_heads(found: Found, guess: Inference, width: int) -> None:
    inner = found.shape("transformer.layers.0.0.to_qkv.weight", 2)[0] // 3
    if "transformer.layers.0.0.to_out.0.weight" not in found.tensors:
        guess.set(num_heads=1)
        return
    heads = guess.overrides.get("num_heads", inner // 64)
    if "num_heads" not in guess.overrides and inner % 64:
        raise BadCheckpoint(
            f"{found.path} does not say how many heads it has, and all of them ({inner}) are no multiple of 64 wide: "
            f"{must_give('num_heads')}"
        )
    guess.assume("heads are 64 wide, vit-pytorch's default", num_heads=heads)
    if inner != width and isinstance(heads, int) and heads > 0:
        guess.set(head_dim=inner // heads)


def _infer_tokens(found: Found, guess: Inference, image_size: Any) -> None:
    patch = guess.overrides.get("patch_size", guess.fields["patch_size"])
    if "pos_embedding" not in found.tensors:
        guess.set(class_token=False, pool=GlobalAverage("before"), position=SinCos2d("big_vision"))
        guess.follow("positions are computed, for any size", image_size=as_size(image_size or 224))
        return
    has_class = _rows(found, "cls_token") > 0
    guess.set(class_token=has_class)
    if has_class:
        _refuse_mean(guess)
        guess.assume("vit-pytorch's default", pool=ClassToken())
    else:
        guess.set(pool=GlobalAverage("before"))
    guess.grid(found.shape("pos_embedding", 2)[0], (int(has_class),), patch, image_size)
    guess.follow("vit-pytorch takes one size only; Google's way", position=Learned1d())


def _rows(found: Found, name: str) -> int:
    shape = found.shape(name)
    if len(shape) != 2:
        raise BadCheckpoint(f"{found.path}: {name} is {list(shape)}, but must have 2 dimensions")
    return shape[0]


def _refuse_mean(guess: Inference) -> None:
    """Until November 2025 its mean was that of all tokens; ours is that of the patches."""
    pool = guess.overrides.get("pool", ClassToken())
    if (pool.get("kind") if isinstance(pool, Mapping) else type(pool).__name__) != "ClassToken":
        raise BadCheckpoint(f"{guess.path} has a class token, which vit-pytorch's mean takes in and ours leaves out")
