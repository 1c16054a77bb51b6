"""A model without memory and without numbers: shapes alone, for the tensors of a checkpoint to be put in."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.model.build import build
from vitreous.model.config import ViTConfig
from vitreous.model.protocol import Model, ModelConfig
from vitreous.model.vit import ViT

# As torch's layers and init.py ask for them: of a tensor, or by a function that shows itself before it does.
DRAWS = {Tensor.uniform_, Tensor.normal_, nn.init.uniform_, nn.init.normal_, nn.init.kaiming_uniform_}


class _NoDraws(TorchFunctionMode):
    """Leaves out the random numbers that parts start with.

    Where there is no memory for them they are in vain; and torch would load its compiler to find out what shape they
    have, which takes over a second the first time.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Assign a checkpoint's tensors to a blank model. Raises if a tensor of the model is not in the checkpoint."""
    model.load_state_dict(own_storages(tensors), assign=True)
    for name, part in model.named_modules():
        for key, value in (vars(part) | part._buffers).items():
            if isinstance(value, Tensor) and value.is_meta:
                where = f"{name}.{key}".lstrip(".")
                raise ValueError(
                    f"{where} is made as {type(part).__name__} is built and is in no checkpoint: compute it in "
                    "forward, or register it as a persistent buffer"
                )


def own_storages(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give every tensor a storage of its own, and make it contiguous.

    Query, key and value may be rows of one packed tensor. safetensors, accelerate and huggingface_hub take tensors with
    one storage for copies of each other, and drop them or refuse to save them. Rows keep their memory and get a new
    storage object around it, so that mapped files stay mapped. Only overlapping and strided tensors are copied.
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
    """The model that `config` describes, on torch's device "meta".

    >>> model = build_blank(ViTConfig(width=192, num_heads=3, mlp_width=768))
    >>> model.head.weight.shape, model.head.weight.is_meta
    (torch.Size([1000, 192]), True)
    """
    with torch.device("meta"), _NoDraws():
        return build(config)
