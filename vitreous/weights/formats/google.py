"""Google's `.npz` checkpoints: plain and hybrid models published with the ViT and AugReg papers.

Names follow google-research/vision_transformer (`models_vit.py`, `models_resnet.py`, `checkpoint.py`). The flax layers
are shared with big_vision. Kernels are [in, out] in dense layers, [height, width, in, out] in convolutions, and, in
attention, [width, heads, head_dim] (query, key, value) or [heads, head_dim, width] (output). File variants follow
`big_vision/utils.py` (load_params, recover_dtype) and `big_vision/models/vit.py` (fix_old_checkpoints, scan_to_pyloop).
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from vitreous.common.checks import Size
from vitreous.model.base_config import MAX_DEPTH
from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    ClassToken,
    Gelu,
    GlobalAverage,
    Learned1d,
    MlpHead,
    Preprocessing,
    ResNetStem,
    TanhHead,
)
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.mapping import TRANSPOSE, Row, per_layer, position_table, reshape, row, single
from vitreous.weights.formats.timm.format import stem_units
from vitreous.weights.io.errors import BadCheckpoint

# ---- Flax layers -----------------------------------------------------------------------------------------------------

BLOCK = "Transformer/encoderblock_{i}"
CONVOLUTION = single(lambda x: x.permute(3, 2, 0, 1).contiguous(), lambda x: x.permute(2, 3, 1, 0).contiguous())


class LayerNumbers(NamedTuple):
    """Numbers that flax appends to the layer names in a block."""

    attention: int
    mlp_norm: int
    mlp: int


NUMBERED_OVERALL = LayerNumbers(attention=1, mlp_norm=2, mlp=3)  # over all layer types, as in Google's released files
NUMBERED_BY_TYPE = LayerNumbers(attention=0, mlp_norm=1, mlp=0)  # per layer type, as in flax.linen


def renumbering(numbers: LayerNumbers) -> tuple[tuple[str, str], ...]:
    """Return the regular-expression replacements that rename layers of the other numbering to `numbers`."""
    other = NUMBERED_OVERALL if numbers == NUMBERED_BY_TYPE else NUMBERED_BY_TYPE
    types = ("MultiHeadDotProductAttention", "LayerNorm", "MlpBlock")  # in the order of LayerNumbers
    block = r"^(Transformer/encoderblock_\d+/)"
    return tuple(
        (rf"{block}{layer}_{a}/", rf"\g<1>{layer}_{b}/") for layer, a, b in zip(types, other, numbers, strict=True)
    )


class FlaxFormat(Format):
    """Base class of formats with flax arrays in an `.npz` file. Subclasses define positions, pooling and stem."""

    numbers: ClassVar[LayerNumbers]
    signatures: ClassVar[Sequence[Sequence[str]]] = (("embedding/kernel", "Transformer/encoder_norm/scale"),)
    roots = ("", "opt/target/", "params/", "params/img/", "img/")  # alone, or with optimizer state or a text model
    # Optimizer state, timing, the text model, and the temperature and bias of its logits.
    ignored = (r"opt/.*", r"chrono/.*", r"(params/)?txt/.*", r"(params/)?[tb]")
    suffixes = (".npz",)
    missing: ClassVar[Sequence[str]] = (
        *("pad", "registers", "distillation_token", "qk_norm", "layer_scale", "SwiGLU", "models without qkv_bias"),
        *("patch_norm", "head_dim", "qk_scale"),
    )
    gelu = "tanh"

    def normalise(self, state: StateDict) -> StateDict:
        return super().normalise(_unstacked(state, self.root(state) or ""))

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        if isinstance(config.head, MlpHead) and config.num_classes:
            lines.append(f"MlpHead is not supported by {self.title}")
        return lines

    def infer_encoder(self, state: StateDict, builder: ConfigBuilder) -> Size:
        """Set the patch, encoder and head fields. Return the patch size."""
        height, breadth, channels, width = state.shape("embedding/kernel", 4)
        first = BLOCK.replace("{i}", "0")
        query = f"{first}/MultiHeadDotProductAttention_{self.numbers.attention}/query/kernel"
        _, heads, head_dim = state.shape(query, 3)
        _, mlp_width = state.shape(f"{first}/MlpBlock_{self.numbers.mlp}/Dense_0/kernel", 2)
        builder.set(
            channels=channels,
            patch_size=(height, breadth),
            class_token="cls" in state.tensors,
            width=width,
            depth=state.count(f"{BLOCK}/LayerNorm_0/scale"),
            num_heads=heads,
            head_dim=None if heads * head_dim == width else head_dim,
            mlp_width=mlp_width,
            num_classes=state.shape("head/kernel", 2)[1] if "head/kernel" in state.tensors else 0,
        )
        if "pre_logits/kernel" in state.tensors:
            builder.set(head=TanhHead(state.shape("pre_logits/kernel", 2)[1]))
        return height, breadth

    def model_rows(self, config: ViTConfig, positions: list[Row], pool: Sequence[Row] = ()) -> list[Row]:
        """Return all rows except those of a stem. `positions` and `pool` are the rows for positions and pooling."""
        ours, attention = "encoder.blocks.{i}", f"{BLOCK}/MultiHeadDotProductAttention_{self.numbers.attention}"
        block = norm(f"{ours}.attention_norm", f"{BLOCK}/LayerNorm_0")
        block += attention_rows(f"{ours}.attention", attention, config.num_heads)
        block += norm(f"{ours}.mlp_norm", f"{BLOCK}/LayerNorm_{self.numbers.mlp_norm}")
        block += mlp(f"{ours}.mlp", f"{BLOCK}/MlpBlock_{self.numbers.mlp}")
        table = [
            row("patches.projection.weight", "embedding/kernel", CONVOLUTION),
            row("patches.projection.bias", "embedding/bias"),
            *([row("prefix.class_token", "cls")] if config.class_token else []),
            *positions,
            *per_layer(block, config.depth),
            *norm("norm", "Transformer/encoder_norm"),
            *pool,
        ]
        hidden = isinstance(config.head, TanhHead)
        if hidden:
            table += dense("head.pre_logits", "pre_logits")
        if config.num_classes:
            table += dense("head.classifier" if hidden else "head", "head")
        return table


def _unstacked(state: StateDict, root: str) -> StateDict:
    """Split the tensors that big_vision's `scan` stacks over all layers into one tensor per layer."""
    tensors: dict[str, Tensor] = {}
    stacked = f"{root}Transformer/encoderblock/"
    for name, tensor in state.tensors.items():
        if not name.startswith(stacked):
            tensors[name] = tensor
        elif tensor.ndim == 0 or tensor.shape[0] > MAX_DEPTH:
            raise BadCheckpoint(
                f"{state.path}: the first dimension of {name.removeprefix(root)} must be the depth (at most "
                f"{MAX_DEPTH}), got shape {list(tensor.shape)}"
            )
        else:
            rest = name.removeprefix(stacked)
            tensors |= {f"{root}Transformer/encoderblock_{i}/{rest}": layer for i, layer in enumerate(tensor)}
    return dataclasses.replace(state, tensors=tensors)


