"""What training scripts put tensors into, and what wrappers of modules put into their names, taken off.

The keys are those of timm, DeiT, MAE, DINO and DINOv2, torchvision's references, Lightning, PyTorch's tutorials, fastai
and flax. What is before all names, as `module.` or `backbone.`, is for subtree.py.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.weights.io.errors import shown
from vitreous.weights.io.pickle.resolver import Ignored
from vitreous.weights.io.safetensors_file import BadCheckpoint

# Averaged weights, which are taken before others; of these, those that are usual names of modules too.
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
LONGEST_NAME = 500
FLAX = ("opt/target/", "params/")  # the same, where nested names became one
# Of torch.compile, of activation checkpointing and of FSDP, wherever they were applied.
WORDS = re.compile(r"(?<![^.])(_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


def unwrapped(value: Any, path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The tensors out of what a training script put them into, and the keys under which they were."""
    if not isinstance(value, Mapping):
        raise BadCheckpoint(f"{path} holds {kind_of(value)}, but must hold tensors by name")
    held = _inside(value)
    if held is None:
        keys = ", ".join(_described(key, item) for key, item in list(value.items())[:5])
        raise BadCheckpoint(f"{path} has no tensors where they are looked for; it has {keys or 'nothing'}")
    tensors: dict[str, Tensor] = {}
    for key, item in held[0].items():
        if isinstance(item, Tensor):
            if len(str(key)) > LONGEST_NAME:
                raise BadCheckpoint(f"{path} has a tensor with a name of {len(str(key)):,} letters: {shown(key)}")
            name = WORDS.sub("", str(key))
            if name in tensors:
                raise BadCheckpoint(f"{path} has {shown(name)} twice, once as {shown(key)}")
            tensors[name] = item
    tensors.pop("n_averaged", None)  # how often torch's AveragedModel was updated
    for root in FLAX:
        if all(name.startswith(root) for name in tensors):
            tensors = {name.removeprefix(root): tensor for name, tensor in tensors.items()}
    return tensors, held[1]


def _inside(value: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], tuple[str, ...]] | None:
    """The mapping that has tensors, of several the one whose key comes first above; and its keys from the outside."""
    for key in WRAPPERS:
        if isinstance(inner := value.get(key), Mapping) and (held := _inside(inner)):
            return held[0], (key, *held[1])
    return (value, ()) if any(isinstance(item, Tensor) for item in value.values()) else None


def kind_of(value: object) -> str:
    """What a value is, to be said where tensors should have been.

    >>> kind_of([]), kind_of(Ignored("argparse.Namespace"))
    ('a list', 'argparse.Namespace')
    """
    return value.name if isinstance(value, Ignored) else f"a {type(value).__name__}"


def _described(key: object, item: object) -> str:
    return f"{shown(key)} ({item.name})" if isinstance(item, Ignored) else shown(key)
