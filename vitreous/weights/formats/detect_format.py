"""List of all formats, and detection of a checkpoint's format.

The model may be only part of the checkpoint: Lightning checkpoints may also contain a loss with tensors, and DINO
checkpoints contain `backbone.` and `head.` under both `student.` and `teacher.`. Every prefix is searched for a known
format.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping

from torch import Tensor

from vitreous.common.checks import BadValue, check_choice
from vitreous.model.protocol import ModelConfig
from vitreous.weights.formats.base import Format, StateDict
from vitreous.weights.formats.big_vision import BigVision
from vitreous.weights.formats.bit import Bit
from vitreous.weights.formats.clip import Clip, ClipTrunk
from vitreous.weights.formats.dinov2 import DinoV2
from vitreous.weights.formats.dinov3 import DinoV3
from vitreous.weights.formats.eva import Eva
from vitreous.weights.formats.google import Google
from vitreous.weights.formats.huggingface.config import FAMILIES as TRANSFORMERS_FAMILIES
from vitreous.weights.formats.huggingface.dinov3 import MODEL_TYPE as DINOV3_TYPE
from vitreous.weights.formats.huggingface.dinov3 import HuggingFaceDinoV3
from vitreous.weights.formats.huggingface.format import HuggingFace
from vitreous.weights.formats.huggingface.towers import MODEL_TYPES as TOWER_TYPES
from vitreous.weights.formats.huggingface.towers import HuggingFaceTower
from vitreous.weights.formats.lucidrains import Lucidrains
from vitreous.weights.formats.mae import Mae
from vitreous.weights.formats.paddle import Paddle, PaddleViT
from vitreous.weights.formats.swin.microsoft import Microsoft
from vitreous.weights.formats.swin.timm import TimmSwin
from vitreous.weights.formats.swin.torchvision import TorchvisionSwin
from vitreous.weights.formats.swin.transformers import MODEL_TYPES as SWIN_TYPES
from vitreous.weights.formats.swin.transformers import TransformersSwin
from vitreous.weights.formats.timm.eva import TimmEva
from vitreous.weights.formats.timm.format import Timm
from vitreous.weights.formats.torchvision import Torchvision
from vitreous.weights.io.containers import AVERAGED_MODULES
from vitreous.weights.io.errors import BadCheckpoint, shown

# In detection order. Formats that share timm's or transformers' names come before timm and transformers.
FORMATS: list[Format] = [
    Google(),
    BigVision(),
    TransformersSwin(),
    HuggingFace(),
    HuggingFaceTower(),
    HuggingFaceDinoV3(),
    Clip(),
    ClipTrunk(),
    Torchvision(),
    TorchvisionSwin(),
    Lucidrains(),
    PaddleViT(),
    DinoV3(),
    DinoV2(),
    Eva(),
    Mae(),
    Paddle(),
    Timm(),
    TimmEva(),
    Microsoft(),
    TimmSwin(),
    Bit(),
]
ALIASES = {"transformers": "huggingface", "hf": "huggingface", "vit-pytorch": "lucidrains", "vit_jax": "google"}
ALIASES |= {"open_clip": "clip", "openclip": "clip"}
MAX_SEARCHED = 5_000  # maximum number of tensors in a checkpoint to search for a model under a prefix
MAX_PREFIX_PARTS = 6
VITREOUS_TENSOR = "encoder.blocks.0.attention_norm.weight"


def format_names() -> tuple[str, ...]:
    return tuple(dict.fromkeys(("vitreous", *(format.name for format in FORMATS))))


EXPORTED = ("onnx", "openvino", "torch-export")  # formats of `vitreous.export`


def canonical_name(name: str) -> str:
    """Resolve a format name or alias. If the name is unknown, the error lists all formats."""
    name = ALIASES.get(name, name)
    if name in EXPORTED:
        raise BadValue(f"format is {name!r}, which `vitreous export --to {name}` writes, not `vitreous convert`")
    check_choice("format", name, format_names())
    return name


def layouts_named(name: str) -> list[Format]:
    """Return the formats of this name: several if the layout of a library's tensors depends on the model."""
    return [format for format in FORMATS if format.name == canonical_name(name)]


def format_for(name: str, config: ModelConfig) -> Format:
    """Return the format of this name that can store the model, or the one that lacks the fewest of its parts."""
    layouts = [
        format for format in layouts_named(name) if isinstance(config, format.config_class) and not format.read_only
    ]
    if len(layouts) < 2:
        return (layouts or layouts_named(name))[0]
    return min(layouts, key=lambda format: len(format.unsupported(config)))


