"""All formats, in the order in which a checkpoint is tried: those with marks of their own before their relatives."""

from vitreous.model.checks import check_choice
from vitreous.weights.dinov2 import DinoV2
from vitreous.weights.format import Format, Found
from vitreous.weights.tensors import BadCheckpoint
from vitreous.weights.timm import Timm

FOREIGN: tuple[Format, ...] = (DinoV2(), Timm())
NAMES = ("vitreous", *(format.name for format in FOREIGN))


def format_named(name: str) -> Format:
    check_choice("format", name, NAMES)
    return next(format for format in FOREIGN if format.name == name)


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
