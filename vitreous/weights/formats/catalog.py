"""All formats, in the order in which a checkpoint is tried: those with marks of their own before their relatives."""

from vitreous.common.checks import check_choice
from vitreous.weights.formats.base import Format, Found
from vitreous.weights.formats.big_vision import BigVision
from vitreous.weights.formats.dinov2 import DinoV2
from vitreous.weights.formats.google import Google
from vitreous.weights.formats.huggingface.config import EPS as FAMILIES
from vitreous.weights.formats.huggingface.format import HuggingFace
from vitreous.weights.formats.lucidrains import Lucidrains
from vitreous.weights.formats.mae import Mae
from vitreous.weights.formats.paddle import Paddle
from vitreous.weights.formats.paddlevit import PaddleViT
from vitreous.weights.formats.timm.format import Timm
from vitreous.weights.formats.torchvision import Torchvision
from vitreous.weights.formats.unsupported import unsupported_model
from vitreous.weights.io.errors import shown
from vitreous.weights.io.safetensors_file import BadCheckpoint

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


def detect(found: Found) -> Format:
    """The format whose names these are."""
    format = next((format for format in FOREIGN if format.recognises(found)), None)
    if kind := _unsupported(found, format):
        raise BadCheckpoint(f"{found.path} is {kind}, which has no counterpart here (known: {', '.join(NAMES)})")
    if format is None:
        names = ", ".join(shown(name) for name in list(found.tensors)[:4])
        raise BadCheckpoint(
            f"{found.path} is of no known format; its {len(found.tensors)} tensors are called {names}, ... "
            f"(known: {', '.join(NAMES)})"
        )
    return format


def _unsupported(found: Found, format: Format | None) -> str:
    """The name of a model without a counterpart, from config.json or from its tensors; "" if it may have one.

    A `model_type` decides only about tensors with transformers' names: wrappers, such as transformers' for timm, have
    one of their own around tensors of any system.
    """
    model_type, architecture = (found.config.get(key) for key in ("model_type", "architecture"))
    theirs = format is None or format.name == "huggingface"
    if theirs and isinstance(model_type, str):
        known = model_type in FAMILIES
        return "" if known else f"{model_type!r:.80} of transformers (model_type in config.json)"
    if format is None and isinstance(architecture, str):
        return f"{architecture!r:.80} of timm (architecture in config.json)"
    return unsupported_model(found)
