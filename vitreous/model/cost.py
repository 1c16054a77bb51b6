"""What a model costs, found by running it on tensors without memory: exact for any config, instant for any size."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from vitreous.model.kinds import AnyConfig, build_any


@dataclass(frozen=True)
class Cost:
    """Of one image."""

    parameters: int
    flops: int  # a multiplication and an addition count as two
    activation_bytes: int  # what training keeps for the backward pass, in float32; half of it in bfloat16


def cost(config: AnyConfig) -> Cost:
    """Parameters, operations and memory of the model that `config` describes.

    >>> from vitreous.model.config import ViTConfig
    >>> cost(ViTConfig()).flops  # 17.6 billion multiply-adds
    35127656448
    """
    with FakeTensorMode():
        model = build_any(config)
        images = torch.empty(1, config.channels, *config.image_size)
        # torch counts every fused attention but the CPU's.
        fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
        counter = FlopCounterMode(display=False, custom_mapping=fused)
        with counter:
            model.eval()(images)
        kept = _kept_for_backward(model.train(), images)
    return Cost(sum(p.numel() for p in model.parameters()), counter.get_total_flops(), kept)


def _attention_flops(q: torch.Size, k: torch.Size, v: torch.Size, *_: object, **__: object) -> int:
    return sdpa_flop_count(q, k, v)  # type: ignore[no-untyped-call]


def _kept_for_backward(model: nn.Module, images: Tensor) -> int:
    """The bytes of all tensors that autograd saves, each storage once, weights left out."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    saved: dict[int, tuple[int, Tensor]] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            saved[storage._cdata] = (storage.nbytes(), tensor)
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images).sum()
    return sum(size for size, _ in saved.values())
