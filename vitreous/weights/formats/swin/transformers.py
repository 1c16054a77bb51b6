"""transformers' Swin and Swinv2 models. The names are those that `save_pretrained` writes, without the base prefix."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.model.options import IMAGENET, Dropout
from vitreous.model.swin_config import SwinConfig, SwinV1, SwinV2
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.formats.huggingface.config import fields_of, labels_of
from vitreous.weights.formats.huggingface.processor import infer_preprocessing, transformers_processor
from vitreous.weights.formats.mapping import Row, rows
from vitreous.weights.formats.swin.layout import SwinLayout
from vitreous.weights.io.errors import BadCheckpoint

MODEL_TYPES = ("swin", "swinv2")
BLOCK = "encoder.layers.0.blocks.0"
PATCHES = "embeddings.patch_embeddings.projection"
ATTENTION = r"(blocks\.\d+\.attention)"


class TransformersSwin(SwinLayout):
    name = "huggingface"
    title = "transformers"
    signatures = (
        (f"{PATCHES}.weight", f"{BLOCK}.attention.self.query.weight"),
        (f"{PATCHES}.weight", f"{BLOCK}.attention.q_proj.weight"),
    )
    roots = ("", "swin.", "swinv2.")
    renames = (  # from the in-memory names of version 5 to the names in files
        (rf"{ATTENTION}\.q_proj\.", r"\1.self.query."),
        (rf"{ATTENTION}\.k_proj\.", r"\1.self.key."),
        (rf"{ATTENTION}\.v_proj\.", r"\1.self.value."),
        (rf"{ATTENTION}\.o_proj\.", r"\1.output.dense."),
        (rf"{ATTENTION}\.relative_position_bias\.", r"\1.self."),
        (r"\.mlp\.fc1\.", ".intermediate.dense."),
        (r"\.mlp\.fc2\.", ".output.dense."),
    )
    ignored = (
        r"encoder\.layers\.\d+\.blocks\.\d+\.attention\.self\.(relative_position_index|relative_coords_table)",
        r"embeddings\.mask_token|decoder\..*|classifier\..*",
    )
    patches = PATCHES
    patch_norm = "embeddings.norm"
    norms = ("layernorm_before", "layernorm_after")
    attention = "attention.self"
    output = "attention.output.dense"
    bias_mlp = "attention.self.continuous_position_bias_mlp"
    mlp = ("intermediate.dense", "output.dense")
    norm = "layernorm"
    head = "classifier"

    def block(self, stage: int, number: int) -> str:
        return f"encoder.layers.{stage}.blocks.{number}"

    def merge(self, stage: int) -> str:
        return f"encoder.layers.{stage - 1}.downsample"

    def qkv_rows(self, config: SwinConfig, ours: str, theirs: str) -> list[Row]:
        table = []
        for name in ("query", "key", "value"):
            bias = config.qkv_bias and (name != "key" or isinstance(config.version, SwinV1))
            table += rows(f"{ours}.{name[0]}", f"{theirs}.{name}", parts=("weight", "bias") if bias else ("weight",))
        return table

    def infer(self, state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
        fields = fields_of(state)
        window = fields.size("window_size")
        self.infer_shapes(state, builder, window, fields.size("image_size"))
        if fields.get(bool, "use_absolute_embeddings", False) or "embeddings.position_embeddings" in state.tensors:
            raise BadCheckpoint(f"{state.path} has absolute position embeddings, which are not supported for Swin")
        if (activation := fields.get(str, "hidden_act", "gelu")) not in ("gelu", "gelu_python"):
            raise BadCheckpoint(f"{state.path}: hidden_act must be 'gelu', got {activation!r}")
        if (eps := fields.get(float, "layer_norm_eps", self.norm_eps)) != self.norm_eps:
            raise BadCheckpoint(f"{state.path}: layer_norm_eps must be {self.norm_eps:g}, got {eps:g}")
        hidden, attention = fields.rate("hidden_dropout_prob"), fields.rate("attention_probs_dropout_prob")
        builder.set(
            dropout=Dropout(embedding=hidden, attention=attention, hidden=hidden),
            stochastic_depth=fields.rate("drop_path_rate"),
            labels=labels_of(state.config, builder.fields["num_classes"]),
        )
        if isinstance(builder.fields["version"], SwinV2):
            sides = tuple(int(side) for side in fields.numbers("pretrained_window_sizes", (0.0,)))
            builder.set(version=SwinV2(sides if any(sides) else ()))
        published = dataclasses.replace(IMAGENET, fit="squash", crop_fraction=1.0, geometry="huggingface")
        infer_preprocessing(state, builder, "ViT", published)

    def unsupported(self, config: SwinConfig) -> list[str]:
        lines = super().unsupported(config)
        if len(set(config.window)) > 1 or len(set(config.patch_size)) > 1:
            lines.append(f"transformers requires square windows and patches, got {config.window}, {config.patch_size}")
        small = [grid for grid in config.stage_grids if min(grid) < config.window[0]]
        if small and isinstance(config.version, SwinV1):
            lines.append(
                f"transformers cannot run windows of {config.window[0]} on {small[0][0]} x {small[0][1]} patches"
            )
        return lines

    def differences(self, config: SwinConfig, folder: bool = False) -> list[str]:
        lines = super().differences(config, folder)
        if folder and config.preprocessing.fit == "pad":
            lines.append("images are padded in Vitreous and cropped in transformers' processors")
        return lines

    def packed(self, tensors: Mapping[str, Tensor], config: SwinConfig) -> Mapping[str, Tensor]:
        if not config.num_classes:
            return tensors
        kind = "swinv2" if isinstance(config.version, SwinV2) else "swin"
        # With a classifier, all other names have the base model prefix.
        return {name if "classifier." in name else f"{kind}.{name}": x for name, x in tensors.items()}

    def write(self, tensors: Mapping[str, Tensor], config: SwinConfig, path: Path) -> None:
        super().write(tensors, config, path)
        if not path.is_dir():
            return
        dtype = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
        for name, document in (
            ("config.json", transformers_swin_config(config, dtype)),
            ("preprocessor_config.json", transformers_processor(config)),
        ):
            (path / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def transformers_swin_config(config: SwinConfig, dtype: str) -> dict[str, Any]:
    """Return the config.json from which `AutoModel` and `AutoModelForImageClassification` build the model."""
    second = isinstance(config.version, SwinV2)
    labels = config.labels or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    return {
        "architectures": [
            f"{'Swinv2' if second else 'Swin'}{'ForImageClassification' if config.num_classes else 'Model'}"
        ],
        "model_type": "swinv2" if second else "swin",
        "image_size": config.image_size[0] if len(set(config.image_size)) == 1 else list(config.image_size),
        "patch_size": config.patch_size[0],
        "num_channels": config.channels,
        "embed_dim": config.width,
        "depths": list(config.depths),
        "num_heads": list(config.stage_heads),
        "window_size": config.window[0],
        "mlp_ratio": config.mlp_ratio,
        "qkv_bias": config.qkv_bias,
        "hidden_act": "gelu",
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout.hidden,
        "attention_probs_dropout_prob": config.dropout.attention,
        "drop_path_rate": config.stochastic_depth,
        **({"pretrained_window_sizes": list(config.pretrained_windows)} if second else {}),
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
        "dtype": dtype,
    }
