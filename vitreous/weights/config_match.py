"""Whether a model is what its config says. A checkpoint is built from the config again, and nothing else comes back."""

from collections.abc import Mapping

from torch import nn

from vitreous.model.meta_build import build_blank
from vitreous.model.protocol import Model

RECOMPUTED = "._checkpoint_wrapped_module"  # what torch's activation checkpointing adds to names


def check_not_swapped(model: Model) -> None:
    """Refuse a model with a part that was put in by hand, and name it.

    Parts are compared by their class, by what they print of themselves (as a GELU its approximation, and a norm its
    eps) and by their tensors. Numbers that were set by hand in a part of ours are not seen.

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
    for name in known:  # a part that is none of these and has no tensors, such as a loss, is nobody's loss
        _check_same(name, parts, known)
    shapes, wanted = _shapes(model), _shapes(blank)
    for name in (*wanted, *shapes):
        _check_same(name, shapes, wanted)


def _check_same(name: str, here: Mapping[str, str], said: Mapping[str, str]) -> None:
    missing = "not there"
    if here.get(name, missing) != said.get(name, missing):
        raise ValueError(
            f"{name} is {here.get(name, missing)}, but the config says {said.get(name, missing)}: a checkpoint is "
            "built from the config, and would come back without this. Merge it (LoRA), keep model.state_dict() "
            "yourself, or give it a kind of its own in the config (docs/architecture.md)"
        )


def _parts(model: Model) -> dict[str, str]:
    return {name.replace(RECOMPUTED, ""): _words(part) for name, part in model.named_modules() if name}


def _words(part: nn.Module) -> str:
    """As it prints itself, with the module of a class that is neither torch's own nor ours."""
    kind = type(part)
    usual = kind.__module__.startswith(("vitreous.", "torch.nn.modules."))
    name = kind.__name__ if usual else f"{kind.__module__}.{kind.__name__}"
    return name if isinstance(part, nn.Dropout) else f"{name}({part.extra_repr()})"


def _shapes(model: Model) -> dict[str, str]:
    return {name: str(list(tensor.shape)) for name, tensor in model.state_dict().items()}