def identify(state: StateDict, name: str | None = None) -> tuple[Format, str]:
    """Return the format of a checkpoint and the prefix of its tensors. Detect the format unless `name` is given."""
    detected, prefix = _recognise(state), ""
    if detected is None and len(state.tensors) <= MAX_SEARCHED:
        detected, prefix = _search_prefixes(state)
    model = under(state, prefix)
    if name is None:
        return _supported(model, detected), prefix
    layouts = layouts_named(name)
    return next((format for format in layouts if format.recognises(model)), layouts[0]), prefix


def under(state: StateDict, prefix: str) -> StateDict:
    """Return the part of a checkpoint under a prefix, with a summary of the tensors outside it."""
    if not prefix:
        return state
    tensors = {name.removeprefix(prefix): tensor for name, tensor in state.tensors.items() if name.startswith(prefix)}
    ignored = summary([name for name in state.tensors if not name.startswith(prefix)], prefix)
    inside = (*state.inside, prefix.rstrip(".")) if ignored else state.inside
    return dataclasses.replace(state, tensors=tensors, inside=inside, ignored=(*state.ignored, *ignored))


def _recognise(state: StateDict) -> Format | None:
    return next((format for format in FORMATS if format.recognises(state)), None)


def _supported(state: StateDict, detected: Format | None) -> Format:
    """Return the detected format. If there is none, the error names the unsupported model or some of its tensors."""
    known = f"Supported formats: {', '.join(format_names())}"
    if model := _unsupported_model(state, detected):
        raise BadCheckpoint(f"{state.path} contains an unsupported model: {model}. {known}")
    if detected is None:
        names = ", ".join(shown(name) for name in list(state.tensors)[:4])
        raise BadCheckpoint(f"{state.path} has an unknown format (tensors: {names}, ...). {known}")
    if reason := detected.ambiguity(state):
        command = f"vitreous convert SRC DST --to vitreous --from {detected.name}"
        remedy = f"pass format={detected.name!r}, or convert the checkpoint once with `{command}`"
        raise BadCheckpoint(f"{state.path} may be {detected.title}, but {reason}. If it is, {remedy}")
    return detected


# ---- Models under a prefix -------------------------------------------------------------------------------------------


def _search_prefixes(state: StateDict) -> tuple[Format | None, str]:
    """Find a model under a prefix. Return its format and prefix. If there is no model, return None and ""."""
    parts = _parts(state.tensors)
    models: dict[str, Format] = {}
    last = None
    for prefix in sorted(parts):
        inner = last is not None and prefix.startswith(last)  # e.g. the base model inside a model with a head
        if not inner and (format := _recognise(dataclasses.replace(state, tensors=parts[prefix]))):
            models[prefix], last = format, prefix
    if not models:
        if any(f".{name}".endswith(f".{VITREOUS_TENSOR}") for name in state.tensors):
            raise BadCheckpoint(
                f"{state.path} is the state dict of a Vitreous model without its config. Save the model with "
                "vitreous.save(model, folder), or use load_state_dict on a model with the same config"
            )
        return None, ""
    prefix = _choose(state, {prefix: parts[prefix] for prefix in models})
    return models[prefix], prefix


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group tensors by dotted prefix, with the prefix removed from their names."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        end = 0
        for _ in range(MAX_PREFIX_PARTS):
            end = name.find(".", end) + 1
            if not end:
                break
            parts.setdefault(name[:end], {})[name[end:]] = tensor
    return parts


def _choose(state: StateDict, models: Mapping[str, Mapping[str, Tensor]]) -> str:
    """Return the prefix of the only model or, among models of equal shapes, of the only averaged one (e.g. EMA)."""
    prefixes = list(models)
    averaged = [prefix for prefix in prefixes if not set(prefix.split(".")).isdisjoint(AVERAGED_MODULES)]
    shapes = [{name: tensor.shape for name, tensor in model.items()} for model in models.values()]
    for choice in (prefixes, averaged if all(each == shapes[0] for each in shapes) else []):
        if len(choice) == 1:
            return choice[0]
    names = [shown(".".join((*state.inside, prefix.rstrip(".")))) for prefix in prefixes[:4]]
    listed = ", ".join(names) + (", ..." if len(prefixes) > 4 else "")
    command = f"vitreous convert SRC DST --to vitreous --part {names[0]}"
    raise BadCheckpoint(
        f"{state.path} contains {len(prefixes)} models ({listed}). "
        f"Choose one with part={names[0]!r}, or convert it once with `{command}`"
    )


