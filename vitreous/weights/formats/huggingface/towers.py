"""transformers checkpoints of the vision towers of CLIP, SigLIP and SigLIP 2, alone or with a text tower.

The table contains the names of `CLIPVisionModel` and `SiglipVisionModel`. With a projection, a classifier or a text
tower, they are under `vision_model.`. `Siglip2VisionModel` (NaFlex) takes patches instead of images. It is read as a
model with a fixed image size and, for other sizes, resamples positions as transformers does.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

from vitreous.model import options
from vitreous.model.config import ViTConfig
from vitreous.weights.formats.base import ConfigBuilder, Format, StateDict
from vitreous.weights.formats.huggingface.config import ACTIVATIONS, JsonFields, activation_name, labels_of
from vitreous.weights.formats.huggingface.processor import (
    infer_preprocessing,
    processor_differences,
    processor_preprocessing,
    transformers_processor,
)
from vitreous.weights.formats.mapping import (
    Conversion,
    Row,
    packed_rows,
    per_layer,
    position_table,
    reshape,
    row,
    rows,
    single,
)
from vitreous.weights.formats.write_checks import margin_differences, numeric_differences
from vitreous.weights.io.errors import BadCheckpoint

ROOT = "vision_model."
PATCHES, POSITIONS, PROJECTION = (
    "embeddings.patch_embedding",
    "embeddings.position_embedding.weight",
    "visual_projection",
)
Family = Literal["clip", "siglip", "siglip2"]


class TowerDefaults(NamedTuple):
    classes: str  # prefix of the model class names, and of the image processor's class name
    activation: str
    norm_eps: float
    preprocessing: options.Preprocessing  # of the published models


SQUASHED = options.Preprocessing(fit="squash", crop_fraction=1.0, geometry="huggingface")
FAMILIES: dict[Family, TowerDefaults] = {
    "clip": TowerDefaults("CLIP", "quick_gelu", 1e-5, dataclasses.replace(options.CLIP, geometry="huggingface")),
    "siglip": TowerDefaults("Siglip", "gelu_pytorch_tanh", 1e-6, SQUASHED),
    "siglip2": TowerDefaults("Siglip2", "gelu_pytorch_tanh", 1e-6, SQUASHED),
}
HEADS = 12  # default of transformers' configs, whose other defaults follow from the tensors
# `model_type` of a model with a text tower, and of a vision tower alone.
MODEL_TYPES = {name for family in FAMILIES for name in (family, f"{family}_vision_model")}
NAFLEX = "NaFlex resizes each image to its own grid of patches; Vitreous resizes all images to one square"
UNNORMALISED = (
    "the classifier (CLIPForImageClassification) uses the mean of patches without the final norm, which is not "
    "supported. Pass num_classes=0 to drop the classifier"
)


class HuggingFaceTower(Format):
    name = "huggingface"
    title = "transformers"
    signatures = ((f"{PATCHES}.weight", POSITIONS, "encoder.layers.0.self_attn.q_proj.weight"),)
    roots = (ROOT, "")
    # The text tower, buffers of older versions, and layers that are ignored with another pooling or head.
    ignored = (
        *(r"text_model\..*", r"text_projection\..*", "logit_scale", "logit_bias", r"embeddings\.position_ids"),
        *(rf"{PROJECTION}\.weight", r"head\..*", r"classifier\..*"),
    )
    supports = ("pre_norm", "patches without a bias", "truncate", "projection")
    missing = (
        *("stem", "patch_norm", "pad", "qk_norm", "other positions", "positions without the class token", "head_dim"),
        *("qk_scale", "models without qkv_bias", "layer_scale", "SwiGLU", "distillation_token", "registers"),
        *("rectangular images", "rectangular patches", "head of two layers"),
    )

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        family, fields = _family_in(state), _fields_of(state)
        defaults = FAMILIES[family]
        _set_patches(state, builder, family, fields)
        width, depth = state.shape(POSITIONS, 2)[1], state.count("encoder.layers.{i}.layer_norm1.weight")
        dropout = options.Dropout(attention=fields.rate("attention_dropout"))
        builder.set(width=width, depth=depth, dropout=dropout, class_token=family == "clip", pre_norm=family == "clip")
        builder.set(mlp_width=state.shape("encoder.layers.0.mlp.fc1.weight", 2)[0])
        if state.config:
            builder.set(num_heads=fields.get(int, "num_attention_heads", HEADS))
        else:
            builder.infer_heads(width)
        activation = fields.get(str, "hidden_act", defaults.activation)
        if activation not in ACTIVATIONS:
            fields.fail("hidden_act", activation, f"one of {', '.join(ACTIVATIONS)}")
        numbers = {
            "mlp": options.Gelu(ACTIVATIONS[activation]),
            "norm_eps": fields.get(float, "layer_norm_eps", defaults.norm_eps),
        }
        if state.config:
            builder.set(**numbers)
        else:
            builder.assume(f"transformers default for {defaults.classes}", **numbers)
        native = fields.size("image_size", (224, 224)) if state.config and family != "siglip2" else None
        patch = builder.fields["patch_size"]
        builder.infer_grid(state.shape(POSITIONS, 2)[0], (int(family == "clip"),), patch, image_size, native)
        interpolation: options.Interpolation = "naflex" if family == "siglip2" else "huggingface"
        builder.set(position=options.Learned1d(interpolation=interpolation))
        _set_output(state, builder, family)
        infer_preprocessing(state, builder, defaults.classes, defaults.preprocessing)
        if family == "siglip2":
            builder.assume(NAFLEX, preprocessing=builder.fields["preprocessing"])

    def table(self, config: ViTConfig) -> list[Row]:
        table = [row("patches.projection.weight", f"{PATCHES}.weight", _patches(config))]
        if config.patch_bias:
            table.append(row("patches.projection.bias", f"{PATCHES}.bias"))
        positions: tuple[str, ...] = ("position.table",)
        if config.class_token:
            table.append(row("prefix.class_token", "embeddings.class_embedding", reshape((1, 1, -1), (-1,))))
            positions = ("position.prefix", "position.table")
        table.append(row(positions, POSITIONS, position_table(int(config.class_token), config.grid, batch=False)))
        if config.pre_norm:
            table += rows("pre_norm", "pre_layrnorm")  # spelt so in transformers
        table += per_layer(_block(), config.depth) + rows("norm", "post_layernorm")
        if isinstance(config.pool, options.AttentionPool):
            table += _attention_pool()
        if config.projection is not None:
            table.append(row("projection.weight", f"{PROJECTION}.weight"))
        return table + (rows("head", "classifier") if config.num_classes else [])

    # ---- Writing ----

    def unsupported(self, config: ViTConfig) -> list[str]:
        lines = super().unsupported(config)
        clip = family_of(config) == "clip"
        name = f"transformers' {FAMILIES[family_of(config)].classes}"
        if config.pre_norm == config.patch_bias:
            lines.append(f"{name} requires patch_bias={not clip}, got {config.patch_bias}")
        if config.class_token != clip:
            lines.append(f"{name} requires class_token={clip}, got {config.class_token}")
        if clip and config.num_classes:
            lines.append(f"a classifier is not supported by {name}")
        if not clip and config.projection is not None:
            lines.append(f"projection is not supported by {name}")
        mapped = options.GlobalAverage("before") if config.num_classes else options.AttentionPool()
        expected = options.ClassToken() if clip else mapped
        if config.pool != expected:
            lines.append(f"{name} requires {expected} pooling, got {config.pool}")
        return lines

    def differences(self, config: ViTConfig, folder: bool = False) -> list[str]:
        if folder:
            return processor_differences(config)
        defaults = FAMILIES[family_of(config)]
        gelu = ACTIVATIONS[defaults.activation]
        return numeric_differences(config, f"transformers' {defaults.classes}", defaults.norm_eps, gelu)

    def minor_differences(self, config: ViTConfig) -> list[str]:
        return margin_differences(config, processor_preprocessing(config), self.title)

    def packed(self, tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
        outside = (PROJECTION, "classifier.")
        return {name if name.startswith(outside) else f"{ROOT}{name}": x for name, x in tensors.items()}

    def write(self, tensors: Mapping[str, Tensor], config: ViTConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if not path.is_dir():
            return
        dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
        documents = {
            "config.json": tower_config(config, dtype),
            "preprocessor_config.json": transformers_processor(config),
        }
        for name, document in documents.items():
            (path / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


# ---- Reading ---------------------------------------------------------------------------------------------------------


def _family_in(state: StateDict) -> Family:
    if "embeddings.class_embedding" in state.tensors:
        return "clip"
    return "siglip2" if state.tensors[f"{PATCHES}.weight"].ndim == 2 else "siglip"


def _fields_of(state: StateDict) -> JsonFields:
    """Return the fields of the vision tower in config.json, which a model with a text tower nests."""
    nested = state.config.get("vision_config", state.config)
    if not isinstance(nested, Mapping):
        raise BadCheckpoint(f"{state.path}: vision_config must be an object, got {nested!r:.80}")
    return JsonFields(state.path, nested)


def _set_patches(state: StateDict, builder: ConfigBuilder, family: Family, fields: JsonFields) -> None:
    builder.set(patch_bias=f"{PATCHES}.bias" in state.tensors)
    if family != "siglip2":
        _, channels, height, breadth = state.shape(f"{PATCHES}.weight", 4)
        builder.set(channels=channels, patch_size=(height, breadth))
        return
    pixels, channels = state.shape(f"{PATCHES}.weight", 2)[1], fields.get(int, "num_channels", 3)
    side = round((pixels / max(channels, 1)) ** 0.5)
    if channels < 1 or side**2 * channels != pixels:
        raise BadCheckpoint(f"{state.path}: a patch of {channels} channels cannot have {pixels} values")
    builder.set(channels=channels, patch_size=(side, side))


def _set_output(state: StateDict, builder: ConfigBuilder, family: Family) -> None:
    names, clip = state.tensors, family == "clip"
    pool: options.PoolConfig = options.ClassToken() if clip else options.GlobalAverage("before")
    if "head.probe" in names:
        pool = options.AttentionPool()
    builder.set(pool=pool, num_classes=0, labels=(), projection=None, head=options.LinearHead())
    if clip and f"{PROJECTION}.weight" in names:
        builder.set(projection=state.shape(f"{PROJECTION}.weight", 2)[0])
    if "classifier.weight" in names and builder.overrides.get("num_classes") != 0 and not builder.new_head:
        if clip:
            raise BadCheckpoint(f"{state.path}: {UNNORMALISED}")
        classes = state.shape("classifier.weight", 2)[0]
        labels = labels_of(state.config, classes)
        builder.set(pool=options.GlobalAverage("before"), num_classes=classes, labels=labels)


# ---- The table -------------------------------------------------------------------------------------------------------


def _patches(config: ViTConfig) -> Conversion | None:
    """Convert the weight of NaFlex for flattened patches, [d, (height, width, channel)], to a convolution."""
    if family_of(config) != "siglip2":
        return None
    (height, breadth), channels = config.patch_size, config.channels
    return single(
        lambda x: x.reshape(-1, height, breadth, channels).permute(0, 3, 1, 2).contiguous(),
        lambda x: x.permute(0, 2, 3, 1).flatten(1),
    )


def _block() -> list[Row]:
    ours, theirs = "encoder.blocks.{i}", "encoder.layers.{i}"
    table = rows(f"{ours}.attention_norm", f"{theirs}.layer_norm1") + rows(f"{ours}.mlp_norm", f"{theirs}.layer_norm2")
    for part in "qkv":
        table += rows(f"{ours}.attention.{part}", f"{theirs}.self_attn.{part}_proj")
    table += rows(f"{ours}.attention.output", f"{theirs}.self_attn.out_proj")
    return table + rows(f"{ours}.mlp.up", f"{theirs}.mlp.fc1") + rows(f"{ours}.mlp.down", f"{theirs}.mlp.fc2")


def _attention_pool() -> list[Row]:
    packed = packed_rows([f"pool.attention.{part}" for part in "qkv"], "head.attention.in_proj")
    return [
        row("pool.attention.query", "head.probe"),
        *(Row(ours, (theirs[0].replace("in_proj.", "in_proj_"),), conversion) for ours, theirs, conversion in packed),
        *rows("pool.attention.output", "head.attention.out_proj"),
        *rows("pool.norm", "head.layernorm"),
        *rows("pool.mlp.up", "head.mlp.fc1"),
        *rows("pool.mlp.down", "head.mlp.fc2"),
    ]


# ---- Writing ---------------------------------------------------------------------------------------------------------


def family_of(config: ViTConfig) -> Family:
    if config.pre_norm:
        return "clip"
    naflex = isinstance(config.position, options.Learned1d) and config.position.interpolation == "naflex"
    return "siglip2" if naflex else "siglip"


def tower_config(config: ViTConfig, dtype: str) -> dict[str, Any]:
    """Return the config.json from which `AutoModel` and `AutoModelForImageClassification` build the model."""
    family, (gh, gw) = family_of(config), config.grid
    tower: dict[str, Any] = {
        "model_type": f"{family}_vision_model",
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "num_channels": config.channels,
        "patch_size": config.patch_size[0],
        "hidden_act": activation_name(config),
        "layer_norm_eps": config.norm_eps,
        "attention_dropout": config.dropout.attention,
    }
    tower |= {"num_patches": gh * gw} if family == "siglip2" else {"image_size": config.image_size[0]}
    classes = FAMILIES[family].classes
    if config.projection is not None:
        tower |= {"architectures": [f"{classes}VisionModelWithProjection"], "projection_dim": config.projection}
        return tower | {"dtype": dtype}
    if not config.num_classes:
        return tower | {"architectures": [f"{classes}VisionModel"], "dtype": dtype}
    labels = config.labels or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    return {
        "architectures": [f"{classes}ForImageClassification"],
        "model_type": family,
        "vision_config": tower | {"vision_use_head": False},  # the classifier uses the mean of the patches
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "dtype": dtype,
    }
