"""A model without memory and without numbers: shapes alone, for the tensors of a checkpoint to be put in."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from vitreous.model.config import ResNetConfig, ViTConfig
from vitreous.model.kinds import AnyConfig, AnyModel, build_any
from vitreous.model.resnet import ResNet
from vitreous.model.segmenter import Segmenter, SegmenterConfig
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
    """Put a checkpoint's tensors into a blank model. What is in no checkpoint would stay without memory: refused."""
    model.load_state_dict(tensors, assign=True)
    for name, part in model.named_modules():
        for key, value in (vars(part) | part._buffers).items():
            if isinstance(value, Tensor) and value.is_meta:
                where = f"{name}.{key}".lstrip(".")
                raise ValueError(
                    f"{where} is made as {type(part).__name__} is built and is in no checkpoint: compute it in "
                    "forward, or register it as a persistent buffer"
                )


@overload
def build_blank(config: ViTConfig) -> ViT: ...
@overload
def build_blank(config: ResNetConfig) -> ResNet: ...
@overload
def build_blank(config: SegmenterConfig) -> Segmenter: ...
def build_blank(config: AnyConfig) -> AnyModel:
    """The model that `config` describes, on torch's device "meta".

    >>> model = build_blank(ViTConfig(width=192, num_heads=3, mlp_width=768))
    >>> model.head.weight.shape, model.head.weight.is_meta
    (torch.Size([1000, 192]), True)
    """
    with torch.device("meta"), _NoDraws():
        return build_any(config)
