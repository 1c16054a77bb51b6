"""Reader and writer for transformers' config.json."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from vitreous.common.checks import Size
from vitreous.model import options
from vitreous.model.config import ViTConfig
from vitreous.weights.formats.base import ConfigBuilder, StateDict
from vitreous.weights.io.errors import BadCheckpoint

# `model_type` in config.json.
Family = Literal["vit", "deit", "vit_mae", "vit_msn", "dinov2", "dinov2_with_registers"]


class FamilyDefaults(NamedTuple):
    classes: str  # prefix of the model class names
    processor: str  # prefix of the image processor's class name
    norm_eps: float


FAMILIES: dict[Family, FamilyDefaults] = {
    "vit": FamilyDefaults("ViT", "ViT", 1e-12),
    "deit": FamilyDefaults("DeiT", "DeiT", 1e-12),
    "vit_mae": FamilyDefaults("ViTMAE", "ViT", 1e-12),
    "vit_msn": FamilyDefaults("ViTMSN", "ViT", 1e-6),
    "dinov2": FamilyDefaults("Dinov2", "Bit", 1e-6),
    "dinov2_with_registers": FamilyDefaults("Dinov2WithRegisters", "Bit", 1e-6),
}
ACTIVATIONS: dict[str, options.GeluApproximation] = {"gelu": "erf", "gelu_python": "erf", "quick_gelu": "quick"}
ACTIVATIONS |= dict.fromkeys(
    ("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "tanh"
)
MAX_RATIO = 64  # maximum ratio of MLP width to model width


def family_of(config: ViTConfig) -> Family:
    """Return the transformers family for a config. A single register is saved as DeiT's distillation token."""
    if config.layer_scale is not None:
        return "dinov2_with_registers" if config.registers else "dinov2"
    return "deit" if config.distillation_token or config.registers else "vit"


def family_in(state: StateDict) -> Family:
    """Return the family of a checkpoint. config.json is needed only to distinguish ViT, ViTMAE and ViTMSN."""
    stated = fields_of(state).get(str, "model_type", "")
    if stated and stated not in FAMILIES:
        raise BadCheckpoint(f"{state.path}: model_type must be one of {', '.join(FAMILIES)}, got {stated!r}")
    names = state.tensors
    if "encoder.layer.0.layer_scale1.lambda1" in names:
        return "dinov2_with_registers" if "embeddings.register_tokens" in names else "dinov2"
    if "embeddings.distillation_token" in names:
        return "deit"
    if stated == "vit_msn":
        return "vit_msn"
    return "vit_mae" if stated == "vit_mae" or "decoder.decoder_pred.weight" in names else "vit"


# ---- Typed fields of a JSON file -------------------------------------------------------------------------------------

MAX_SIDE = 1 << 32  # pixels
ACCEPTED = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
T = TypeVar("T", int, float, bool, str)


class JsonFields:
    """Typed access to an untrusted JSON object. Missing and null fields have defaults. Wrong types are errors."""

    def __init__(self, path: Path, document: Mapping[str, Any]):
        self.path, self.document = path, document

    def __contains__(self, key: str) -> bool:
        return key in self.document

    def get(self, kind: type[T], key: str, default: T) -> T:
        value = self.document.get(key)
        if value is None:
            return default
        if kind is float and _is_finite(value):
            return kind(value)
        if type(value) is not kind or kind is float:
            self.fail(key, value, ACCEPTED[kind])
        return value

    def rate(self, key: str) -> float:
        """Return a dropout rate, 0 by default."""
        value = self.get(float, key, 0.0)
        return value if 0 <= value < 1 else self.fail(key, value, "at least 0 and less than 1")

    def size(self, key: str, default: Size | None = None) -> Size | None:
        """Return (height, width) from one number, two numbers, or an object with `height` and `width`."""
        value = self.document.get(key)
        if value is None:
            return default
        sides: Any = [value.get("height"), value.get("width")] if isinstance(value, dict) else value
        sides = [sides, sides] if type(sides) is int else sides
        is_pair = isinstance(sides, list) and len(sides) == 2
        if not is_pair or not all(type(side) is int and 0 < side < MAX_SIDE for side in sides):
            self.fail(key, value, "one positive integer, or two (height and width)")
        return sides[0], sides[1]

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self.document.get(key)
        if value is None:
            return default
        values = [value] if type(value) in (int, float) else value
        if not isinstance(values, list | tuple) or not values or not all(map(_is_finite, values)):
            self.fail(key, value, "a list of numbers")
        return tuple(map(float, values))

    def fail(self, key: str, value: object, accepted: str) -> NoReturn:
        raise BadCheckpoint(f"{self.path}: {key} must be {accepted}, got {value!r:.80}")


