"""transformers' config.json, both ways: the fields of ours that it decides, and what we write for the same model."""

from collections.abc import Mapping
from typing import Any, Literal

from vitreous.model.config import ViTConfig
from vitreous.model.options import (
    ClassToken,
    Dropout,
    Gelu,
    GlobalAverage,
    Learned1d,
    LinearHead,
    SwiGlu,
    TanhHead,
)
from vitreous.weights.formats.base import Found, Inference
from vitreous.weights.formats.huggingface.json_fields import flag, rate, real, size, whole, word
from vitreous.weights.io.safetensors_file import BadCheckpoint

Family = Literal[
    "vit", "deit", "vit_mae", "vit_msn", "dinov2", "dinov2_with_registers"
]  # what config.json calls `model_type`

# How the names of transformers' classes begin.
CLASSES: dict[Family, str] = {
    "vit": "ViT",
    "deit": "DeiT",
    "dinov2": "Dinov2",
    "dinov2_with_registers": "Dinov2WithRegisters",
}
EPS: dict[Family, float] = {
    "vit": 1e-12,
    "deit": 1e-12,
    "vit_mae": 1e-12,
    "vit_msn": 1e-6,
    "dinov2": 1e-6,
    "dinov2_with_registers": 1e-6,
}

ACTIVATIONS: dict[str, Literal["erf", "tanh"]] = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "gelu_accurate": "tanh",
}
MAX_RATIO = 64  # of the widths of an MLP and its model


def family_of(config: ViTConfig) -> Family:
    """Which of transformers' models has these parts. A single register is DeiT's second token, read by no head."""
    if config.layer_scale is not None:
        return "dinov2_with_registers" if config.registers else "dinov2"
    return "deit" if config.distillation_token or config.registers else "vit"


def family_in(found: Found) -> Family:
    """Which of transformers' models these tensors are; ViT, ViTMAE and ViTMSN share them, and config.json decides."""
    said = word(found.path, found.config, "model_type", "")
    if said and said not in EPS:
        raise BadCheckpoint(f"{found.path} has model_type {said!r}, but must have one of {', '.join(EPS)}")
    names = found.tensors
    if "encoder.layer.0.layer_scale1.lambda1" in names:
        return "dinov2_with_registers" if "embeddings.register_tokens" in names else "dinov2"
    if "embeddings.distillation_token" in names:
        return "deit"
    if said == "vit_msn":
        return "vit_msn"
    return "vit_mae" if said == "vit_mae" or "decoder.decoder_pred.weight" in names else "vit"


# ---- Reading ---------------------------------------------------------------------------------------------------------


def infer_fields(found: Found, guess: Inference, image_size: Any = None) -> None:
    """All fields but preprocessing. config.json decides; what it does not say, or where there is none, tensors do."""
    config, path = found.config, found.path
    family = family_in(found)
    dino = family.startswith("dinov2")
    projected = found.shape("embeddings.patch_embeddings.projection.weight", 4)
    width = whole(path, config, "hidden_size", projected[0])
    norm = "norm1" if dino else "layernorm_before"
    guess.set(
        width=width,
        depth=whole(path, config, "num_hidden_layers", found.count(f"encoder.layer.{{i}}.{norm}.weight")),
        channels=whole(path, config, "num_channels", projected[1]),
        patch_size=size(path, config, "patch_size", (projected[2], projected[3])),
        class_token=True,
        qkv_bias=flag(path, config, "qkv_bias", "encoder.layer.0.attention.attention.query.bias" in found.tensors),
        layer_scale=real(path, config, "layerscale_value", 1.0) if dino else None,
        stochastic_depth=rate(path, config, "drop_path_rate"),
    )
    if "num_attention_heads" in config:
        guess.set(num_heads=whole(path, config, "num_attention_heads", 0))
    else:
        guess.heads(width)
    if "head_dim" in config:
        guess.set(head_dim=whole(path, config, "head_dim", 0))
    if "layer_norm_eps" in config:
        guess.set(norm_eps=real(path, config, "layer_norm_eps", 0.0))
    else:
        guess.follow("transformers' own for this kind of model", norm_eps=EPS[family])
    hidden, attention = rate(path, config, "hidden_dropout_prob"), rate(path, config, "attention_probs_dropout_prob")
    guess.set(dropout=Dropout(embedding=hidden, attention=attention, hidden=hidden))
    _infer_tokens(found, guess, family, image_size)
    _infer_mlp(found, guess, dino)
    _infer_output(found, guess, dino, width)


def _infer_tokens(found: Found, guess: Inference, family: Family, image_size: Any) -> None:
    names, registers = found.tensors, 0
    if family == "dinov2_with_registers":
        registers = found.shape("embeddings.register_tokens", 3)[1]
    elif family == "deit" and ("classifier.weight" in names or "pooler.dense.weight" in names):
        registers = 1
    guess.set(registers=registers, distillation_token=family == "deit" and not registers)
    places = found.shape("embeddings.position_embeddings", 3)[1]
    own, native = 2 if family == "deit" else 1, size(found.path, found.config, "image_size", None)
    guess.grid(places, (own,), guess.fields["patch_size"], image_size, native)
    way: Literal["huggingface", "dinov2-registers"] = (
        "dinov2-registers" if family == "dinov2_with_registers" else "huggingface"
    )
    guess.set(position=Learned1d(interpolation=way))


