"""Models without a counterpart here, by their tensors: they are refused by name, also without a config.json."""

import re

from vitreous.weights.formats.base import Found

PROJECTION = "embeddings.patch_embeddings.projection.weight"
# Names of tensors that only these models have; of transformers if nothing else is said.
MARKS = {
    r"(^|\.)visual\.conv1\.weight$": "CLIP (OpenAI, open_clip), with a norm before the first block",
    r"(^|\.)embeddings\.(class_embedding|patch_embedding\.weight)$": "a vision tower like CLIP's or SigLIP's",
    r"(^|\.)embeddings\.detection_tokens$": "YOLOS",
    r"(^|\.)embeddings\.time_embeddings$|\.temporal_attention\.": "TimeSformer",
    r"(^|\.)embeddings\.text_embeddings\.": "ViLT",
    r"(^|\.)embeddings\.position_embeddings\.weight$": "EoMT, or another model with positions in an embedding layer",
    r"(^|\.)layers\.0\.blocks\.0\.": "a Swin Transformer",
    r"(^|\.)layer\.\d+\.attention\.attention\.[qv]_bias$": "VideoMAE",
    r"(^|\.)layer\.\d+\.attention\.projection_layer\.": "InternVL's vision tower",
    r"(^|\.)layer\.\d+\.lambda_1$": "BEiT or Data2Vec",
    r"(^|\.)stages\.\d+\.layers\.\d+\.modulation\.": "FocalNet",
    r"(^|\.)stages\.\d+\.layers\.\d+\.(dwconv|depthwise_conv)\.": "ConvNeXt",
    r"(^|\.)stages\.\d+\.layers\.\d+\.attn\.qkv\.": "Hiera",
    r"(^|\.)stages\.\d+\.layers\.\d+\.attention\.attention\.convolution_projection": "CvT",
    r"(^|\.)encoder\.patch_embeddings\.\d+\.": "SegFormer, PVT, GLPN or PoolFormer",
    r"(^|\.)embeddings\.projection\.weight$": "ViTDet",
    r"(^|\.)embeddings\.patch_embeddings\.weight$": "DINOv3, with rotated queries and keys",
    r"(^|\.)layer1\.0\.conv1\.weight$": "a ResNet",
}


def unsupported_model(found: Found) -> str:
    """The name of a model that is not supported, or "" if nothing shows that it is one."""
    names = list(found.tensors)
    for mark, kind in MARKS.items():
        if any(re.search(mark, name) for name in names):
            return kind
    projection = next((name for name in names if name.endswith(PROJECTION)), None)
    if projection is None:
        return ""
    prefix, shape = projection.removesuffix(PROJECTION), found.tensors[projection].shape
    if len(shape) == 5:
        return "a model of videos, such as VideoMAE or ViViT"
    if f"{prefix}embeddings.distillation_token" in found.tensors and shape[1:] == (1, 16, 16):
        return "the Audio Spectrogram Transformer"
    if f"{prefix}embeddings.cls_token" not in found.tensors:
        return "I-JEPA, ViTPose or another of transformers' models without a class token"
    if any(line.startswith("neck.") for line in found.left_out):
        return "DPT, Depth Anything or another of transformers' models with a neck"
    return ""
