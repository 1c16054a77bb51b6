"""All formats, in the order in which a checkpoint is tried: those with marks of their own before their relatives."""

from vitreous.model.checks import check_choice
from vitreous.weights.big_vision import BigVision
from vitreous.weights.dinov2 import DinoV2
from vitreous.weights.format import Format, Found
from vitreous.weights.google import Google
from vitreous.weights.huggingface import HuggingFace
from vitreous.weights.lucidrains import Lucidrains
from vitreous.weights.mae import Mae
from vitreous.weights.paddle import Paddle
from vitreous.weights.paddlevit import PaddleViT
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


def detect(found: Found) -> Format:
    """The format whose names these are."""
    for format in FOREIGN:
        if format.recognises(found):
            return format
    names = ", ".join(list(found.tensors)[:4])
    raise BadCheckpoint(
        f"{found.path} is of no known format; its {len(found.tensors)} tensors are called {names}, ... "
        f"(known: {', '.join(NAMES)})"
    )