# ---- Rows of one layer -----------------------------------------------------------------------------------------------


def dense(ours: str, theirs: str) -> list[Row]:
    return [row(f"{ours}.weight", f"{theirs}/kernel", TRANSPOSE), row(f"{ours}.bias", f"{theirs}/bias")]


def norm(ours: str, theirs: str) -> list[Row]:
    return [row(f"{ours}.weight", f"{theirs}/scale"), row(f"{ours}.bias", f"{theirs}/bias")]


def mlp(ours: str, theirs: str) -> list[Row]:
    return dense(f"{ours}.up", f"{theirs}/Dense_0") + dense(f"{ours}.down", f"{theirs}/Dense_1")


def attention_rows(ours: str, theirs: str, heads: int) -> list[Row]:
    into_heads = single(lambda x: x.flatten(1).T.contiguous(), lambda x: x.T.reshape(x.shape[1], heads, -1))
    out_of_heads = single(lambda x: x.flatten(0, 1).T.contiguous(), lambda x: x.T.reshape(heads, -1, x.shape[0]))
    table = []
    for part in ("query", "key", "value"):
        table.append(row(f"{ours}.{part[0]}.weight", f"{theirs}/{part}/kernel", into_heads))
        table.append(row(f"{ours}.{part[0]}.bias", f"{theirs}/{part}/bias", reshape((-1,), (heads, -1))))
    table.append(row(f"{ours}.output.weight", f"{theirs}/out/kernel", out_of_heads))
    return [*table, row(f"{ours}.output.bias", f"{theirs}/out/bias")]


