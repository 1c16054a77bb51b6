"""timm checkpoints of the class `Eva`: EVA, EVA-02, DINOv3, RoPE-ViT and `vit_*_rope_reg*_gap_256`.

Models differ in which layers are packed. `normalise` separates them, so that the table has one name for each tensor,
and `packed` packs them as in the published models.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model import options
from vitreous.model.config import ViTConfig
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import Row, concat, per_layer, position_table, row, rows
from vitreous.weights.formats.rotary import GATE_AND_UP, has_neighbours, has_x_first, heads_order
from vitreous.weights.formats.timm.config import TimmConfig, config_document, is_eva, timm_preprocessing
from vitreous.weights.formats.timm.format import has_norms_after
from vitreous.weights.formats.write_checks import (
    margin_differences,
    numeric_differences,
    resize_differences,
)
from vitreous.weights.io.errors import BadCheckpoint

PATCH, BLOCK = "patch_embed.proj.weight", "blocks.0"


@dataclasses.dataclass(frozen=True)
class Family:
    """Arguments of timm's `Eva` that tensors do not show, with the values of a family of published models."""

    rope_type: str | None  # None: no rotary positions
    temperature: float = 10_000.0
    reference_grid: Size | None = None
    x_first: bool = False
    norm_eps: float = 1e-6
    pool: options.PoolConfig = options.ClassToken()  # if there is no norm after pooling
    image_size: int = 224
    preprocessing: options.Preprocessing = options.IMAGENET


def _timm(preprocessing: options.Preprocessing, crop_fraction: float) -> options.Preprocessing:
    return dataclasses.replace(preprocessing, crop_fraction=crop_fraction, geometry="timm")


EVA_CLIP, SBB = _timm(options.CLIP, 0.9), _timm(options.Preprocessing(), 0.95)
DINOV3 = Family(
    *("dinov3", 100.0), norm_eps=1e-5, pool=options.GlobalAverage(), image_size=256,
    preprocessing=_timm(options.IMAGENET, 1.0),
)  # fmt: skip
EVA02 = Family("cat", reference_grid=(16, 16), preprocessing=EVA_CLIP)
EVA = Family(None, preprocessing=EVA_CLIP)
AVERAGED = Family("cat", reference_grid=(16, 16), image_size=256, preprocessing=SBB)
AXIAL = Family("cat", 100.0, x_first=True, preprocessing=_timm(options.IMAGENET, 0.9))
MIXED = Family("mixed", 10.0, x_first=True, preprocessing=_timm(options.IMAGENET, 0.9))
FAMILIES = {
    r"vit_.*_dinov3(_qkvb)?": DINOV3,
    r"vit_.*_lingbot": dataclasses.replace(DINOV3, pool=options.ClassToken(), image_size=512),
    r"eva02_(tiny|small|base|large)_.*": EVA02,
    r"eva_giant_.*": EVA,
    r"vit_.*_rope_reg\d+_gap_\d+": AVERAGED,
    r"vit_.*_rope(_ape)?_\d+": AXIAL,
    r"vit_.*_rope_mixed(_ape)?_\d+": MIXED,
}
HEADS = {"vit_huge_plus_patch16_dinov3": 20, "vit_7b_patch16_dinov3": 32}
# Tensors of unsupported parts.
PARTS = {
    r"relative_position_bias_table|rel_pos": "relative positions (rel_pos): BEiT needs a table for each layer",
    r"\.attn\.gate\.": "a gate on the attention output",
}


