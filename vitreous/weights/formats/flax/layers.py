"""What the files of Google's two codebases, vit_jax and big_vision, have in common: flax's names and shapes of layers.

A kernel is [in, out], that of a convolution [height, width, in, out], and those of attention have an axis for the
heads: [width, heads, head_dim] going in, [heads, head_dim, width] coming out. So these tensors tell how many heads
there are.
"""

from typing import NamedTuple

from vitreous.model.config import ViTConfig
from vitreous.model.options import Gelu, MlpHead, SwiGlu, TanhHead
from vitreous.weights.formats.base import Found, Inference
from vitreous.weights.formats.mapping import TRANSPOSED, Row, one, repeated, row, shaped
from vitreous.weights.formats.timm.layout import part_obstacles

BLOCK = "Transformer/encoderblock_{i}"


class Numbers(NamedTuple):
    """What flax appends to the names of a block's layers: their place among all of them, or among those of a kind."""

    attention: int
    mlp_norm: int
    mlp: int


AMONG_ALL = Numbers(attention=1, mlp_norm=2, mlp=3)  # before its "linen": Google's released files
AMONG_KIND = Numbers(attention=0, mlp_norm=1, mlp=0)


# ---- The table -------------------------------------------------------------------------------------------------------

CONVOLUTION = one(lambda x: x.permute(3, 2, 0, 1).contiguous(), lambda x: x.permute(2, 3, 1, 0).contiguous())


def dense(ours: str, theirs: str) -> list[Row]:
    return [row(f"{ours}.weight", f"{theirs}/kernel", TRANSPOSED), row(f"{ours}.bias", f"{theirs}/bias")]


def norm(ours: str, theirs: str) -> list[Row]:
    return [row(f"{ours}.weight", f"{theirs}/scale"), row(f"{ours}.bias", f"{theirs}/bias")]


def into_heads(ours: str, theirs: str, heads: int) -> list[Row]:
    """Queries, keys and values."""
    how, table = one(lambda x: x.flatten(1).T.contiguous(), lambda x: x.T.reshape(x.shape[1], heads, -1)), []
    for part in ("query", "key", "value"):
        table.append(row(f"{ours}.{part[0]}.weight", f"{theirs}/{part}/kernel", how))
        table.append(row(f"{ours}.{part[0]}.bias", f"{theirs}/{part}/bias", shaped((-1,), (heads, -1))))
    return table


def out_of_heads(ours: str, theirs: str, heads: int) -> list[Row]:
    how = one(lambda x: x.flatten(0, 1).T.contiguous(), lambda x: x.T.reshape(heads, -1, x.shape[0]))
    return [row(f"{ours}.weight", f"{theirs}/kernel", how), row(f"{ours}.bias", f"{theirs}/bias")]


def mlp(ours: str, theirs: str) -> list[Row]:
    return dense(f"{ours}.up", f"{theirs}/Dense_0") + dense(f"{ours}.down", f"{theirs}/Dense_1")


def patch_rows() -> list[Row]:
    return [
        row("patches.projection.weight", "embedding/kernel", CONVOLUTION),
        row("patches.projection.bias", "embedding/bias"),
    ]


def encoder_rows(config: ViTConfig, numbers: Numbers) -> list[Row]:
    """The blocks, and the norm after them."""
    ours, attention = "encoder.blocks.{i}", f"{BLOCK}/MultiHeadDotProductAttention_{numbers.attention}"
    block = norm(f"{ours}.attention_norm", f"{BLOCK}/LayerNorm_0")
    block += into_heads(f"{ours}.attention", attention, config.num_heads)
    block += out_of_heads(f"{ours}.attention.output", f"{attention}/out", config.num_heads)
    block += norm(f"{ours}.mlp_norm", f"{BLOCK}/LayerNorm_{numbers.mlp_norm}")
    block += mlp(f"{ours}.mlp", f"{BLOCK}/MlpBlock_{numbers.mlp}")
    return repeated(block, config.depth) + norm("norm", "Transformer/encoder_norm")


def head_rows(config: ViTConfig) -> list[Row]:
    hidden = isinstance(config.head, TanhHead)
    table = dense("head.pre_logits", "pre_logits") if hidden else []
    if config.num_classes:
        table += dense("head.classifier" if hidden else "head", "head")
    return table


# ---- What tensors tell -----------------------------------------------------------------------------------------------


def infer_encoder(found: Found, guess: Inference, numbers: Numbers) -> tuple[int, int]:
    """Patches, encoder and head; position and pooling are for the format to say. Returns the size of a patch."""
    height, breadth, channels, width = found.shape("embedding/kernel", 4)
    first = BLOCK.replace("{i}", "0")
    query = f"{first}/MultiHeadDotProductAttention_{numbers.attention}/query/kernel"
    _, heads, head_dim = found.shape(query, 3)
    _, mlp_width = found.shape(f"{first}/MlpBlock_{numbers.mlp}/Dense_0/kernel", 2)
    guess.set(
        channels=channels,
        patch_size=(height, breadth),
        class_token="cls" in found.tensors,
        width=width,
        depth=found.count(f"{BLOCK}/LayerNorm_0/scale"),
        num_heads=heads,
        head_dim=None if heads * head_dim == width else head_dim,
        mlp_width=mlp_width,
    )
    classifier = "head/kernel" in found.tensors
    guess.set(num_classes=found.shape("head/kernel", 2)[1] if classifier else 0)
    if "pre_logits/kernel" in found.tensors:
        guess.set(head=TanhHead(found.shape("pre_logits/kernel", 2)[1]))
    return height, breadth


# ---- What it has no place for ----------------------------------------------------------------------------------------


def flax_obstacles(config: ViTConfig, system: str) -> list[str]:
    """What neither codebase has; position, pooling and stem are for the format to say."""
    parts = {
        "pad": config.pad,
        "registers": config.registers > 0,
        "distillation_token": config.distillation_token,
        "qk_norm": config.qk_norm,
        "layer_scale": config.layer_scale is not None,
        "mlp SwiGlu": isinstance(config.mlp, SwiGlu),
        "head MlpHead": isinstance(config.head, MlpHead) and config.num_classes > 0,
    }
    lines = [f"{part}: {system} has none" for part, there in parts.items() if there]
    if not config.qkv_bias:
        lines.append(f"qkv_bias=False: queries, keys and values of {system} have a bias")
    return lines + part_obstacles(config, system)


def flax_losses(config: ViTConfig, system: str) -> list[str]:
    """What both compute in their own way."""
    lines = []
    if config.norm_eps != 1e-6:
        lines.append(f"LayerNorm's eps is {config.norm_eps:g}, and {system}'s is 1e-6")
    if isinstance(config.mlp, Gelu) and config.mlp.approximation != "tanh":
        lines.append(f"GELU is computed exactly, and {system} approximates it by tanh")
    return lines
