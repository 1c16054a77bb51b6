"""Finds the tensors among the values that training scripts store, and removes what wrappers insert into names.

Known keys are those of timm, DeiT, MAE, DINO, DINOv2, torchvision's references, Lightning, PyTorch's tutorials, fastai
and flax. Prefixes of all names, such as `model.` or `teacher.backbone.`, are left to formats/detection.py.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

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
