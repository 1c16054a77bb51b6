"""All formats, in the order in which a checkpoint is tried: those with marks of their own before their relatives."""

import re

from vitreous.model.checks import check_choice
from vitreous.weights.big_vision import BigVision
from vitreous.weights.dinov2 import DinoV2
from vitreous.weights.format import Format, Found
from vitreous.weights.google import Google
from vitreous.weights.huggingface import HuggingFace
from vitreous.weights.huggingface_config import EPS as FAMILIES
from vitreous.weights.lucidrains import Lucidrains
from vitreous.weights.mae import Mae
from vitreous.weights.paddle import Paddle
from vitreous.weights.paddlevit import PaddleViT
from vitreous.weights.refusal import shown
from vitreous.weights.tensors import BadCheckpoint
from vitreous.weights.timm import Timm
from vitreous.weights.torchvision import Torchvision

FOREIGN: tuple[Format, ...] = (
    Google(),
    BigVision(),
    HuggingFace(),
    Torchvision(),
    Lucidrains(),
    PaddleViT(),
    DinoV2(),
    Mae(),
    Paddle(),
    Timm(),
)
NAMES = ("vitreous", *(format.name for format in FOREIGN))


# What people call them.
ALIASES = {"transformers": "huggingface", "hf": "huggingface", "vit-pytorch": "lucidrains", "vit_jax": "google"}


def own_name(name: str) -> str:
    """The name of a format, or an error that lists them.

    >>> own_name("transformers")
    'huggingface'
    """
    name = ALIASES.get(name, name)
    check_choice("format", name, NAMES)
    return name


def format_named(name: str) -> Format:
    return next(format for format in FOREIGN if format.name == own_name(name))


# Tensors by which models are known that have no counterpart here.
STRANGERS = {
    r"(^|\.)embeddings\.(class_embedding|patch_embedding\.weight)$": "a tower of CLIP or SigLIP (transformers)",
    r"(^|\.)embeddings\.patch_embeddings\.weight$": "DINOv3 (transformers), whose queries and keys are rotated",
    r"(^|\.)visual\.conv1\.weight$": "CLIP (OpenAI, open_clip), which has a norm before the first block",
    r"(^|\.)layers\.0\.blocks\.0\.": "a Swin Transformer",
    r"(^|\.)layer1\.0\.conv1\.weight$": "a ResNet",
}


def detect(found: Found) -> Format:
    """The format whose names these are."""
    for format in FOREIGN:
        if format.recognises(found):
            return format
    stranger = _stranger(found)
    names = ", ".join(shown(name) for name in list(found.tensors)[:4])
    raise BadCheckpoint(
        f"{found.path} is {stranger or 'of no known format'}; its {len(found.tensors)} tensors are called {names}, ... "
        f"(known: {', '.join(NAMES)})"
    )


def _stranger(found: Found) -> str:
    """What a model without a counterpart is, if its config.json or its tensors tell."""
    for key, system in (("model_type", "transformers"), ("architecture", "timm")):
        if isinstance(name := found.config.get(key), str) and name not in FAMILIES:
            return f"{name!r:.80} of {system} ({key} in config.json), which has no counterpart here"
    kinds = (kind for mark, kind in STRANGERS.items() if any(re.search(mark, name) for name in found.tensors))
    kind = next(kinds, "")
    return f"{kind}, which has no counterpart here" if kind else ""
