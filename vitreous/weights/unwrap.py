"""Finds the model among the values that training scripts store, and removes what wrappers add to tensor names.

Keys of dicts are known: those of timm, DeiT, MAE, DINO, DINOv2, torchvision's references, Lightning, PyTorch's
tutorials, fastai and flax. Prefixes of names are not: the model is what the formats recognise behind one of them, such
as `model.` in Lightning, beside a loss with its own tensors, or `teacher.backbone.` in DINO.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.weights.formats.base import Found
from vitreous.weights.formats.catalog import FOREIGN
from vitreous.weights.io.containers import kind_of
from vitreous.weights.io.errors import BadCheckpoint, shown
from vitreous.weights.io.pickle.tensors import Ignored

# Averaged weights are preferred to others. The first group are usual names of modules too.
AVERAGED_MODULES = (
    *("model_ema", "ema_model", "ema", "teacher", "averaged_model", "target_encoder", "momentum_encoder"),
)
AVERAGED = ("state_dict_ema", "ema_state_dict", "model_ema_state_dict", "ema_model_state_dict", *AVERAGED_MODULES)
WRAPPERS = (
    *AVERAGED,
    *("model_state_dict", "model_state", "state_dict", "model", "net", "network", "module", "weights"),
    *("params", "target"),  # flax's
    *("backbone", "encoder", "student"),
)
MAX_NAME = 500
FLAX_PREFIXES = ("opt/target/", "params/")  # the same keys where nested names were joined
# Names that torch.compile, activation checkpointing and FSDP insert anywhere.
INSERTED = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
MAX_TENSORS = 5_000  # to search for a model
MAX_PREFIX_DEPTH = 6  # parts of a name before the model's own
OURS = "encoder.blocks.0.attention_norm.weight"


# ---- Keys of dicts ---------------------------------------------------------------------------------------------------


def unwrapped(value: Any, path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors in a training script's values, and the keys that lead to them."""
    if not isinstance(value, Mapping):
        raise BadCheckpoint(f"{path} holds {kind_of(value)}, but must hold tensors by name")
    found = _find_tensors(value)
    if found is None:
        keys = [
            f"{shown(key)} ({item.name})" if isinstance(item, Ignored) else shown(key) for key, item in value.items()
        ]
        raise BadCheckpoint(f"{path} has no tensors under a known key; it has {', '.join(keys[:5]) or 'nothing'}")
    held, keys_to_it = found
    tensors: dict[str, Tensor] = {}
    for key, item in held.items():
        if isinstance(item, Tensor):
            if len(str(key)) > MAX_NAME:
                raise BadCheckpoint(f"{path} has a tensor with a name of {len(str(key)):,} letters: {shown(key)}")
            name = INSERTED.sub("", str(key))
            if name in tensors:
                raise BadCheckpoint(f"{path} has {shown(name)} twice, once as {shown(key)}")
            tensors[name] = item
    tensors.pop("n_averaged", None)  # the number of updates of torch's AveragedModel
    for prefix in FLAX_PREFIXES:
        if all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors, keys_to_it


def _find_tensors(value: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], tuple[str, ...]] | None:
    """Return the mapping that has tensors, and its keys from the outside; of several, the first in WRAPPERS."""
    for key in WRAPPERS:
        if isinstance(inner := value.get(key), Mapping) and (found := _find_tensors(inner)):
            return found[0], (key, *found[1])
    return (value, ()) if any(isinstance(item, Tensor) for item in value.values()) else None


# ---- Prefixes of names -----------------------------------------------------------------------------------------------


def model_in(found: Found) -> Found:
    """Return the only model of a known format in a checkpoint, with a summary of the tensors beside it.

    Returns the checkpoint unchanged if its names are known as they are, or if nothing in it is known.
    """
    if _is_known(found) or len(found.tensors) > MAX_TENSORS:
        return found
    parts = _parts(found.tensors)
    known = _outermost(prefix for prefix, part in parts.items() if _is_known(dataclasses.replace(found, tensors=part)))
    if not known:
        _check_not_ours(found)
        return found
    prefix = _choose({prefix: parts[prefix] for prefix in known}, found.path)
    left_out = _summary([name for name in found.tensors if not name.startswith(prefix)], prefix)
    inside = (*found.inside, prefix.rstrip(".")) if left_out else found.inside
    return dataclasses.replace(found, tensors=parts[prefix], inside=inside, left_out=left_out)


def _is_known(found: Found) -> bool:
    return any(format.recognises(found) for format in FOREIGN)


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group tensors by every prefix of their names that ends in a dot."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        end = 0
        for _ in range(MAX_PREFIX_DEPTH):
            end = name.find(".", end) + 1
            if not end:
                break
            parts.setdefault(name[:end], {})[name[end:]] = tensor
    return parts


def _outermost(prefixes: Iterable[str]) -> list[str]:
    """Drop prefixes inside another: transformers' base model is known both with and without its head."""
    kept: list[str] = []
    for prefix in sorted(prefixes):
        if not kept or not prefix.startswith(kept[-1]):
            kept.append(prefix)
    return kept


def _choose(models: Mapping[str, Mapping[str, Tensor]], path: Path) -> str:
    """Return the only model, or the averaged one of several with equal shapes."""
    prefixes = list(models)
    averaged = [prefix for prefix in prefixes if not set(prefix.split(".")).isdisjoint(AVERAGED_MODULES)]
    shapes = [{name: tensor.shape for name, tensor in model.items()} for model in models.values()]
    for choice in (prefixes, averaged if all(one == shapes[0] for one in shapes) else []):
        if len(choice) == 1:
            return choice[0]
    listed = ", ".join(shown(prefix.rstrip(".")) for prefix in prefixes[:4])
    raise BadCheckpoint(
        f"{path} holds {len(prefixes)} models, {listed}{', ...' if len(prefixes) > 4 else ''}: "
        "save the one that you mean in a separate file"
    )


def _summary(names: list[str], prefix: str) -> tuple[str, ...]:
    """Summarise names beside a prefix, one line for many that begin alike.

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
            f"{found.path} is the state dict of a Vitreous model, without the config to build it: write such a model "
            "with vitreous.save(model, folder), or pass this to load_state_dict of an equal model"
        )
