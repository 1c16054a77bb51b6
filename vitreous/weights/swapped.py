"""Whether a model is what its config says. A checkpoint is built from the config again, and nothing else comes back."""

from typing import Any

from vitreous.model.blank import build_blank
from vitreous.model.kinds import AnyModel


def check_not_swapped(model: AnyModel) -> None:
    """Refuse a model with a part that was put in by hand, and name it.

    >>> import vitreous
    >>> from torch import nn
    >>> model = vitreous.create("ViT-Ti/16")
    >>> check_not_swapped(model)
    >>> model.encoder.blocks[3].mlp.activation = nn.ReLU()
    >>> try:
    ...     check_not_swapped(model)
    ... except ValueError as error:
    ...     print(str(error).partition(": ")[0])
    encoder.blocks.3.mlp.activation is ReLU, but the config says GELU
    """
    blank: AnyModel = build_blank(model.config)
    for describe in (_kinds, _shapes):
        here, said = describe(model), describe(blank)
        for name in dict.fromkeys((*said, *here)):
            if here.get(name) != said.get(name):
                raise ValueError(
                    f"{name} is {_shown(here.get(name))}, but the config says {_shown(said.get(name))}: a checkpoint "
                    "is built from the config, and would come back without this. Keep model.state_dict() yourself, or "
                    "give the part a kind of its own in the config (docs/architecture.md)"
                )


def _kinds(model: AnyModel) -> dict[str, Any]:
    return {name: type(part) for name, part in model.named_modules() if name}


def _shapes(model: AnyModel) -> dict[str, Any]:
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def _shown(value: Any) -> str:
    return "not there" if value is None else value.__name__ if isinstance(value, type) else str(value)
