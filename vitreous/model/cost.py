"""Parameters, FLOPs and memory of a model, measured with fake tensors."""

import weakref
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from vitreous.model.build import build
from vitreous.model.protocol import ModelConfig


@dataclass(frozen=True)
class Cost:
    """Cost of a model for one image."""

    parameters: int
    flops: int  # a multiply-add counts as two
    activation_bytes: int  # saved for the backward pass in float32; half of this in bfloat16
    inference_bytes: int  # peak of a float32 forward pass without gradients, excluding weights


def cost(config: ModelConfig) -> Cost:
    """Measure the cost of a model for one image.

    >>> from vitreous.model.config import ViTConfig
    >>> cost(ViTConfig()).flops  # 17.6 billion multiply-adds
    35127656448
    """
    with FakeTensorMode():
        model = build(config)
        memory = _PeakMemory(model)
        with memory:
            images = torch.empty(1, config.channels, *config.image_size)
            flops = forward_flops(model, images)
        kept = _kept_for_backward(model.train().requires_grad_(True), images)
    return Cost(sum(p.numel() for p in model.parameters()), flops, kept, memory.peak)


def forward_flops(module: nn.Module, *inputs: Tensor) -> int:
    """Count the operations of a forward pass; a multiply-add counts as two. The weights no longer require gradients."""
    # torch does not count fused attention on the CPU.
    fused = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}
    counter = FlopCounterMode(display=False, custom_mapping=fused)
    with counter, torch.no_grad():
        module.eval().requires_grad_(False)(*inputs)  # the counter fails for views of trainable weights
    return counter.get_total_flops()


class _PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the peak memory of tensors created while this mode is active. Weights are excluded."""

    def __init__(self, model: nn.Module):
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._weights = {weight.untyped_storage()._cdata for weight in (*model.parameters(), *model.buffers())}
        self._tensors: Counter[int] = Counter()  # number of live tensors per storage

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._add(tensor)
        self.peak = max(self.peak, self.live)
        return made

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._weights:
            return
        if not self._tensors[key]:
            self.live += size
        self._tensors[key] += 1
        weakref.finalize(tensor, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._tensors[key] -= 1
        if not self._tensors[key]:
            self.live -= size


def _attention_flops(q: torch.Size, k: torch.Size, v: torch.Size, *_: object, **__: object) -> int:
    return sdpa_flop_count(q, k, v)  # type: ignore[no-untyped-call]


def _kept_for_backward(model: nn.Module, images: Tensor) -> int:
    """Return the number of bytes that autograd saves for the backward pass, excluding weights."""
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