def summary(names: list[str], prefix: str = "") -> tuple[str, ...]:
    """Summarise the tensor names outside `prefix`, grouped up to the first part that differs from `prefix`.

    >>> summary(["model.head.weight", "model.head.bias", "loss.scale"], "model.backbone.")
    ('model.head.* (2 tensors)', 'loss.scale')
    """
    path = prefix.split(".")
    groups: Counter[str] = Counter()
    last = {}
    for name in names:
        steps = name.split(".")
        shared = next(at for at, step in enumerate(path) if at >= len(steps) or steps[at] != step)
        group = ".".join(steps[: shared + 1])
        groups[group] += 1
        last[group] = name
    return tuple(
        shown(last[group]) if count == 1 else f"{shown(group)}.* ({count} tensors)" for group, count in groups.items()
    )


# ---- Unsupported models ----------------------------------------------------------------------------------------------

PROJECTION = "embeddings.patch_embeddings.projection.weight"
# Unsupported models and what they would need, by patterns of their tensor names in transformers, timm or the original.
UNSUPPORTED = {
    r"(^|\.)(visual\.)?layer1\.0\.conv3\.weight$": "a ResNet, or CLIP with a ResNet (would need attention pooling)",
    r"(^|\.)(visual\.)?attn_pool(_contrastive)?\.ln_[qk]\.weight$": "CoCa (would need pooling with many queries)",
    r"(^|\.)layers\.\d+\.self_attn\.qkv\.weight$": "the vision tower of BLIP (would need its tensor names)",
    r"(^|\.)embeddings\.detection_tokens$": "YOLOS (would need detection tokens and a head for boxes)",
    r"(^|\.)embeddings\.time_embeddings$|\.temporal_attention\.": "TimeSformer (would need video as input)",
    r"(^|\.)embeddings\.text_embeddings\.": "ViLT (would need text as input)",
    r"(^|\.)embeddings\.position_embeddings\.weight$": (
        "EoMT, or another model with positions in an embedding layer (would need its tensor names)"
    ),
    r"(^|\.)vision_model\.pre_layernorm\.weight$": "OWL-ViT (would need its tensor names)",
    r"(^|\.)stages\.0\.blocks\.0\.attn\.meta_mlp\.": "timm's swinv2_cr (would need its MLP of positions)",
    r"(^|\.)(norm0|hidden_states_norms\.stage\d)\.weight$": (
        "the Swin Transformer of a detector or segmenter, such as UPerNet (would need a norm after each stage)"
    ),
    r"(^|\.)layer\.\d+\.attention\.attention\.[qv]_bias$": "VideoMAE (would need video as input)",
    r"(^|\.)layer\.\d+\.attention\.projection_layer\.": "InternVL's vision tower (would need its tensor names)",
    r"(^|\.)layers?\.\d+\.lambda_1$": "BEiT or Data2Vec (would need a position bias per layer)",
    r"(^|\.)blocks\.\d+\.attn_in\.": "TNT (would need a Transformer inside each patch)",
    r"(^|\.)blocks\.\d+\.attn\.gating_param$": "ConViT (would need gated attention to positions)",
    r"(^|\.)blocks\.\d+\.mlp_out_proj\.": "a ViT with parallel layers (would need attention and MLP side by side)",
    r"(^|\.)blocks\.\d+\.revert_projs\.": "CrossViT (would need attention between patches of two sizes)",
    r"(^|\.)network\.\d+\.\d+\.attn\.attn\.": "VOLO (would need attention to the outlook of a patch)",
    r"(^|\.)levels\.\d+\.transformer_encoder\.": "NesT (would need attention in blocks that are merged)",
    r"(^|\.)serial_blocks1\.": "CoaT (would need factorised attention)",
    r"(^|\.)patch_embeds\.0\.proj\.": "Twins or PVT (would need fewer keys than queries)",
    r"(^|\.)stages\.\d+\.global_block\.": "GC ViT (would need queries of the whole image)",
    r"(^|\.)stages\.\d+\.blocks\.\d+\.0\.cpe1\.": "DaViT (would need attention between channels)",
    r"(^|\.)stages\.\d+\.\d+\.transformer\.\d+\.": "MobileViT (would need convolutional stages)",
    r"(^|\.)patch_embed\.backbone\.stages\.\d+\.\d+\.pre_norm\.": "ViTamin (would need convolutional stages)",
    r"(^|\.)stages\.\d+\.blocks\.\d+\.attn_grid\.": "MaxViT (would need convolutions and attention on grids)",
    r"(^|\.)stages\.\d+\.blocks\.\d+\.conv2_kxk\.": "CoAtNet (would need convolutional stages)",
    r"\.attention_biases$": (
        "EfficientFormer, LeViT, TinyViT or EfficientViT (would need convolutional stages and biases of attention)"
    ),
    r"\.token_mixer\.|\.layer_scale1\.scale$": (
        "PoolFormer, CAFormer or FastViT (would need pooling or convolutions in the place of attention)"
    ),
    r"(^|\.)(stages|layers)\.\d+\.(layers|blocks)\.\d+\.modulation\.": "FocalNet (would need focal modulation)",
    r"(^|\.)stages\.\d+\.(layers\.\d+\.(dwconv|depthwise_conv)|blocks\.\d+\.conv_dw)\.": (
        "ConvNeXt or EdgeNeXt (would need their convolutional blocks)"
    ),
    r"(^|\.)stages\.\d+\.layers\.\d+\.attn\.qkv\.|(^|\.)blocks\.\d+\.proj\.weight$": (
        "Hiera (would need attention in units of masked patches, and pooling of queries)"
    ),
    r"(^|\.)stages\.\d+\.blocks\.\d+\.attn\.pool_[qkv]\.": "MViT (would need pooling of queries and keys)",
    r"(^|\.)(layers|blocks)\.\d+\.attn\.(rel_pos\.)?rel_pos_h$": (
        "SAM or ViTDet (would need windows without a shift, and relative positions in each layer)"
    ),
    r"(^|\.)stages\.\d+\.blocks\.\d+\.mlp\.dwconv\.": "PVT or SegFormer (would need convolutions in the MLP)",
    r"(^|\.)stages\.\d+\.layers\.\d+\.attention\.attention\.convolution_projection": "CvT (would need convolutions)",
    r"(^|\.)encoder\.patch_embeddings\.\d+\.": (
        "SegFormer, PVT, GLPN or PoolFormer (would need fewer keys than queries, or pooling)"
    ),
    r"(^|\.)cls_attn_blocks\.\d+\.": "XCiT (would need attention between channels)",
    r"(^|\.)transformers\.\d+\.pool\.conv\.": "PiT (would need pooling between stages)",
    r"(^|\.)blocks\.\d+\.mlp_(tokens|channels)\.": (
        "an MLP-Mixer, gMLP, ResMLP or Sequencer (would need a family without attention)"
    ),
    r"^embeds\.proj\.weight$": "timm's NaFlexVit (would need a grid for each image)",
    r"(^|\.)embeddings\.projection\.weight$": "ViTDet (would need windows and relative positions in each layer)",
    r"(^|\.)layer1\.0\.conv1\.weight$": "a ResNet (would need its blocks and batch norms)",
}