def _is_finite(value: object) -> bool:
    """Return True for a finite number that fits in a float. JSON numbers may be NaN or too large."""
    return type(value) in (int, float) and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def fields_of(state: StateDict) -> JsonFields:
    return JsonFields(state.path, state.config)


# ---- Reading ---------------------------------------------------------------------------------------------------------


def infer_fields(state: StateDict, builder: ConfigBuilder, image_size: Any = None) -> None:
    """Set all fields except preprocessing, from config.json or the tensors."""
    fields, family = fields_of(state), family_in(state)
    dino = family.startswith("dinov2")
    projected = state.shape("embeddings.patch_embeddings.projection.weight", 4)
    width = fields.get(int, "hidden_size", projected[0])
    norm = "norm1" if dino else "layernorm_before"
    builder.set(
        width=width,
        depth=fields.get(int, "num_hidden_layers", state.count(f"encoder.layer.{{i}}.{norm}.weight")),
        channels=fields.get(int, "num_channels", projected[1]),
        patch_size=fields.size("patch_size", (projected[2], projected[3])),
        class_token=True,
        qkv_bias=fields.get(bool, "qkv_bias", "encoder.layer.0.attention.attention.query.bias" in state.tensors),
        layer_scale=fields.get(float, "layerscale_value", 1.0) if dino else None,
        stochastic_depth=fields.rate("drop_path_rate"),
    )
    if "num_attention_heads" in fields:
        builder.set(num_heads=fields.get(int, "num_attention_heads", 0))
    else:
        builder.infer_heads(width)
    if "head_dim" in fields:
        builder.set(head_dim=fields.get(int, "head_dim", 0))
    if "layer_norm_eps" in fields:
        builder.set(norm_eps=fields.get(float, "layer_norm_eps", 0.0))
    else:
        builder.default("transformers default for this model type", norm_eps=FAMILIES[family].norm_eps)
    hidden, attention = fields.rate("hidden_dropout_prob"), fields.rate("attention_probs_dropout_prob")
    builder.set(dropout=options.Dropout(embedding=hidden, attention=attention, hidden=hidden))
    _set_tokens(state, builder, family, image_size)
    _set_mlp(state, builder, dino)
    _set_output(state, builder, dino, width)


def _set_tokens(state: StateDict, builder: ConfigBuilder, family: Family, image_size: Any) -> None:
    names, registers = state.tensors, 0
    if family == "dinov2_with_registers":
        registers = state.shape("embeddings.register_tokens", 3)[1]
    elif family == "deit" and ("classifier.weight" in names or "pooler.dense.weight" in names):
        registers = 1
    builder.set(registers=registers, distillation_token=family == "deit" and not registers)
    positions = state.shape("embeddings.position_embeddings", 3)[1]
    prefix, native = 2 if family == "deit" else 1, fields_of(state).size("image_size", None)
    builder.infer_grid(positions, (prefix,), builder.fields["patch_size"], image_size, native)
    resampling: Any = "dinov2-registers" if family == "dinov2_with_registers" else "huggingface"
    builder.set(position=options.Learned1d(interpolation=resampling))


