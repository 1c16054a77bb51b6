"""Build a model on the meta device and fill it with checkpoint tensors."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.protocol import Model, ModelConfig
from vitreous.model.vit import ViT

# Random initialisers that torch's layers and init.py call.
RANDOM_INITIALISERS = {Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_}


class _SkipRandomInit(TorchFunctionMode):
    """Skips random initialisation, which would make torch import its compiler on the meta device (about 1 s)."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in RANDOM_INITIALISERS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Assign checkpoint tensors to a blank model. Raise ValueError if a tensor stays on the meta device."""
    model.load_state_dict(own_storages(tensors), assign=True)
    for name, part in model.named_modules():
        for key, value in (vars(part) | part._buffers).items():
            if isinstance(value, Tensor) and value.is_meta:
                where = f"{name}.{key}".lstrip(".")
                raise ValueError(
                    f"{where} is created by {type(part).__name__} but not saved in checkpoints. Compute it in forward, "
                    "or register it as a persistent buffer"
                )


def own_storages(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors, each contiguous and with its own storage.

    Query, key and value may be rows of one packed tensor. safetensors, accelerate and huggingface_hub treat tensors
    that share storage as duplicates, and drop them or refuse to save them. Such rows get a
    new storage object for the same memory, so memory-mapped files stay mapped. Only overlapping and strided tensors are
    copied.
    """
    result, end = dict(tensors), 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_ptr()):
        if not tensor.is_contiguous():
            result[name] = tensor.contiguous()
        elif tensor.data_ptr() < end:  # overlaps the tensor before it
            result[name] = tensor.clone()
        else:
            end = tensor.data_ptr() + tensor.nbytes
            if tensor.untyped_storage().nbytes() != tensor.nbytes:
                memory = tensor.detach().flatten().view(torch.uint8).numpy()  # numpy has no bfloat16
                result[name] = torch.from_numpy(memory).view(tensor.dtype).view(tensor.shape)
    return result


@overload
def build_blank(config: ViTConfig) -> ViT: ...
@overload
def build_blank(config: ModelConfig) -> Model: ...
def build_blank(config: ModelConfig) -> Model:
    """Build a model on the meta device, which allocates no memory.

    >>> model = build_blank(ViTConfig(width=192, num_heads=3, mlp_width=768))
    >>> model.head.weight.shape, model.head.weight.is_meta
    (torch.Size([1000, 192]), True)
    """
    with torch.device("meta"), _SkipRandomInit():
        return build(config)