def _unsupported_model(state: StateDict, detected: Format | None) -> str:
    """Name an unsupported model, using config.json or the tensors. Return "" if the model may be supported.

    `model_type` is only used for tensors with transformers' names, because wrappers (such as the one for timm) write
    their own `model_type` next to tensors with another library's names.
    """
    model = _model_of_tensors(state, detected)
    model_type, architecture = (state.config.get(key) for key in ("model_type", "architecture"))
    if isinstance(model_type, str) and (detected is None or detected.name == "huggingface"):
        if model_type in {*TRANSFORMERS_FAMILIES, *TOWER_TYPES, DINOV3_TYPE}:
            return ""
        stated = f"a transformers {model_type!r:.80} model (model_type in config.json)"
        return model if model_type in SWIN_TYPES else ": ".join(filter(None, (stated, model)))
    if detected is None and isinstance(architecture, str):
        return ": ".join(filter(None, (f"a timm {architecture!r:.80} model (architecture in config.json)", model)))
    return model


def _model_of_tensors(state: StateDict, detected: Format | None) -> str:
    names = list(state.tensors)
    for pattern, model in UNSUPPORTED.items():
        if any(re.search(pattern, name) for name in names):
            return model
    if detected is not None and detected.distinctive:
        return ""
    if detected is None and any(name.endswith(".running_mean") for name in names):
        return "a network with batch norms, such as EfficientNet or NextViT (would need its convolutional blocks)"
    projection = next((name for name in names if name.endswith(PROJECTION)), None)
    if projection is None:
        return ""
    prefix, shape = projection.removesuffix(PROJECTION), state.tensors[projection].shape
    if len(shape) == 5:
        return "a video model, such as VideoMAE or ViViT (would need video as input)"
    if f"{prefix}embeddings.distillation_token" in state.tensors and shape[1:] == (1, 16, 16):
        return "an Audio Spectrogram Transformer (would need audio as input)"
    if f"{prefix}embeddings.cls_token" not in state.tensors:
        return "I-JEPA, ViTPose or another transformers model without a class token (would need its pooling or head)"
    if any(line.startswith("neck.") for line in state.ignored):
        return "DPT, Depth Anything or another transformers model with a neck (would need its decoder)"
    return ""