class TimmEva(Format):
    name = "timm"
    title = "timm"
    signatures = ((PATCH, f"{BLOCK}.attn.qkv.weight"), (PATCH, f"{BLOCK}.attn.q_proj.weight"))
    missing = (
        *("stem", "patch_norm", "distillation_token", "head_dim", "qk_scale", "head of two layers"),
        "partial patches",
    )
    supports = ("keys without a bias", "attention_output_norm", "SwiGLU with a norm")

    def confirms(self, state: StateDict) -> bool:
        return is_eva(state)

    def normalise(self, state: StateDict) -> StateDict:
        tensors = dict(super().normalise(state).tensors)
        for name in list(tensors):
            if name.endswith((".attn.qkv.weight", ".attn.qkv.bias")):
                packed, (root, kind) = tensors.pop(name), name.rsplit("qkv.", 1)
                tensors |= {f"{root}{part}_proj.{kind}": x for part, x in zip("qkv", packed.chunk(3), strict=True)}
            elif name.endswith((".attn.q_bias", ".attn.v_bias")):
                tensors[name.removesuffix("_bias") + "_proj.bias"] = tensors.pop(name)
            elif ".mlp.fc1." in name and _is_gated(tensors, name):
                root, kind = name.rsplit("fc1.", 1)
                gate, up = tensors.pop(name).chunk(2)
                tensors |= {f"{root}fc1_g.{kind}": gate, f"{root}fc1_x.{kind}": up}
        return dataclasses.replace(state, tensors=tensors)

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        config, names = TimmConfig.of(state), state.tensors
        architecture = config.architecture
        _check_parts(state, architecture)
        family = _family(architecture) or _assumed_family(state)
        width, channels, *patch = state.shape(PATCH, 4)
        gated = f"{BLOCK}.mlp.fc1_g.weight" in names
        builder.set(
            width=width,
            channels=channels,
            patch_size=(patch[0], patch[1]),
            depth=state.count("blocks.{i}.norm1.weight"),
            class_token="cls_token" in names,
            registers=state.shape("reg_token", 3)[1] if "reg_token" in names else 0,
            qkv_bias=f"{BLOCK}.attn.q_proj.bias" in names,
            key_bias=f"{BLOCK}.attn.k_proj.bias" in names,
            qk_norm=f"{BLOCK}.attn.q_norm.weight" in names,
            attention_output_norm=f"{BLOCK}.attn.norm.weight" in names,
            mlp=options.SwiGlu(norm=f"{BLOCK}.mlp.norm.weight" in names) if gated else options.Gelu("erf"),
            mlp_width=state.shape(f"{BLOCK}.mlp.fc2.weight", 2)[1],
            layer_scale=1e-5 if f"{BLOCK}.gamma_1" in names else None,
            num_classes=state.shape("head.weight", 2)[0] if "head.weight" in names else 0,
        )
        _set_heads(state, builder, config, architecture)
        _set_positions(state, builder, config, family, image_size)
        _set_pool(state, builder, config, family)
        if not architecture:
            reason = "as in the published models with these tensors; a timm name in the path makes it certain"
            builder.assume(reason, position=builder.fields["position"], norm_eps=family.norm_eps)
        else:
            builder.set(norm_eps=family.norm_eps)
        if config.pretrained_cfg:
            labels = config.labels(builder.fields["num_classes"])
            builder.set(preprocessing=config.preprocessing(channels), labels=labels)
        else:
            builder.assume_preprocessing("timm default for these models", family.preprocessing)

    def table(self, config: ViTConfig) -> list[Row]:
        table = rows("patches.projection", "patch_embed.proj")
        if config.class_token:
            table.append(row("prefix.class_token", "cls_token"))
        if config.registers:
            table.append(row("prefix.registers", "reg_token"))
        if config.learned_position is not None:
            root = "position" if isinstance(config.position, options.Learned1d) else "position.learned"
            entries = int(config.class_token and config.learned_position.prefix_entries)
            tables = (f"{root}.prefix", f"{root}.table") if entries else (f"{root}.table",)
            table.append(row(tables, "pos_embed", position_table(entries, config.grid)))
        if isinstance(config.position, options.MixedRotary2d):
            table.append(row("position.frequencies", "rope.freqs"))
        table += per_layer(_block(config), config.depth)
        after = config.pool == options.GlobalAverage("after")
        table += rows("pool.norm", "fc_norm") if after else rows("norm", "norm")
        return table + (rows("head", "head") if config.num_classes else [])

    # ---- Writing ----

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines, position, learned = super().unsupported(config), config.position, config.learned_position
        if not isinstance(position, options.Learned1d | options.Rotary2d | options.MixedRotary2d):
            lines.append(f"timm's Eva requires learned or rotary positions, got {type(position).__name__}")
        elif isinstance(position, options.Learned1d) and (config.key_bias or not config.qkv_bias):
            lines.append("timm's Eva requires rotary positions, or a bias on queries and values but not on keys")
        if learned is not None and learned.prefix_entries and config.registers:
            lines.append("timm's Eva requires positions without prefix_entries with registers")
        if isinstance(config.pool, options.AttentionPool):
            lines.append("AttentionPool is not supported by timm's Eva")
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        eps = config.norm_eps if folder and config.norm_eps in ARCHITECTURES else _published_family(config).norm_eps
        lines = numeric_differences(config, "timm's Eva", eps)
        if isinstance(config.position, options.Rotary2d) and config.position.period_dtype != "float32":
            lines.append("the periods of rotary positions are rounded to bfloat16 in Vitreous, but not in timm")
        return lines

    def minor_differences(self, config: ViTConfig) -> list[str]:
        theirs = timm_preprocessing(config)
        return resize_differences(config, theirs, "timm") or margin_differences(config, theirs, "timm")

    def packed(self, tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
        """Pack layers as in the published models. EVA-02's models with norms inside have only separate layers."""
        packed = dict(tensors)
        inner_norm = config.mlp == options.SwiGlu(norm=True)
        for i in range(config.depth):
            attention, mlp = f"blocks.{i}.attn", f"blocks.{i}.mlp"
            if not inner_norm:
                packed[f"{attention}.qkv.weight"] = concat(
                    [packed.pop(f"{attention}.{part}_proj.weight") for part in "qkv"]
                )
                biases = {part: packed.pop(f"{attention}.{part}_proj.bias", None) for part in "qkv"}
                found = {part: bias for part, bias in biases.items() if bias is not None}
                if len(found) == 3:
                    packed[f"{attention}.qkv.bias"] = concat(list(found.values()))
                else:
                    packed |= {f"{attention}.{part}_bias": bias for part, bias in found.items()}
            if _packs_gate(config):
                for kind in ("weight", "bias"):
                    halves = [packed.pop(f"{mlp}.fc1_{half}.{kind}") for half in "gx"]
                    packed[f"{mlp}.fc1.{kind}"] = concat(halves)
        return packed

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if path.is_dir():
            (path / "config.json").write_text(json.dumps(eva_config(config), indent=2) + "\n", encoding="utf-8")


# ---- The table -------------------------------------------------------------------------------------------------------


def _block(config: ViTConfig) -> list[Row]:
    ours, theirs, order = "encoder.blocks.{i}", "blocks.{i}", heads_order(config)
    table = rows(f"{ours}.attention_norm", f"{theirs}.norm1") + rows(f"{ours}.mlp_norm", f"{theirs}.norm2")
    for part in "qkv":
        conversion = None if part == "v" else order
        table.append(row(f"{ours}.attention.{part}.weight", f"{theirs}.attn.{part}_proj.weight", conversion))
        if config.qkv_bias and (part != "k" or config.key_bias):
            table.append(row(f"{ours}.attention.{part}.bias", f"{theirs}.attn.{part}_proj.bias", conversion))
        if config.qk_norm and part != "v":
            for kind in ("weight", "bias"):
                names = f"{ours}.attention.{part}_norm.{kind}", f"{theirs}.attn.{part}_norm.{kind}"
                table.append(row(*names, order))
    if config.attention_output_norm:
        table += rows(f"{ours}.attention.output_norm", f"{theirs}.attn.norm")
    table += rows(f"{ours}.attention.output", f"{theirs}.attn.proj")
    if config.layer_scale is not None:
        table.append(row(f"{ours}.attention_scale.factor", f"{theirs}.gamma_1"))
        table.append(row(f"{ours}.mlp_scale.factor", f"{theirs}.gamma_2"))
    if isinstance(config.mlp, options.SwiGlu):
        for kind in ("weight", "bias"):
            separate = (f"{theirs}.mlp.fc1_g.{kind}", f"{theirs}.mlp.fc1_x.{kind}")
            table.append(row(f"{ours}.mlp.gate_and_up.{kind}", separate, GATE_AND_UP))
        table += rows(f"{ours}.mlp.norm", f"{theirs}.mlp.norm") if config.mlp.norm else []
    else:
        table += rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1")
    return table + rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")


def _is_gated(tensors: Mapping[str, Tensor], name: str) -> bool:
    """Return True if the tensor of `mlp.fc1` has both halves of a gated MLP."""
    down = tensors.get(f"{name.rsplit('fc1.', 1)[0]}fc2.weight")
    return down is not None and down.ndim == 2 and tensors[name].shape[0] == 2 * down.shape[1]


def _packs_gate(config: ViTConfig) -> bool:
    """Return True for EVA-02's small models. In DINOv3 and in models with a norm inside, the gate is separate."""
    return config.mlp == options.SwiGlu() and has_neighbours(config)


# ---- Reading ---------------------------------------------------------------------------------------------------------


def _check_parts(state: StateDict, architecture: str) -> None:
    """Raise BadCheckpoint if the model has unsupported parts."""
    parts = [part for pattern, part in PARTS.items() if any(re.search(pattern, name) for name in state.tensors)]
    if f"{BLOCK}.norm1.bias" not in state.tensors:
        parts.append("norms without a bias, such as RMSNorm in Sapiens2")
    if has_norms_after(state):
        parts.append("norms after the layers instead of before them (norm1 follows attn), as in EVA02-CLIP-E")
    known = f" ({architecture})" if architecture else ""
    if parts:
        raise BadCheckpoint(f"{state.path} is a timm model{known} with unsupported features: {'; '.join(parts)}")
    if architecture and _family(architecture) is None:
        raise BadCheckpoint(f"{state.path} is timm's {architecture}, which is not supported")


def _family(architecture: str) -> Family | None:
    return next((family for names, family in FAMILIES.items() if re.fullmatch(names, architecture)), None)


def _assumed_family(state: StateDict) -> Family:
    """Return the family of the published models that have these tensors."""
    names = state.tensors
    if "rope.freqs" in names:
        return MIXED
    if "pos_embed" in names:
        return EVA02 if f"{BLOCK}.mlp.fc1_g.weight" in names else EVA
    if "cls_token" not in names:
        return AVERAGED
    return DINOV3 if "reg_token" in names else AXIAL


def _set_heads(state: StateDict, builder: ConfigBuilder, config: TimmConfig, architecture: str) -> None:
    published = HEADS.get(architecture.removesuffix("_qkvb"))
    if (heads := config.num_heads or published) is not None:
        builder.set(num_heads=heads)
    elif "rope.freqs" in state.tensors:
        builder.set(num_heads=state.shape("rope.freqs", 4)[2])
    else:
        builder.infer_heads(builder.fields["width"], published=bool(architecture))


def _set_positions(
    state: StateDict, builder: ConfigBuilder, config: TimmConfig, family: Family, image_size: Any
) -> None:
    learned, fields = None, builder.fields
    native = config.image_size
    if "pos_embed" in state.tensors:
        prefix = fields["class_token"] + fields["registers"]
        choices = {None: (prefix, 0), True: (prefix,), False: (0,)}[config.prefix_entries]
        positions = state.shape("pos_embed", 3)[1]
        own = builder.infer_grid(positions, choices, fields["patch_size"], image_size, native)
        learned = options.Learned1d(prefix_entries=own == prefix, interpolation="timm")
    elif native is not None:
        builder.set(image_size=native)
    else:
        side = (max(round(family.image_size / patch), 1) * patch for patch in fields["patch_size"])
        builder.default("timm default for these models", image_size=tuple(side))
    builder.set(position=_position(_with_arguments(family, config), learned))


def _with_arguments(family: Family, config: TimmConfig) -> Family:
    """Apply the arguments in config.json. Reject those whose positions are not supported."""
    args = config.args

    def fail(name: str, accepted: str) -> None:
        raise BadCheckpoint(f"{config.path}: {name} must be {accepted}, got {args.get(name)!r:.80}")

    kind = args.get("rope_type", family.rope_type or "cat")
    if not args.get("use_rot_pos_emb", family.rope_type is not None):
        return dataclasses.replace(family, rope_type=None)
    if kind not in ("cat", "mixed", "dinov3"):
        fail("rope_type", "'cat', 'mixed' or 'dinov3'")
    temperature = args.get("rope_temperature", family.temperature)
    if type(temperature) not in (int, float):
        fail("rope_temperature", "a number")
    grid = args.get("ref_feat_shape", family.reference_grid)
    sides = [grid, grid] if type(grid) is int else grid
    if sides is not None and not (isinstance(sides, list | tuple) and [type(side) for side in sides] == [int, int]):
        fail("ref_feat_shape", "two integers")
    reference = None if sides is None or kind != "cat" else (sides[0], sides[1])
    x_first = args.get("rope_grid_indexing", "xy" if family.x_first else "ij") == "xy"
    if kind != "dinov3" and x_first != (reference is None):
        fail("rope_grid_indexing", "'xy' without ref_feat_shape and 'ij' with it")
    if args.get("rope_rotate_half", kind == "dinov3") != (kind == "dinov3"):
        fail("rope_rotate_half", f"{str(kind == 'dinov3').lower()} for rope_type {kind!r}")
    if args.get("rope_grid_offset"):
        fail("rope_grid_offset", "0")
    return dataclasses.replace(family, rope_type=kind, temperature=float(temperature), reference_grid=reference)


def _position(family: Family, learned: options.Learned1d | None) -> options.PositionConfig:
    match family.rope_type:
        case "cat":
            return options.Rotary2d(family.temperature, "index", family.reference_grid, learned=learned)
        case "mixed":
            return options.MixedRotary2d(family.temperature, learned)
        case "dinov3":
            return options.Rotary2d(family.temperature, learned=learned)
    return learned or options.NoPosition()


def _set_pool(state: StateDict, builder: ConfigBuilder, config: TimmConfig, family: Family) -> None:
    stated = config.pool
    if stated not in (None, "avg", "token"):
        raise BadCheckpoint(f"{state.path}: global_pool must be 'avg' or 'token', got {stated!r}")
    if "fc_norm.weight" in state.tensors:
        builder.set(pool=options.GlobalAverage("after"))
    elif stated is not None:
        builder.set(pool=options.GlobalAverage("before") if stated == "avg" else options.ClassToken())
    elif config.architecture:
        builder.set(pool=family.pool)
    else:
        builder.assume("as in the published models with these tensors; global_pool may differ", pool=family.pool)


# ---- config.json -----------------------------------------------------------------------------------------------------

# Architectures by the eps of their norms, which `model_args` cannot change. They specify everything else.
ARCHITECTURES = {1e-6: "eva02_tiny_patch14_224", 1e-5: "vit_small_patch16_dinov3"}


def _published_family(config: ViTConfig) -> Family:
    """Return the family of the published models with the positions of `config`."""
    edges = isinstance(config.position, options.Rotary2d) and config.position.coordinates == "edges"
    return DINOV3 if edges else EVA02


def eva_config(config: ViTConfig) -> dict[str, Any]:
    """Return the config.json from which `timm.create_model("local-dir:FOLDER", pretrained=True)` builds the model."""
    position, learned, mlp = config.position, config.learned_position, config.mlp
    inner_norm = mlp == options.SwiGlu(norm=True)
    gated = isinstance(mlp, options.SwiGlu)
    args: dict[str, Any] = {
        "img_size": list(config.image_size),
        "dynamic_img_size": False,
        "patch_size": config.patch_size[0] if len(set(config.patch_size)) == 1 else list(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "attn_type": "rope" if config.qkv_bias and config.key_bias else "eva",
        "qkv_bias": config.qkv_bias,
        "qkv_fused": not inner_norm,
        "qk_norm": config.qk_norm,
        "scale_attn_inner": config.attention_output_norm,
        "mlp_ratio": (config.mlp_width + 0.5) / config.width,  # timm truncates mlp_ratio * embed_dim
        "swiglu_mlp": gated,
        "swiglu_align_to": 1 if gated and not _packs_gate(config) else 0,
        "scale_mlp": inner_norm,
        "init_values": config.layer_scale,
        "class_token": config.class_token,
        "num_reg_tokens": config.registers,
        "use_abs_pos_emb": learned is not None,
        "no_embed_class": learned is not None and not learned.prefix_entries,
        "use_rot_pos_emb": not isinstance(position, options.Learned1d),
        "global_pool": "avg" if isinstance(config.pool, options.GlobalAverage) else "token",
        "use_fc_norm": config.pool == options.GlobalAverage("after"),
    }
    match position:
        case options.MixedRotary2d(base):
            args |= {"rope_type": "mixed", "rope_temperature": base}
        case options.Rotary2d(base, "edges"):
            args |= {"rope_type": "dinov3", "rope_temperature": base}
        case options.Rotary2d(base, _, grid):
            args |= {
                "rope_type": "cat",
                "rope_temperature": base,
                "ref_feat_shape": None if grid is None else list(grid),
            }
    mixed = isinstance(position, options.MixedRotary2d)
    args |= {
        "rope_rotate_half": args.get("rope_type") == "dinov3",
        "rope_grid_indexing": "xy" if mixed or has_x_first(config) else "ij",
    }
    architecture = ARCHITECTURES.get(config.norm_eps, ARCHITECTURES[_published_family(config).norm_eps])
    return config_document(config, architecture, args)
