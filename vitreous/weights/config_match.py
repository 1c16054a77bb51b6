"""Checks that a model matches its config, because a checkpoint is rebuilt from the config alone."""

from collections.abc import Mapping

from torch import nn

from vitreous.model.meta_build import build_blank
from vitreous.model.protocol import Model

RECOMPUTED = "._checkpoint_wrapped_module"  # inserted into names by torch's activation checkpointing


def check_not_swapped(model: Model) -> None:
    """Raise for a module that was replaced by hand.

    Modules are compared by class, by `extra_repr` (e.g. the eps of a norm) and by the shapes of their tensors. Numbers
    that were set by hand in our own modules are not noticed.

    >>> import vitreous
    >>> model = vitreous.create("ViT-Ti/16")
    >>> check_not_swapped(model)
    >>> model.encoder.blocks[3].mlp.activation = nn.ReLU()
    >>> try:
    ...     check_not_swapped(model)
    ... except ValueError as error:
    ...     print(str(error).partition(": ")[0])
    encoder.blocks.3.mlp.activation is ReLU(), but the config says GELU(approximate='tanh')
    """
    blank = build_blank(model.config)
    parts, known = _parts(model), _parts(blank)
    for name in known:  # other modules without tensors, such as a loss, are dropped silently
        _check_same(name, parts, known)
    shapes, wanted = _shapes(model), _shapes(blank)
    for name in (*wanted, *shapes):
        _check_same(name, shapes, wanted)


def _check_same(name: str, here: Mapping[str, str], stated: Mapping[str, str]) -> None:
    missing = "missing"
    if here.get(name, missing) != stated.get(name, missing):
        raise ValueError(
            f"{name} is {here.get(name, missing)}, but the config says {stated.get(name, missing)}: a checkpoint is "
            "rebuilt from the config and would lack this. Merge it (LoRA), save model.state_dict() yourself, or add it "
            "to the config (docs/architecture.md)"
        )


def _parts(model: Model) -> dict[str, str]:
    return {name.replace(RECOMPUTED, ""): _description(part) for name, part in model.named_modules() if name}


def _description(part: nn.Module) -> str:
    """Describe a module by its class and `extra_repr`; classes of other packages with their package."""
    kind = type(part)
    usual = kind.__module__.startswith(("vitreous.", "torch.nn.modules."))
    name = kind.__name__ if usual else f"{kind.__module__}.{kind.__name__}"
    return name if isinstance(part, nn.Dropout) else f"{name}({part.extra_repr()})"


def _shapes(model: Model) -> dict[str, str]:
    return {name: str(list(tensor.shape)) for name, tensor in model.state_dict().items()}