def _infer_mlp(found: Found, guess: Inference, dino: bool) -> None:
    if "encoder.layer.0.mlp.weights_in.weight" in found.tensors:
        guess.set(mlp=SwiGlu(), mlp_width=found.shape("encoder.layer.0.mlp.weights_out.weight", 2)[1])
        return
    activation = word(found.path, found.config, "hidden_act", "gelu")
    if activation not in ACTIVATIONS:
        raise BadCheckpoint(
            f"{found.path} has hidden_act {activation!r}, but must have one of {', '.join(ACTIVATIONS)}"
        )
    if not found.config:
        guess.assume("transformers' own", mlp=Gelu("erf"))
    else:
        guess.set(mlp=Gelu(ACTIVATIONS[activation]))
    first = found.shape(f"encoder.layer.0.{'mlp.fc1' if dino else 'intermediate.dense'}.weight", 2)[0]
    guess.set(mlp_width=first if dino else whole(found.path, found.config, "intermediate_size", first))


def _infer_output(found: Found, guess: Inference, dino: bool, width: int) -> None:
    names = found.tensors
    guess.set(pool=ClassToken(), head=LinearHead(), num_classes=0, labels=())
    classifiers = [f"{name}.weight" for name in ("classifier", "cls_classifier") if f"{name}.weight" in names]
    if classifiers and guess.overrides.get("num_classes") != 0:
        classes, inputs = found.shape(classifiers[0], 2)
        if dino and inputs == 2 * width:
            pool = _read_by(found)
            if pool is None and guess.new_head:
                return
            if pool is None:
                raise BadCheckpoint(
                    f"{found.path}: the classifier (Dinov2ForImageClassification) reads the class token beside the "
                    "mean of the patches, and a model of ours reads one of them; without it: num_classes=0"
                )
            guess.set(pool=pool)
        guess.set(num_classes=classes, labels=_labels(found.config, classes))
    elif not classifiers and "pooler.dense.weight" in names:
        if (activation := word(found.path, found.config, "pooler_act", "tanh")) != "tanh":
            raise BadCheckpoint(f"{found.path} has pooler_act {activation!r}, but must have 'tanh'")
        guess.set(head=TanhHead(found.shape("pooler.dense.weight", 2)[0]))


def _read_by(found: Found) -> ClassToken | GlobalAverage | None:
    """What DINOv2's classifier reads of the class token and the mean of the patches; None: both, and so not ours."""
    token, mean = (bool(half.any()) for half in found.tensors["classifier.weight"].chunk(2, dim=1))
    if token and mean:
        return None
    return GlobalAverage("before") if mean else ClassToken()


def _labels(config: Mapping[str, Any], classes: int) -> tuple[str, ...]:
    """Names of classes, unless transformers has made them up: LABEL_0, LABEL_1, ..."""
    given = config.get("id2label")
    if not isinstance(given, dict) or len(given) != classes:
        return ()
    names = [given.get(str(i)) for i in range(classes)]
    if None in names or names == [f"LABEL_{i}" for i in range(classes)]:
        return ()
    return tuple(map(str, names))


# ---- Writing ---------------------------------------------------------------------------------------------------------


def transformers_config(config: ViTConfig, dtype: str) -> dict[str, Any]:
    """The config.json with which `AutoModel` and `AutoModelForImageClassification` build the model."""
    family = family_of(config)
    tanh = isinstance(config.mlp, Gelu) and config.mlp.approximation == "tanh"
    document: dict[str, Any] = {
        "architectures": [architecture(config)],
        "model_type": family,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "hidden_act": "gelu_pytorch_tanh" if tanh else "gelu",
        "layer_norm_eps": config.norm_eps,
        "qkv_bias": config.qkv_bias,
        "image_size": _one_or_two(config.image_size),
        "patch_size": _one_or_two(config.patch_size),
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
            "use_swiglu_ffn": isinstance(config.mlp, SwiGlu),
            "layerscale_value": config.layer_scale,
            "drop_path_rate": config.stochastic_depth,
        }
        if config.registers:
            document["num_register_tokens"] = config.registers
    else:
        document["intermediate_size"] = config.mlp_width
    if isinstance(config.head, TanhHead):
        document |= {"pooler_output_size": config.head.width, "pooler_act": "tanh"}
    labels = config.labels or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    document["id2label"] = {str(i): label for i, label in enumerate(labels)}
    document["label2id"] = {label: i for i, label in enumerate(labels)}
    return document


def architecture(config: ViTConfig) -> str:
    """The class of transformers that has this model's parts."""
    if not config.num_classes:
        return f"{CLASSES[family_of(config)]}Model"
    taught = "WithTeacher" if config.distillation_token else ""
    return f"{CLASSES[family_of(config)]}ForImageClassification{taught}"


def mlp_ratio(config: ViTConfig) -> int | None:
    """DINOv2's MLP is so many times as wide as the model, a whole number; None where there is none.

    A gated one has two thirds of that, rounded up to a multiple of eight.
    """
    for ratio in range(1, MAX_RATIO + 1):
        wide = config.width * ratio
        if (-(-(2 * wide // 3) // 8) * 8 if isinstance(config.mlp, SwiGlu) else wide) == config.mlp_width:
            return ratio
    return None


def _one_or_two(sides: tuple[int, int]) -> int | list[int]:
    return sides[0] if sides[0] == sides[1] else list(sides)
