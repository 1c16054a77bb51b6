"""DINOv3 checkpoints of facebookresearch/dinov3.

`local_cls_norm` (in the 7B and satellite models) is only used in training and is ignored.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from vitreous.model.config import ViTConfig
from vitreous.model.options import IMAGENET, ClassToken, Gelu, Preprocessing, Rotary2d, SwiGlu
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict, how_to_set
from vitreous.weights.formats.mapping import Conversion, Row, concat, packed_rows, per_layer, row, rows
from vitreous.weights.formats.rotary import GATE_AND_UP, rotary_periods
from vitreous.weights.formats.write_checks import numeric_differences
from vitreous.weights.io.containers import TORCH_SUFFIXES
from vitreous.weights.io.errors import BadCheckpoint

PATCH, PERIODS = "patch_embed.proj.weight", "rope_embed.periods"
IMAGE_SIZE = 224  # of the published models, which have no position table
WEB = dataclasses.replace(IMAGENET, fit="squash", crop_fraction=1.0, interpolation="bilinear")
SATELLITE = dataclasses.replace(WEB, mean=(0.430, 0.411, 0.296), std=(0.213, 0.156, 0.143))
REQUIRED = (
    *("stem", "patch_norm", "pad", "models without a class token", "distillation_token", "qk_norm", "head_dim"),
    *("qk_scale", "classifier", "head of two layers", "other pooling", "rectangular patches"),
)


class DinoV3(Format):
    name = "dinov3"
    title = "DINOv3"
    signatures = ((PATCH, PERIODS),)
    renames = ((r"^blocks\.\d+\.(\d+\.)", r"blocks.\1"),)  # training may wrap blocks in chunks: blocks.{chunk}.{i}
    ignored = ("mask_token", PERIODS, r"local_cls_norm\..*", r"(dino|ibot)_head\..*")
    suffixes = TORCH_SUFFIXES
    missing = REQUIRED
    supports = ("keys without a bias", "untied_norms")
    norm_eps = 1e-5

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        width, channels, *patch = state.shape(PATCH, 4)
        names = state.tensors
        head_width = 4 * state.shape(PERIODS, 1)[0]
        gated = "blocks.0.mlp.w1.weight" in names
        builder.set(
            width=width,
            channels=channels,
            patch_size=(patch[0], patch[1]),
            depth=state.count("blocks.{i}.norm1.weight"),
            num_heads=max(width // head_width, 1),
            registers=state.shape("storage_tokens", 3)[1] if "storage_tokens" in names else 0,
            qkv_bias="blocks.0.attn.qkv.bias" in names,
            key_bias="blocks.0.attn.qkv.bias" in names and "blocks.0.attn.qkv.bias_mask" not in names,
            mlp=SwiGlu() if gated else Gelu("erf"),
            mlp_width=state.shape(f"blocks.0.mlp.{'w1' if gated else 'fc1'}.weight", 2)[0],
            layer_scale=1e-5 if "blocks.0.ls1.gamma" in names else None,
            untied_norms="cls_norm.weight" in names,
            position=_position(state, builder, head_width),
            pool=ClassToken(),
            num_classes=0,
        )
        side = image_side(patch)
        builder.default("DINOv3 default", norm_eps=self.norm_eps, image_size=(side[0], side[1]))
        satellite = "sat493m" in state.path.name
        builder.assume_preprocessing("DINOv3 default", published_preprocessing(satellite), certain=True)

    def table(self, config: ViTConfig) -> list[Row]:
        table = [*rows("patches.projection", "patch_embed.proj"), row("prefix.class_token", "cls_token")]
        if config.registers:
            table.append(row("prefix.registers", "storage_tokens"))
        table += per_layer(_block(config), config.depth)
        if config.untied_norms:
            return [*table, *rows("norm.prefix", "cls_norm"), *rows("norm.patches", "norm")]
        return table + rows("norm", "norm")

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config) + rotary_problems(config, "DINOv3")
        if isinstance(config.position, Rotary2d) and config.position.base != Rotary2d.base:
            lines.append(f"DINOv3 requires position.base = {Rotary2d.base:g}, got {config.position.base:g}")
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        return numeric_differences(config, self.title, self.norm_eps)

    def extra_tensors(self, config: ViTConfig) -> dict[str, Tensor]:
        assert isinstance(config.position, Rotary2d)
        dtype = torch.bfloat16 if config.position.period_dtype == "bfloat16" else torch.float32
        periods = rotary_periods(config.head_width, config.position.base, dtype)
        return {"mask_token": torch.zeros(1, config.width), PERIODS: periods.float()}


def image_side(patch: list[int]) -> list[int]:
    """Return the height and width of 224-pixel images, rounded to whole patches."""
    return [max(round(IMAGE_SIZE / side), 1) * side for side in patch]


def published_preprocessing(satellite: bool) -> Preprocessing:
    """Return the preprocessing in DINOv3's README for models of web images or satellite images."""
    return SATELLITE if satellite else WEB