def _set_mlp(state: StateDict, builder: ConfigBuilder, dino: bool) -> None:
    if "encoder.layer.0.mlp.weights_in.weight" in state.tensors:
        builder.set(mlp=options.SwiGlu(), mlp_width=state.shape("encoder.layer.0.mlp.weights_out.weight", 2)[1])
        return
    activation = fields_of(state).get(str, "hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise BadCheckpoint(f"{state.path}: hidden_act must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    if not state.config:
        builder.assume("transformers default", mlp=options.Gelu("erf"))
    else:
        builder.set(mlp=options.Gelu(ACTIVATIONS[activation]))
    first = state.shape(f"encoder.layer.0.{'mlp.fc1' if dino else 'intermediate.dense'}.weight", 2)[0]
    builder.set(mlp_width=first if dino else fields_of(state).get(int, "intermediate_size", first))


def _set_output(state: StateDict, builder: ConfigBuilder, dino: bool, width: int) -> None:
    names = state.tensors
    builder.set(pool=options.ClassToken(), head=options.LinearHead(), num_classes=0, labels=())
    classifiers = [f"{name}.weight" for name in ("classifier", "cls_classifier") if f"{name}.weight" in names]
    if classifiers and builder.overrides.get("num_classes") != 0:
        classes, inputs = state.shape(classifiers[0], 2)
        if dino and inputs == 2 * width:
            token, mean = (bool(half.any()) for half in state.tensors["classifier.weight"].chunk(2, dim=1))
            if token and mean and builder.new_head:
                return
            if token and mean:
                raise BadCheckpoint(
                    f"{state.path}: the classifier (Dinov2ForImageClassification) uses both the class token and "
                    "the mean of the patches, which is not supported. Pass num_classes=0 to drop the classifier"
                )
            builder.set(pool=options.GlobalAverage("before") if mean else options.ClassToken())
        builder.set(num_classes=classes, labels=labels_of(state.config, classes))
    elif not classifiers and "pooler.dense.weight" in names:
        if (activation := fields_of(state).get(str, "pooler_act", "tanh")) != "tanh":
            raise BadCheckpoint(f"{state.path}: pooler_act must be 'tanh', got {activation!r}")
        builder.set(head=options.TanhHead(state.shape("pooler.dense.weight", 2)[0]))


def labels_of(config: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    """Return the class names, or () if they are missing or transformers' placeholders (LABEL_0, LABEL_1, ...)."""
    given = config.get("id2label")
    if not isinstance(given, dict) or len(given) != classes:
        return ()
    names = [given.get(str(i)) for i in range(classes)]
    if None in names or names == [f"LABEL_{i}" for i in range(classes)]:
        return ()
    return tuple(map(str, names))


# ---- Writing ---------------------------------------------------------------------------------------------------------


def transformers_config(config: ViTConfig, dtype: str) -> dict[str, Any]:
    """Return the config.json from which `AutoModel` and `AutoModelForImageClassification` build the model."""
    family = family_of(config)
    sizes = {"image_size": config.image_size, "patch_size": config.patch_size}
    teacher = "WithTeacher" if config.distillation_token else ""
    task = f"ForImageClassification{teacher}" if config.num_classes else "Model"
    document: dict[str, Any] = {
        "architectures": [f"{FAMILIES[family].classes}{task}"],
        "model_type": family,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "hidden_act": activation_name(config),
        "layer_norm_eps": config.norm_eps,
        "qkv_bias": config.qkv_bias,
        **{key: sides[0] if sides[0] == sides[1] else list(sides) for key, sides in sizes.items()},
        "num_channels": config.channels,
        "hidden_dropout_prob": config.dropout.hidden,
        "attention_probs_dropout_prob": config.dropout.attention,
        "dtype": dtype,
    }
    if config.head_dim is not None:
        document["head_dim"] = config.head_dim
    if config.layer_scale is not None:
        document |= {
            "mlp_ratio": mlp_ratio(config),
            "use_swiglu_ffn": isinstance(config.mlp, options.SwiGlu),
            "layerscale_value": config.layer_scale,
            "drop_path_rate": config.stochastic_depth,
        }
        if config.registers:
            document["num_register_tokens"] = config.registers
    else:
        document["intermediate_size"] = config.mlp_width
    if isinstance(config.head, options.TanhHead):
        document |= {"pooler_output_size": config.head.width, "pooler_act": "tanh"}
    labels = config.labels or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    document["id2label"] = {str(i): label for i, label in enumerate(labels)}
    document["label2id"] = {label: i for i, label in enumerate(labels)}
    return document


def activation_name(config: ViTConfig) -> str:
    approximation = config.mlp.approximation if isinstance(config.mlp, options.Gelu) else "erf"
    return {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}[approximation]


def mlp_ratio(config: ViTConfig) -> int | None:
    """Return the integer `mlp_ratio` with which DINOv2 has this MLP width, or None if no integer fits."""
    for ratio in range(1, MAX_RATIO + 1):
        wide = config.width * ratio  # SwiGLU uses 2/3 of this width, rounded up to a multiple of 8
        if (-(-(2 * wide // 3) // 8) * 8 if isinstance(config.mlp, options.SwiGlu) else wide) == config.mlp_width:
            return ratio
    return None
