"""Where in a checkpoint the model is: other parts may lie beside it, and what held it is named before its own names.

A module of Lightning's has its model as `model.`, beside a loss with tensors of its own; DINO has a `backbone.` beside
a `head.`, all of it twice, as `student.` and as `teacher.`. Nothing is assumed of these names: whatever the formats
recognise behind one of them is the model.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from torch import Tensor

from vitreous.weights.formats.base import Found
from vitreous.weights.formats.catalog import FOREIGN
from vitreous.weights.io.errors import shown
from vitreous.weights.io.safetensors_file import BadCheckpoint
from vitreous.weights.io.wrappers import AVERAGED_MODULES

MOST_TENSORS = 5_000  # that it is worth looking for a model among
DEEPEST = 6  # parts of a name that may be before a model's own
OURS = "encoder.blocks.0.attention_norm.weight"


def model_in(found: Found) -> Found:
    """The one part of a checkpoint that is a model of a known format, and what was left out for it.

    All of it, where its names are known as they are, and where nothing in it is known.
    """
    if _is_known(found) or len(found.tensors) > MOST_TENSORS:
        return found
    parts = _parts(found.tensors)
    known = _outermost(prefix for prefix, part in parts.items() if _is_known(dataclasses.replace(found, tensors=part)))
    if not known:
        _check_not_ours(found)
        return found
    prefix = _chosen({prefix: parts[prefix] for prefix in known}, found.path)
    left_out = _summary([name for name in found.tensors if not name.startswith(prefix)], prefix)
    inside = (*found.inside, prefix.rstrip(".")) if left_out else found.inside
    return dataclasses.replace(found, tensors=parts[prefix], inside=inside, left_out=left_out)


def _is_known(found: Found) -> bool:
    return any(format.recognises(found) for format in FOREIGN)


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """By each beginning that names have, up to a dot, what is behind it."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        end = 0
        for _ in range(DEEPEST):
            end = name.find(".", end) + 1
            if not end:
                break
            parts.setdefault(name[:end], {})[name[end:]] = tensor
    return parts


def _outermost(prefixes: Iterable[str]) -> list[str]:
    """Without those that lie in another: the base model of transformers is known with its head, and without."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


def _chosen(models: Mapping[str, Mapping[str, Tensor]], path: Path) -> str:
    """The only one, or the average of another one. A teacher of another shape is not the average of its student."""
    prefixes = list(models)
    averaged = [prefix for prefix in prefixes if not set(prefix.split(".")).isdisjoint(AVERAGED_MODULES)]
    shapes = [{name: tensor.shape for name, tensor in model.items()} for model in models.values()]
    for choice in (prefixes, averaged if all(one == shapes[0] for one in shapes) else []):
        if len(choice) == 1:
            return choice[0]
    listed = ", ".join(shown(prefix.rstrip(".")) for prefix in prefixes[:4])
    raise BadCheckpoint(
        f"{path} holds {len(prefixes)} models, {listed}{', ...' if len(prefixes) > 4 else ''}: "
        "save the one that you mean by itself"
    )


def _summary(names: list[str], prefix: str) -> tuple[str, ...]:
    """Names beside a part, many that begin alike as one line.

    >>> _summary(["model.head.weight", "model.head.bias", "loss.scale"], "model.backbone.")
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


def _check_not_ours(found: Found) -> None:
    if any(name == OURS or name.endswith(f".{OURS}") for name in found.tensors):
        raise BadCheckpoint(
            f"{found.path} is the state dict of a Vitreous model, without the config that says how to build it: write "
            "such a model with vitreous.save(model, folder), or give this to the load_state_dict of one like it"
        )