def rotary_problems(config: ViTConfig, system: str) -> list[str]:
    """Return a line if the positions are not those of DINOv3."""
    position = config.position
    if not isinstance(position, Rotary2d):
        return [f"{system} requires Rotary2d positions, got {type(position).__name__}"]
    if position.coordinates != "edges" or position.learned is not None:
        return [f"{system} requires 'edges' coordinates without learned positions, got {position}"]
    return []


def _position(state: StateDict, builder: ConfigBuilder, head_width: int) -> Rotary2d:
    """Return the positions whose periods are in the checkpoint. Published files contain them rounded to bfloat16."""
    stored = state.tensors[PERIODS].float()
    exact = rotary_periods(head_width, Rotary2d.base)
    if torch.equal(stored, exact.bfloat16().float()):
        return Rotary2d(period_dtype="bfloat16")
    if not torch.allclose(stored, exact, rtol=1e-6) and "position" not in builder.overrides:
        raise BadCheckpoint(
            f"{state.path}: {PERIODS} must be those of base {Rotary2d.base:g}, got {stored[:4].tolist()}, ...; "
            f"for another base, {how_to_set('position')}"
        )
    return Rotary2d()


# ---- The table -------------------------------------------------------------------------------------------------------


def _block(config: ViTConfig) -> list[Row]:
    ours, theirs = "encoder.blocks.{i}", "blocks.{i}"
    qkv = [f"{ours}.attention.{part}" for part in "qkv"]
    table = rows(f"{ours}.attention_norm", f"{theirs}.norm1") + rows(f"{ours}.mlp_norm", f"{theirs}.norm2")
    table += packed_rows(qkv, f"{theirs}.attn.qkv", parts=("weight",))
    if config.qkv_bias and config.key_bias:
        table += packed_rows(qkv, f"{theirs}.attn.qkv", parts=("bias",))
    elif config.qkv_bias:
        biases = (f"{ours}.attention.q.bias", f"{ours}.attention.v.bias")
        table.append(row(biases, (f"{theirs}.attn.qkv.bias", f"{theirs}.attn.qkv.bias_mask"), MASKED_BIAS))
    table += rows(f"{ours}.attention.output", f"{theirs}.attn.proj")
    if config.layer_scale is not None:
        table.append(row(f"{ours}.attention_scale.factor", f"{theirs}.ls1.gamma"))
        table.append(row(f"{ours}.mlp_scale.factor", f"{theirs}.ls2.gamma"))
    if not isinstance(config.mlp, SwiGlu):
        return table + rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1") + rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")
    for part in ("weight", "bias"):
        separate = (f"{theirs}.mlp.w1.{part}", f"{theirs}.mlp.w2.{part}")
        table.append(row(f"{ours}.mlp.gate_and_up.{part}", separate, GATE_AND_UP))
    return table + rows(f"{ours}.mlp.down", f"{theirs}.mlp.w3")


def _read_bias(theirs: list[Tensor]) -> list[Tensor]:
    q, _, v = theirs[0].chunk(3)
    return [q, v]


def _write_bias(ours: list[Tensor]) -> list[Tensor]:
    q, v = ours
    return [concat([q, torch.zeros_like(q), v]), concat([torch.ones_like(q), torch.zeros_like(q), torch.ones_like(q)])]


# The packed bias, and a mask that removes the bias of keys.
MASKED_BIAS = Conversion(_read_bias, _write_bias)