# ---- Google's models -------------------------------------------------------------------------------------------------

POSITIONS = "Transformer/posembed_input/pos_embedding"
GROUP_NORM = re.compile(r"(.*/)?gn(\d|_root|_proj)/(scale|bias)")


class Google(FlaxFormat):
    name = "google"
    title = "Google's vision_transformer"
    signatures = (("embedding/kernel", "Transformer/encoder_norm/scale", POSITIONS),)
    numbers = NUMBERED_OVERALL
    renames = renumbering(NUMBERED_OVERALL)
    missing = (*FlaxFormat.missing, "other positions", "positions without the class token")

    def normalise(self, state: StateDict) -> StateDict:
        """Rename tensors, and reshape GroupNorm vectors to [1, 1, 1, n] as in old flax versions."""
        state = super().normalise(state)
        tensors = {
            name: x.reshape(1, 1, 1, -1) if x.ndim == 1 and GROUP_NORM.fullmatch(name) else x
            for name, x in state.tensors.items()
        }
        return dataclasses.replace(state, tensors=tensors)

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        patch = self.infer_encoder(state, builder)
        stride = 1
        if "conv_root/kernel" in state.tensors:
            _, _, channels, width = state.shape("conv_root/kernel", 4)
            stages = range(1, 1 + state.count("block{i}/unit1/conv1/kernel", first=1))
            units = tuple(state.count(f"block{stage}/unit{{i}}/conv1/kernel", first=1) for stage in stages)
            stem = ResNetStem(units, width, "google")
            builder.set(stem=stem, channels=channels)
            stride = stem.stride
        prefix = int(builder.fields["class_token"])
        positions = state.shape(POSITIONS, 3)[1] - prefix
        builder.infer_grid(positions, (0,), (patch[0] * stride, patch[1] * stride), image_size)
        builder.set(pool=ClassToken() if prefix else GlobalAverage("before"), position=Learned1d(True, "google"))
        builder.default("vit_jax default", norm_eps=self.norm_eps, mlp=Gelu(self.gelu))
        squash = Preprocessing(fit="squash", interpolation="bilinear")
        builder.default("vit_jax default (resize to a square)", preprocessing=squash)

    def table(self, config: ViTConfig) -> list[Row]:
        ours = ("position.prefix", "position.table") if config.class_token else ("position.table",)
        positions = row(ours, POSITIONS, position_table(int(config.class_token), config.grid))
        return _stem_rows(config) + self.model_rows(config, [positions])

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        expected = ClassToken() if config.class_token else GlobalAverage("before")
        if config.pool != expected:
            token = "with" if config.class_token else "without"
            lines.append(f"{self.title} requires {expected} pooling in models {token} a class token, got {config.pool}")
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        lines = super().differences(config)
        if config.stem is not None and config.stem.numerics != "google":
            lines.append(f"the ResNet stem uses the epsilons of {config.stem.numerics}, not those of Google")
        return lines


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
    vector = reshape((-1,), (1, 1, 1, -1))
    return [row(f"{ours}.weight", f"{theirs}/scale", vector), row(f"{ours}.bias", f"{theirs}/bias", vector)]
